"""The test API server lists as a real server does: in pages, of the past, by selectors, and compressed."""

from __future__ import annotations

import gzip
import threading

import httpx
import pytest
from nftproxy_conformance.apiserver import ApiServer

from tests.conformance.apiserver.clients import SERVICES, Object, listed, names, refusal, service


def test_pages_are_of_one_state(server: ApiServer, client: httpx.Client) -> None:
    """All pages show the state and the version of the first page, despite changes."""
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
    """After a compaction a token is refused with 410, with another token that goes on with the present state."""
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
    """An exact version is listed as it was, while it is kept.  A version that is not older may be newer."""
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


def test_a_list_of_the_future_waits_for_it(server: ApiServer, client: httpx.Client) -> None:
    """A list of a version that is yet to come is answered when it has come."""
    revision = server.put(service("a")) + 1
    timer = threading.Timer(0.1, lambda: server.put(service("b")))
    timer.start()
    assert names(listed(client, resourceVersion=revision)) == ["a", "b"]
    timer.join()


def test_a_list_of_the_future_times_out(server: ApiServer, client: httpx.Client) -> None:
    """A version that doesn't come is answered with 504 and the cause that clients look for."""
    server.settings.future_wait = 0.1
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
        ({"watch": "1", "resourceVersion": "x"}, 500),
        ({"labelSelector": "a b"}, 400),
        ({"labelSelector": "a in b"}, 400),
        ({"fieldSelector": "spec.externalName=x"}, 400),
        ({"fieldSelector": "metadata.name"}, 400),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(client: httpx.Client, query: dict[str, str], code: int) -> None:
    """Options that can't be read or contradict each other are refused as kube-apiserver does."""
    response = client.get(SERVICES, params=query)
    assert (response.status_code, response.json()["code"]) == (code, code)


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
    """Services are selected by name, namespace, clusterIP and type.  A missing field is the empty text."""
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
