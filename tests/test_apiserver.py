"""The test API server behaves as a real one does; what goes wrong on demand is tested beside it (apiserver/)."""

from __future__ import annotations

import gzip
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from nftproxy.lab import LabError, Namespace
from tests.apiserver import ApiServer, Permission, Proof, documents, permissions_of, watches
from tests.apiserver.clients import (
    SERVICES,
    SLICES,
    WEB,
    Object,
    bearer,
    client_of,
    listed,
    names,
    refusal,
    service,
    short,
    watching,
)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A server without TLS that lets everybody do everything."""
    with ApiServer() as server:
        yield server


@pytest.fixture
def client(server: ApiServer) -> Iterator[httpx.Client]:
    """A client of that server."""
    with client_of(server) as client:
        yield client


# Objects


@pytest.mark.parametrize(
    ("kind", "api_version", "path"),
    [
        ("Service", "v1", "/api/v1/namespaces/default/services/one"),
        ("Node", "v1", "/api/v1/nodes/one"),
        ("EndpointSlice", "discovery.k8s.io/v1", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/one"),
        ("ServiceCIDR", "networking.k8s.io/v1", "/apis/networking.k8s.io/v1/servicecidrs/one"),
        ("Event", "events.k8s.io/v1", "/apis/events.k8s.io/v1/namespaces/default/events/one"),
    ],
)
def test_an_object_is_at_its_url(
    server: ApiServer, client: httpx.Client, kind: str, api_version: str, path: str
) -> None:
    """Each resource has its path, and an object gets the metadata that only the server gives."""
    revision = server.put({"kind": kind, "metadata": {"name": "one", "labels": {"a": "b"}}, "spec": {"x": [1]}})
    found = client.get(path).json()
    assert (found["kind"], found["apiVersion"], found["spec"]) == (kind, api_version, {"x": [1]})
    metadata = found["metadata"]
    assert (metadata["name"], metadata["labels"], metadata["generation"]) == ("one", {"a": "b"}, 1)
    assert metadata["resourceVersion"] == str(revision)
    assert len(metadata["uid"]) == 36
    assert time.strptime(metadata["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ")
    assert found == server.get(kind, "default" if "namespaces" in path else "", "one")


def test_items_of_a_list_have_no_kind(server: ApiServer, client: httpx.Client) -> None:
    """A list names the kind of its items once, as typed lists do, and carries the newest resourceVersion."""
    server.put(service("b"), service("a"))
    revision = server.put({"kind": "Node", "metadata": {"name": "n"}})
    content = listed(client)
    assert (content["kind"], content["apiVersion"]) == ("ServiceList", "v1")
    assert content["metadata"] == {"resourceVersion": str(revision)}
    assert [set(item) for item in content["items"]] == [{"metadata", "spec"}] * 2
    assert names(content) == ["a", "b"]


def test_one_number_counts_all_changes(server: ApiServer) -> None:
    """Every write and deletion, of whatever kind, takes the next resourceVersion."""
    first = server.put(service())
    assert server.put({"kind": "Node", "metadata": {"name": "n"}}) == first + 1
    assert server.delete("Service", "default", "web") == first + 2
    assert server.revision == first + 2
    assert server.get("Service", "default", "web") is None


def test_a_write_that_changes_nothing_is_none(server: ApiServer) -> None:
    """The same object again has no new resourceVersion; a new spec is a new generation, a new status isn't."""
    revision = server.put(service())
    assert server.put(service()) == revision
    server.put(service() | {"status": {"loadBalancer": {}}})
    assert server.objects("Service")[0]["metadata"]["generation"] == 1
    server.put(service(clusterIP="10.96.0.11"))
    assert server.objects("services")[0]["metadata"]["generation"] == 2
    assert server.objects("services")[0]["metadata"]["resourceVersion"] == str(revision + 2)


def test_a_new_object_of_an_old_name_is_another(server: ApiServer) -> None:
    """An object keeps its uid and its creation time as long as it lives, and no longer."""
    server.put(service())
    uid = server.objects("Service")[0]["metadata"]["uid"]
    server.put(service(type="NodePort"))
    assert server.objects("Service")[0]["metadata"]["uid"] == uid
    server.delete("Service", "default", "web")
    server.put(service())
    assert server.objects("Service")[0]["metadata"]["uid"] != uid


def test_a_namespace_has_its_own_list(server: ApiServer, client: httpx.Client) -> None:
    """The path of a namespace lists what is in it, and the path without all of them, by namespace and name."""
    server.put(service("a", "shop"), service("b", "bank"))
    assert names(listed(client)) == ["b", "a"]
    assert names(listed(client, "/api/v1/namespaces/shop/services")) == ["a"]


@pytest.mark.parametrize(
    "path", ["/version", "/version/", "/api", "/apis/", "/api/v1", "/apis/events.k8s.io", "/livez"]
)
def test_discovery_answers(client: httpx.Client, path: str) -> None:
    """The server says what it is and has, with a slash at the end or without."""
    assert client.get(path).status_code == 200


def test_requests_are_counted_in_metrics(server: ApiServer, client: httpx.Client) -> None:
    """/metrics tells how many requests of each verb and resource there were, those under way with the status 0."""
    del server
    listed(client)
    listed(client)
    lines = client.get("/metrics").text.splitlines()
    assert 'apiserver_request_total{verb="LIST",resource="services",code="200"} 2' in lines
    assert 'apiserver_request_total{verb="GET",resource="/metrics",code="0"} 1' in lines


@pytest.mark.parametrize(
    "path",
    ["/", "/api/v2/services", "/api/v1/pods", "/api/v1/services/web", "/api/v1/namespaces/a/nodes", f"{SLICES}/a/b"],
)
def test_what_is_not_there_is_not_found(client: httpx.Client, path: str) -> None:
    """Any other path is answered with a Status of 404."""
    assert refusal(client.get(path)) == (404, "NotFound")


# Writes over HTTP


def test_create(server: ApiServer, client: httpx.Client) -> None:
    """POST makes an object, once, in the namespace of the path; a Service begins without a status."""
    path = "/api/v1/namespaces/default/services"
    made = client.post(path, json=service() | {"status": {"loadBalancer": {"ingress": []}}})
    assert made.status_code == 201
    assert made.json() == server.get("Service", "default", "web")
    assert "status" not in made.json()
    assert refusal(client.post(path, json=service())) == (409, "AlreadyExists")
    assert refusal(client.post(path, json=service("x", "other"))) == (400, "BadRequest")
    assert refusal(client.post(path, content=b"{")) == (400, "BadRequest")
    assert refusal(client.post(path, headers={"content-type": "text/plain"})) == (415, "UnsupportedMediaType")
    generated = client.post(path, json={"metadata": {"generateName": "web-"}, "spec": {}})
    assert generated.json()["metadata"]["name"].startswith("web-")


def test_update_from_an_old_version_is_a_conflict(server: ApiServer, client: httpx.Client) -> None:
    """PUT replaces an object if its resourceVersion is still the newest, or isn't given."""
    server.put(service())
    old = client.get(WEB).json()
    assert client.put(WEB, json=service(type="NodePort")).json()["spec"]["type"] == "NodePort"
    assert refusal(client.put(WEB, json=old)) == (409, "Conflict")
    assert refusal(client.put(WEB.replace("web", "none"), json=service("none"))) == (404, "NotFound")


def test_the_status_is_written_by_itself(server: ApiServer, client: httpx.Client) -> None:
    """PUT of an object leaves its status alone, and PUT of the status leaves everything else alone."""
    server.put(service() | {"status": {"was": 1}})
    client.put(WEB, json=service(type="NodePort") | {"status": {"was": 2}})
    assert server.objects("Service")[0]["status"] == {"was": 1}
    client.put(f"{WEB}/status", json=service(type="ClusterIP") | {"status": {"was": 3}})
    assert server.objects("Service")[0]["status"] == {"was": 3}
    assert server.objects("Service")[0]["spec"]["type"] == "NodePort"


def test_merge_patch(server: ApiServer, client: httpx.Client) -> None:
    """PATCH merges, null removes, `/status` has its own, and other kinds of patch are refused."""
    server.put(service(type="NodePort", externalIPs=["192.0.2.1"]))
    merge = {"content-type": "application/merge-patch+json"}
    client.patch(WEB, json={"spec": {"type": None, "externalIPs": []}, "status": {"a": 1}}, headers=merge)
    client.patch(f"{WEB}/status", json={"spec": {"x": 1}, "status": {"b": 2}}, headers=merge)
    found = server.objects("Service")[0]
    assert found["spec"] == {"clusterIP": "10.96.0.10", "externalIPs": []}
    assert found["status"] == {"b": 2}
    assert refusal(client.patch(WEB, json={})) == (415, "UnsupportedMediaType")


def test_delete(server: ApiServer, client: httpx.Client) -> None:
    """DELETE removes an object at once, and another one finds nothing."""
    server.put(service())
    assert client.delete(WEB).json()["status"] == "Success"
    assert server.objects("Service") == []
    assert refusal(client.delete(WEB)) == (404, "NotFound")
    assert refusal(client.delete(SERVICES)) == (405, "MethodNotAllowed")


# Lists


def test_pages_are_of_one_state(server: ApiServer, client: httpx.Client) -> None:
    """All pages show the state and the version of the first, whatever happens in between."""
    server.put(*(service(name) for name in "abcde"))
    first = listed(client, limit=2)
    server.put(service("aa"), service("d", type="NodePort"))
    server.delete("Service", "default", "e")
    second = listed(client, limit=2, **{"continue": first["metadata"]["continue"]})
    third = listed(client, limit=2, **{"continue": second["metadata"]["continue"]})
    assert [names(page) for page in (first, second, third)] == [["a", "b"], ["c", "d"], ["e"]]
    assert len({page["metadata"]["resourceVersion"] for page in (first, second, third)}) == 1
    assert [page["metadata"].get("remainingItemCount") for page in (first, second, third)] == [3, 1, None]
    assert "type" not in second["items"][1]["spec"]
    assert "continue" not in third["metadata"]


def test_pages_with_a_selector(server: ApiServer, client: httpx.Client) -> None:
    """A page of selected objects is full, and doesn't say how many remain."""
    server.put(*(service(name, labels={"even": str(number % 2)}) for number, name in enumerate("abcdef")))
    first = listed(client, limit=2, labelSelector="even=1")
    assert names(first) == ["b", "d"]
    assert set(first["metadata"]) == {"resourceVersion", "continue"}
    token = first["metadata"]["continue"]
    assert names(listed(client, limit=2, labelSelector="even=1", **{"continue": token})) == ["f"]


def test_a_continue_token_expires(server: ApiServer, client: httpx.Client) -> None:
    """After a compaction a token is refused with 410, and with another one that goes on with what there is now."""
    server.put(*(service(name) for name in "abc"))
    token = listed(client, limit=2)["metadata"]["continue"]
    server.put(service("d"))
    server.compact()
    response = client.get(SERVICES, params={"limit": 2, "continue": token})
    assert refusal(response) == (410, "Expired")
    assert names(listed(client, **{"continue": response.json()["metadata"]["continue"]})) == ["c", "d"]
    assert refusal(client.get(SERVICES, params={"continue": "nonsense"})) == (400, "BadRequest")


def test_a_list_from_the_cache_is_whole(server: ApiServer, client: httpx.Client) -> None:
    """With a resourceVersion of 0 a limit doesn't count."""
    server.put(*(service(name) for name in "abc"))
    assert names(listed(client, resourceVersion=0, limit=1)) == ["a", "b", "c"]


def test_a_list_of_the_past(server: ApiServer, client: httpx.Client) -> None:
    """An exact version is listed as it was, while it is known; one that is not older may be newer."""
    then = server.put(service("a"), service("b"))
    server.put(service("c"), service("b", type="NodePort"))
    server.delete("Service", "default", "a")
    exact = listed(client, resourceVersion=then, resourceVersionMatch="Exact")
    assert (names(exact), exact["metadata"]["resourceVersion"]) == (["a", "b"], str(then))
    assert "type" not in exact["items"][1]["spec"]
    assert names(listed(client, resourceVersion=then, limit=9)) == ["a", "b"]
    assert names(listed(client, resourceVersion=then, resourceVersionMatch="NotOlderThan")) == ["b", "c"]
    assert names(listed(client, resourceVersion=then)) == ["b", "c"]
    server.compact()
    expired = client.get(SERVICES, params={"resourceVersion": then, "resourceVersionMatch": "Exact"})
    assert refusal(expired) == (410, "Expired")


def test_a_list_of_the_future_times_out(server: ApiServer, client: httpx.Client) -> None:
    """A version that is yet to come is answered with 504 and the cause that clients look for."""
    response = client.get(SERVICES, params={"resourceVersion": server.revision + 1})
    assert refusal(response) == (504, "Timeout")
    assert response.headers["retry-after"] == "1"
    assert response.json()["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"resourceVersion": "x"}, 400),
        ({"limit": "-1"}, 400),
        ({"resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "0"}, 422),
        ({"resourceVersionMatch": "Sometime", "resourceVersion": "1"}, 422),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "1", "continue": "e30"}, 422),
        ({"sendInitialEvents": "true"}, 422),
        ({"watch": "1", "resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"}, 422),
        ({"watch": "1", "sendInitialEvents": "true"}, 422),
        ({"watch": "1", "resourceVersion": "x"}, 400),
        ({"labelSelector": "a b"}, 400),
        ({"labelSelector": "a in b"}, 400),
        ({"fieldSelector": "spec.externalName=x"}, 400),
        ({"fieldSelector": "metadata.name"}, 400),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(client: httpx.Client, query: dict[str, str], code: int) -> None:
    """Options that can't be read or contradict each other are refused as kube-apiserver does."""
    assert refusal(client.get(SERVICES, params=query))[0] == code


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", "abcd"),
        ("app", "abc"),
        ("!app", "d"),
        ("app=web", "a"),
        ("app==web", "a"),
        ("app!=web", "bcd"),
        ("app in (web, db)", "ab"),
        ("app notin (web,db)", "cd"),
        ("app=", "c"),
        ("app in (web,db),!example.test/skip", "a"),
        ("example.test/skip,app", "b"),
        ("app,app!=db,app notin (x)", "ac"),
    ],
)
def test_label_selectors(server: ApiServer, client: httpx.Client, selector: str, expected: str) -> None:
    """Labels are selected by key, by value and by set."""
    labels: dict[str, Object | None] = {"a": {"app": "web"}, "b": {"app": "db", "example.test/skip": ""}}
    server.put(*(service(name, labels=value) for name, value in (labels | {"c": {"app": ""}, "d": None}).items()))
    assert "".join(names(listed(client, labelSelector=selector))) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=a", "a"),
        ("metadata.name!=a", "bc"),
        ("metadata.namespace=default,metadata.name==b", "b"),
        ("spec.clusterIP!=None", "ac"),
        ("spec.clusterIP=None", "b"),
        ("spec.type=", "ab"),
        ("spec.type=NodePort", "c"),
    ],
)
def test_field_selectors(server: ApiServer, client: httpx.Client, selector: str, expected: str) -> None:
    """Services are selected by name, namespace, clusterIP and type; what isn't there is the empty text."""
    server.put(service("a"), service("b", clusterIP="None"), service("c", type="NodePort"))
    assert "".join(names(listed(client, fieldSelector=selector))) == expected


def test_a_large_body_is_compressed_for_who_asks(server: ApiServer, client: httpx.Client) -> None:
    """Above the threshold a list comes as gzip, if that is accepted, and smaller over the wire."""
    server.put(*(service(f"web-{number}") for number in range(100)))
    assert "content-encoding" not in client.get(SERVICES).headers
    server.settings.gzip_threshold = 1000
    plain = client.get(SERVICES, headers={"accept-encoding": "identity"})
    with client.stream("GET", SERVICES, headers={"accept-encoding": "gzip"}) as response:
        packed = b"".join(response.iter_raw())
    assert (response.headers["content-encoding"], gzip.decompress(packed)) == ("gzip", plain.content)
    sent = [request.bytes for request in server.requests(verb="list")]
    assert sent[1:] == [len(plain.content), len(packed)]


# Watches


def test_a_watch_begins_where_it_is_told(server: ApiServer, client: httpx.Client) -> None:
    """Every change after the given version comes once and in order, those before the watch began included."""
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
    """Without a version, or from 0, what there is comes as ADDED first."""
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
    """To it an object that no longer matches is DELETED, as it last matched, and one that now matches is ADDED."""
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
    """Who asks for bookmarks gets them again and again, as objects that are empty but for a newer resourceVersion."""
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
    """Nobody gets a bookmark who hasn't asked, and a bookmark of the version that the watch began with isn't sent."""
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
    """With sendInitialEvents what there is comes as ADDED, and then a bookmark that says so, however old the start."""
    revision = server.put(service("a"), service("b"))
    server.compact()
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    with watching(client, resourceVersion=1, **query) as events:
        assert [next(events)[:2] for _ in range(2)] == [("ADDED", "a"), ("ADDED", "b")]
        end = next(events)
    assert (end.type, end.version) == ("BOOKMARK", revision)
    assert end.object["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_watch_from_a_compacted_version_is_told_in_the_stream(server: ApiServer, client: httpx.Client) -> None:
    """Today's servers answer it with 200 and one ERROR event; older ones with a status of 410."""
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
    """Only so many changes of a resource are kept, whatever happens to others."""
    with ApiServer(history=2) as server, client_of(server) as client:
        first = server.put(service("a"))
        second = server.put(service("b"))
        server.put({"kind": "Node", "metadata": {"name": "n"}}, service("c"), service("d"))
        with watching(client, resourceVersion=second) as events:
            assert [next(events).name for _ in range(2)] == ["c", "d"]
        with watching(client, resourceVersion=first) as events:
            assert next(events).type == "ERROR"


def test_a_watch_from_the_future_waits_for_it(server: ApiServer, client: httpx.Client) -> None:
    """It is accepted and hears nothing, bookmarks included, of what happens before that version."""
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


# Restarts


def test_a_restart_cuts_all_connections(server: ApiServer, client: httpx.Client) -> None:
    """After a restart the server is where it was, with what it had, and a watch can go on."""
    server.put(service("a"))
    url = server.url
    with watching(client) as events, watching(client, resourceVersion=server.revision) as silent:
        assert next(events).name == "a"
        server.restart()
        for cut in (events, silent):
            with pytest.raises(httpx.ReadError):
                next(cut)
    assert server.url == url
    server.put(service("b"))
    with watching(client, resourceVersion=server.revision - 1) as events:
        assert next(events).name == "b"


def test_a_stopped_server_refuses_connections(server: ApiServer, client: httpx.Client) -> None:
    """While it is stopped nobody listens, and what is written then is there when it starts again."""
    listed(client)
    server.stop()
    with pytest.raises(httpx.ConnectError):
        client.get(SERVICES)
    server.put(service())
    server.start()
    server.start()
    assert names(listed(client)) == ["web"]


def test_a_restart_may_lose_the_history(server: ApiServer, client: httpx.Client) -> None:
    """Then a watch from before must list anew."""
    old = server.revision
    server.put(service())
    server.restart(keep_history=False)
    with watching(client, resourceVersion=old) as events:
        assert next(events).object["code"] == 410


def test_a_restart_may_turn_versions_back(server: ApiServer, client: httpx.Client) -> None:
    """As after a restored backup: no version is newer than that, and a watch from one that was hears nothing."""
    old = server.put(*(service(name) for name in "abcdef"))
    server.restart(revision=3)
    content = listed(client)
    assert content["metadata"]["resourceVersion"] == "3"
    assert {item["metadata"]["resourceVersion"] for item in content["items"]} == {"2", "3"}
    assert refusal(client.get(SERVICES, params={"resourceVersion": old})) == (504, "Timeout")
    with watching(client, resourceVersion=old, timeoutSeconds=1) as events:
        server.put(service("g"))
        assert short(events) == []
    assert server.objects("Service")[-1]["metadata"]["resourceVersion"] == "4"


# Who may do what


@pytest.fixture
def guarded() -> Iterator[ApiServer]:
    """A server with TLS that wants to know who it is."""
    with ApiServer(tls=True, authenticate=True) as server:
        yield server


def test_without_a_token_there_is_nothing(guarded: ApiServer) -> None:
    """Anything but the version wants a token that is good, and a bad one isn't even good for that."""
    with client_of(guarded) as client:
        assert refusal(client.get(SERVICES)) == (401, "Unauthorized")
        assert client.get(SERVICES, headers=bearer("guess")).status_code == 401
        assert client.get("/version").status_code == 200
        assert client.get("/version", headers=bearer("guess")).status_code == 401
        assert client.get(SERVICES, headers=bearer(guarded.token)).status_code == 200
    assert guarded.requests(status=200)[-1].user == "system:serviceaccount:kube-system:nftproxy"


def test_a_token_is_rotated(guarded: ApiServer) -> None:
    """After a rotation the old token is good for so long, the new one from now on, and a watch that runs goes on."""
    with client_of(guarded) as client:
        old = guarded.token
        client.headers.update(bearer(old))
        with watching(client) as events:
            new = guarded.rotate_token(grace=0.5)
            assert client.get(SERVICES).status_code == 200
            assert client.get(SERVICES, headers=bearer(new)).status_code == 200
            time.sleep(0.5)
            assert client.get(SERVICES).status_code == 401
            guarded.put(service())
            assert next(events).name == "web"
        guarded.expire_token()
        assert client.get(SERVICES, headers=bearer(new)).status_code == 401


def test_a_certificate_is_as_good_as_a_token(guarded: ApiServer, tmp_path: Path) -> None:
    """A client certificate of the server's authority says who the client is."""
    guarded.write_kubeconfig(tmp_path / "config", proof=Proof.CERTIFICATE, embed=False)
    with client_of(guarded, tmp_path) as client:
        assert client.get(SERVICES).status_code == 200
    assert guarded.requests()[-1].user == "kubernetes-admin"


def test_the_server_is_known_by_its_authority(guarded: ApiServer) -> None:
    """A client that trusts another authority doesn't talk to it."""
    with (
        ApiServer(tls=True) as other,
        client_of(other) as client,
        pytest.raises(httpx.ConnectError, match="CERTIFICATE"),
    ):
        client.get(f"{guarded.url}/version")


def test_what_no_rule_allows_is_forbidden(server: ApiServer, client: httpx.Client) -> None:
    """With rules, only what is in them is allowed, by group, resource and verb; the refusal says what was wanted."""
    server.rbac = {("", "services", "list"), ("discovery.k8s.io", "*", "*")}
    assert client.get(SERVICES).status_code == 200
    assert client.get(SLICES).status_code == 200
    assert client.get("/version").status_code == 200
    response = client.get(SERVICES, params={"watch": "1"})
    assert refusal(response) == (403, "Forbidden")
    assert response.json()["message"] == (
        'services is forbidden: User "system:anonymous" cannot watch resource "services" in API group "" '
        "at the cluster scope"
    )
    assert client.put(f"{WEB}/status", json={}).json()["message"].endswith(
        'cannot update resource "services/status" in API group "" in the namespace "default"'
    )  # fmt: skip


def test_rules_come_from_roles(server: ApiServer, client: httpx.Client) -> None:
    """Rules are read from ClusterRoles and Roles; names count for a list with a field selector, as in RBAC."""
    roles = """\
    kind: ClusterRole
    rules:
    - {apiGroups: [""], resources: [nodes], resourceNames: [node-a], verbs: [get, list, watch]}
    - {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
    - {nonResourceURLs: [/version], verbs: [get]}
    ---
    kind: Role
    metadata: {name: reader, namespace: shop}
    rules:
    - {apiGroups: [""], resources: [services], verbs: [list]}
    """
    assert Permission("events.k8s.io", "events", "create") in server.allow(*yaml.safe_load_all(textwrap.dedent(roles)))
    assert permissions_of([{"kind": "Service"}]) == frozenset()
    server.put({"kind": "Node", "metadata": {"name": "node-a"}})
    codes = {
        path: client.get(path).status_code
        for path in (
            "/api/v1/nodes",
            "/api/v1/nodes?fieldSelector=metadata.name%3Dnode-a",
            "/api/v1/nodes?fieldSelector=metadata.name%3Dnode-b",
            "/api/v1/nodes/node-a",
            SERVICES,
            "/api/v1/namespaces/shop/services",
        )
    }
    assert list(codes.values()) == [403, 200, 403, 200, 403, 200]


def test_a_service_account_is_written_as_kubelet_does(guarded: ApiServer, tmp_path: Path) -> None:
    """All files of a pod's service account change at once with the token, unless it is not yet published."""
    account = guarded.write_service_account(tmp_path / "account")
    assert (account / "token").read_text() == guarded.token
    assert (account / "ca.crt").read_bytes().startswith(b"-----BEGIN CERTIFICATE")
    assert (account / "namespace").read_text() == "kube-system"
    before = (account / "..data").readlink()
    guarded.rotate_token(publish=False)
    assert (account / "token").read_text() != guarded.token
    guarded.publish_token()
    assert (account / "token").read_text() == guarded.token
    assert (account / "..data").readlink() != before
    assert len(list(account.iterdir())) == 5
    assert guarded.environment == {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(guarded.port)}


# What it records, and where it runs


def test_every_request_is_recorded(server: ApiServer, client: httpx.Client) -> None:
    """A test can count requests by what they were, and see what was sent."""
    before = time.time()
    client.get(SERVICES, params={"limit": "5"}, headers={"user-agent": "me"})
    client.get(f"{WEB}/status")
    request, other = server.requests()
    assert (request.verb, request.resource, request.namespace, request.query) == (
        "list",
        "services",
        "",
        {"limit": "5"},
    )
    assert (request.status, request.peer, request.headers["user-agent"]) == (200, "127.0.0.1", "me")
    assert request.bytes == len(client.get(SERVICES).content)
    assert before <= request.time <= (request.ended or 0) <= time.time()
    assert (other.verb, other.resource, other.namespace, other.name) == ("get", "services/status", "default", "web")
    assert len(server.requests(verb="list", resource="services")) == 2
    server.forget_requests()
    assert server.requests() == []


def test_a_test_can_wait_for_requests(server: ApiServer, client: httpx.Client) -> None:
    """It is woken by what it waits for, and told what came instead if that doesn't come."""
    client.get(SERVICES)
    assert server.wait_for_requests(1, verb="list", timeout=0)[0].resource == "services"
    with pytest.raises(TimeoutError, match="list services"):
        server.wait_for_watches(1, timeout=0.05)
    with watching(client):
        server.wait_until(lambda: server.get("Service", "default", "web") is None and server.watches() == 1)


def test_both_families() -> None:
    """It listens on addresses of both families, with the same port, and with TLS under either name."""
    with ApiServer(hosts=["127.0.0.1", "::1"], tls=True) as server, client_of(server) as client:
        assert server.urls == (f"https://127.0.0.1:{server.port}", f"https://[::1]:{server.port}")
        assert [client.get(f"{url}/version").status_code for url in server.urls] == [200, 200]


def test_a_port_that_is_taken_is_an_error(server: ApiServer) -> None:
    """It says so, and leaves nothing behind."""
    with pytest.raises(OSError, match="in use"), ApiServer(port=server.port):
        pass


@pytest.fixture
def elsewhere() -> Iterator[Namespace]:
    """A network namespace with an address of its own."""
    try:
        made = Namespace("elsewhere")
    except LabError as error:
        pytest.skip(str(error))
    with made:
        made.ip("link set lo up", "address add 192.0.2.1/32 dev lo")
        yield made


def test_in_a_namespace(elsewhere: Namespace) -> None:
    """With sockets of a namespace the server is in there, and only there."""

    def status(url: str) -> int:
        return httpx.get(f"{url}/version", verify=False, trust_env=False, timeout=2.0).status_code

    with ApiServer(hosts=["192.0.2.1"], make_socket=elsewhere.socket) as server:
        assert elsewhere.call(status, server.url) == 200
        with pytest.raises(OSError, match="assign"):
            socket.create_server(("192.0.2.1", 0))


def test_as_a_process(tmp_path: Path) -> None:
    """It prints its URL, serves what is in the manifests, takes writes, writes credentials, and ends when told."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "a.yaml").write_text(yaml.safe_dump_all([service("a"), {"kind": "Pod", "metadata": {}}]))
    (tmp_path / "manifests" / "b.json").write_text('{"kind": "ServiceList", "items": [{"metadata": {"name": "b"}}]}')
    config = tmp_path / "config"
    command = [sys.executable, "-m", "tests.apiserver", "--manifests", str(tmp_path / "manifests")]
    with subprocess.Popen([*command, "--kubeconfig", str(config)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert yaml.safe_load(config.read_text())["clusters"][0]["cluster"]["server"] == url
        with httpx.Client(base_url=url, verify=False, trust_env=False) as client:
            assert names(listed(client)) == ["a", "b"]
            assert client.put(WEB.replace("web", "b"), json=service("b")).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0


def test_manifests_name_their_kinds(tmp_path: Path) -> None:
    """Items of a typed list get the kind and version of the list, empty documents are nothing."""
    (tmp_path / "x.yml").write_text("---\n---\nkind: NodeList\napiVersion: v1\nitems: [{metadata: {name: n}}]\n")
    assert list(documents(tmp_path)) == [{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}}]
