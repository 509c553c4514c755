"""The test API server reports changes as a real server does: each once and in order, with bookmarks on request."""

from __future__ import annotations

import time

import httpx
import pytest
from nftproxy_conformance.apiserver import ApiServer, watches

from tests.conformance.apiserver.clients import (
    SERVICES,
    SLICES,
    Object,
    client_of,
    refusal,
    service,
    short,
    watching,
)


def test_a_watch_begins_where_it_is_told(server: ApiServer, client: httpx.Client) -> None:
    """Every change after the given version comes once and in order, even from before the watch."""
    start = server.put(service("old"))
    server.put(service("web"))
    server.put({"kind": "Node", "metadata": {"name": "n"}})
    with watching(client, resourceVersion=start) as events:
        server.put(service("web", type="NodePort"))
        last = server.delete("Service", "default", "web")
        added, modified, deleted = (next(events) for _ in range(3))
    assert [event[:2] for event in (added, modified, deleted)] == [
        ("ADDED", "web"), ("MODIFIED", "web"), ("DELETED", "web"),
    ]  # fmt: skip
    assert [event.version for event in (added, modified, deleted)] == [start + 1, start + 3, last]
    assert deleted.object["spec"] == modified.object["spec"]
    assert (added.object["kind"], added.object["apiVersion"]) == ("Service", "v1")


@pytest.mark.parametrize("version", ["", "0"])
def test_a_watch_from_anywhere_begins_with_what_there_is(server: ApiServer, client: httpx.Client, version: str) -> None:
    """Without a version, or from 0, present objects come as ADDED first."""
    server.put(service("b"), service("a"))
    with watching(client, resourceVersion=version) as events:
        server.put(service("c"))
        assert [next(events)[:2] for _ in range(3)] == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]


def test_a_watch_of_one_namespace(server: ApiServer, client: httpx.Client) -> None:
    """The path of a namespace tells nothing of another."""
    with watching(client, "/api/v1/namespaces/shop/services") as events:
        server.put(service("a", "bank"), service("b", "shop"))
        assert next(events).name == "b"


@pytest.mark.parametrize(
    ("query", "inside", "outside"),
    [
        ({"labelSelector": "!proxy"}, service(), service(labels={"proxy": "x"})),
        ({"fieldSelector": "spec.clusterIP!=None"}, service(), service(clusterIP="None")),
    ],
)
def test_a_watch_with_a_selector_sees_comings_and_goings(
    server: ApiServer, client: httpx.Client, query: dict[str, str], inside: Object, outside: Object
) -> None:
    """An object that no longer matches is DELETED in its last matching state.  A new match is ADDED."""
    server.put(outside)
    with watching(client, resourceVersion=server.revision, **query) as events:
        for document in (inside, outside, inside):
            server.put(document)
        server.put(outside | {"status": {"seen": False}})
        server.put(inside | {"status": {"x": 1}})
        server.put(inside | {"status": {"x": 2}})
        seen = [next(events) for _ in range(6)]
    assert [event.type for event in seen] == ["ADDED", "DELETED", "ADDED", "DELETED", "ADDED", "MODIFIED"]
    assert seen[1].object["spec"] == inside["spec"]
    assert seen[1].version == seen[0].version + 1


def test_bookmarks_have_only_a_version(server: ApiServer, client: httpx.Client) -> None:
    """Bookmarks come regularly on request, as objects that are empty but for a newer resourceVersion."""
    server.settings.bookmark_interval = 0.05
    revision = server.put(service())
    with watching(client, SLICES, resourceVersion=revision, allowWatchBookmarks="true") as events:
        first, second = next(events), next(events)
    assert [first.type, second.type] == ["BOOKMARK", "BOOKMARK"]
    assert revision < first.version < second.version
    assert first.object == {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": str(first.version)},
        "addressType": "",
        "endpoints": None,
        "ports": None,
    }


def test_nothing_happens_in_an_idle_cluster(server: ApiServer, client: httpx.Client) -> None:
    """Bookmarks come only on request, and never with the version at the start of the watch."""
    server.settings.bookmark_interval = 0.02
    with watching(client, resourceVersion=server.revision, timeoutSeconds=1) as events:
        assert short(events) == []
    server.settings.is_idle = True
    with watching(client, resourceVersion=server.revision, timeoutSeconds=1, allowWatchBookmarks="1") as events:
        assert short(events) == []


def test_a_last_bookmark_comes_before_the_end(
    server: ApiServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch gets a bookmark shortly before its timeout, and then ends as a complete answer."""
    monkeypatch.setattr(watches, "LAST_BOOKMARK", 0.9)
    with watching(client, resourceVersion=server.revision, timeoutSeconds=1, allowWatchBookmarks="true") as events:
        assert [event.type for event in events] == ["BOOKMARK"]


def test_a_watch_list_says_when_it_is_complete(server: ApiServer, client: httpx.Client) -> None:
    """With sendInitialEvents present objects come as ADDED, then a bookmark marks their end, from any version."""
    revision = server.put(service("a"), service("b"))
    server.compact()
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    with watching(client, resourceVersion=1, **query) as events:
        assert [next(events)[:2] for _ in range(2)] == [("ADDED", "a"), ("ADDED", "b")]
        end = next(events)
    assert (end.type, end.version) == ("BOOKMARK", revision)
    assert end.object["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_watch_from_a_compacted_version_is_told_in_the_stream(server: ApiServer, client: httpx.Client) -> None:
    """Present servers answer it with 200 and an ERROR event, older servers with a status of 410."""
    old = server.put(service("a"))
    revision = server.put(service("b"))
    server.compact()
    with watching(client, resourceVersion=old) as events:
        (event,) = events
    assert (event.type, event.object["code"], event.object["reason"]) == ("ERROR", 410, "Expired")
    assert event.object["message"] == f"too old resource version: {old} ({revision})"
    server.settings.expired_watch_has_status = True
    assert refusal(client.get(SERVICES, params={"watch": "1", "resourceVersion": old})) == (410, "Expired")
    with watching(client, resourceVersion=revision) as events:
        server.put(service("c"))
        assert next(events).name == "c"


def test_history_is_limited() -> None:
    """The history of a resource is limited, independently of other resources."""
    with ApiServer(history=2) as server, client_of(server) as client:
        first = server.put(service("a"))
        second = server.put(service("b"))
        server.put({"kind": "Node", "metadata": {"name": "n"}}, service("c"), service("d"))
        with watching(client, resourceVersion=second) as events:
            assert [next(events).name for _ in range(2)] == ["c", "d"]
        with watching(client, resourceVersion=first) as events:
            assert next(events).type == "ERROR"


def test_a_watch_from_the_future_waits_for_it(server: ApiServer, client: httpx.Client) -> None:
    """It is accepted, and gets no events or bookmarks before that version."""
    server.settings.bookmark_interval = 0.01
    server.settings.is_idle = True
    with watching(client, resourceVersion=server.revision + 2, allowWatchBookmarks="1") as events:
        server.put(service("a"))
        server.put(service("b"))
        time.sleep(0.05)
        server.put(service("c"))
        assert next(events).name == "c"


def test_a_watch_is_forgotten_when_its_client_leaves(server: ApiServer, client: httpx.Client) -> None:
    """The server notices at once, though it has nothing to send."""
    with watching(client):
        server.wait_for_watches(1, "services")
        assert server.watches("nodes") == 0
    server.wait_for_watches(0)
    assert server.requests(verb="watch")[0].ended is not None


def test_many_watches_share_what_they_are_sent(server: ApiServer, client: httpx.Client) -> None:
    """Each of several watches gets all of some hundred changes in order."""
    with watching(client) as one, watching(client) as two, watching(client) as three:
        server.put(*(service(f"web-{number:03}") for number in range(300)))
        for events in (one, two, three):
            assert [next(events).name for _ in range(300)] == [f"web-{number:03}" for number in range(300)]
