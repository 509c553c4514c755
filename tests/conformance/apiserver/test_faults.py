"""Each fault strikes the requests that it names, as often as it says, and no other request."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import httpx
import pytest
from nftproxy_conformance.apiserver import ApiServer, faults

from tests.conformance.apiserver.clients import SERVICES, listed, names, refusal, service, short, watching
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize("code", [401, 403, 404, 409, 410, 429, 500, 503])
def test_a_status_on_demand(server: ApiServer, client: httpx.Client, code: int) -> None:
    """The next requests that match get the status, as often as requested, and other requests are right."""
    server.faults.add(faults.Fault(faults.Respond(code, "on demand"), verb="list", resource="services", count=2))
    assert client.get("/api/v1/nodes").status_code == 200
    assert [client.get(SERVICES).status_code for _ in range(3)] == [code, code, 200]
    assert server.faults.waiting == ()


def test_retry_after_is_in_header_and_status(server: ApiServer, client: httpx.Client) -> None:
    """A 429 says when to come again, and may be plain text as from kube-apiserver's queues."""
    server.faults.add(
        faults.Fault(faults.Respond(429, retry_after=3)),
        faults.Fault(faults.Respond(429, retry_after=1, body=b"Too many requests\n")),
    )
    response = client.get(SERVICES)
    assert refusal(response) == (429, "TooManyRequests")
    assert (response.headers["retry-after"], response.json()["details"]) == ("3", {"retryAfterSeconds": 3})
    response = client.get(SERVICES)
    assert (response.status_code, response.text, response.headers["retry-after"]) == (429, "Too many requests\n", "1")


def test_a_fault_is_about_some_requests(server: ApiServer, client: httpx.Client) -> None:
    """Faults are chosen by verb, resource and anything else, may spare the first, and can be called off."""
    server.put(*(service(name) for name in "abc"))
    server.faults.add(
        faults.Fault(faults.Respond(500), verb="watch"),
        faults.Fault(faults.Respond(501), resource="/version"),
        faults.Fault(faults.Respond(502), when=lambda request: "continue" in request.query),
        faults.Fault(faults.Respond(503), verb="list", skip=1, count=None),
    )
    assert client.get("/version").status_code == 501
    assert client.get("/version").status_code == 200
    token = listed(client, limit=1)["metadata"]["continue"]
    assert client.get(SERVICES, params={"continue": token}).status_code == 502
    assert client.get(SERVICES, params={"watch": "1"}).status_code == 500
    assert [client.get(SERVICES).status_code for _ in range(3)] == [503] * 3
    assert [fault.action for fault in server.faults.waiting] == [faults.Respond(503)]
    server.faults.clear()
    assert client.get(SERVICES).status_code == 200


def test_a_slow_answer(server: ApiServer, client: httpx.Client) -> None:
    """An answer may be late, and may come slowly, and another fault may be on top."""
    server.put(*(service(f"web-{number}") for number in range(30)))
    server.faults.add(faults.Fault(faults.Slow(before=0.1, during=0.2), count=2), faults.Fault(faults.Respond(500)))
    begin = time.monotonic()
    assert client.get(SERVICES).status_code == 500
    assert time.monotonic() - begin > 0.3
    begin = time.monotonic()
    with client.stream("GET", SERVICES) as response:
        assert len(list(response.iter_raw())) > 1
    assert time.monotonic() - begin > 0.3
    assert server.faults.waiting == ()


def patience(error: type[Exception] | None) -> float:
    """Seconds to wait for an answer: few only if none is to come."""
    return 0.5 if error is httpx.ReadTimeout else PATIENCE


def collect(client: httpx.Client, into: list[bytes], timeout: float) -> None:
    """Read a list as far as it comes."""
    with client.stream("GET", SERVICES, timeout=timeout) as response:
        for piece in response.iter_raw():
            into += [piece]


@pytest.mark.parametrize(
    ("then", "error"),
    [
        (faults.Parting.END, None),
        (faults.Parting.CLOSE, httpx.RemoteProtocolError),
        (faults.Parting.RESET, httpx.ReadError),
        (faults.Parting.HANG, httpx.ReadTimeout),
    ],
)
@pytest.mark.parametrize("size", [1, 30])
def test_a_list_that_stops_in_the_middle(
    server: ApiServer, client: httpx.Client, then: faults.Parting, error: type[Exception] | None, size: int
) -> None:
    """Half of the JSON comes, chunked or not, and then an end, the connection's end, a reset, or nothing."""
    server.put(*(service(f"web-{number}") for number in range(size)))
    whole = client.get(SERVICES).content
    server.faults.add(faults.Fault(faults.Truncate(then=then)))
    got: list[bytes] = []
    with nullcontext() if error is None else pytest.raises(error):
        collect(client, got, patience(error))
    # A reset may overtake earlier data
    assert b"".join(got) == whole[: len(whole) // 2] or then is faults.Parting.RESET


@pytest.mark.parametrize(
    ("action", "error"), [(faults.Reset(), httpx.ReadError), (faults.BlackHole(), httpx.ReadTimeout)]
)
def test_no_answer_at_all(
    server: ApiServer, client: httpx.Client, action: faults.Action, error: type[Exception]
) -> None:
    """A request's connection may be reset, or stay silent.  The next request is answered."""
    server.faults.add(faults.Fault(action))
    with pytest.raises(error):
        client.get(SERVICES, timeout=patience(error))
    assert listed(client)["items"] == []
    assert [request.status for request in server.requests()] == [0, 200]


def test_a_page_that_fails(server: ApiServer, client: httpx.Client) -> None:
    """A list can fail on its third page, and be gone on with from there."""
    server.put(*(service(name) for name in "abc"))
    server.faults.add(faults.Fault(faults.Respond(500), verb="list", skip=2))
    token, codes = "", []
    for _ in range(4):
        response = client.get(SERVICES, params={"limit": 1, "continue": token})
        codes.append(response.status_code)
        token = response.json()["metadata"].get("continue", token)
    assert codes == [200, 200, 500, 200]


def test_a_server_that_lags_behind(server: ApiServer, client: httpx.Client) -> None:
    """A list may come from an earlier state, with its earlier version."""
    then = server.put(service("a"))
    server.put(service("b"))
    server.faults.add(faults.Fault(faults.Stale(then)))
    old = listed(client, resourceVersion=0)
    assert (names(old), old["metadata"]["resourceVersion"]) == (["a"], str(then))
    assert names(listed(client, resourceVersion=0)) == ["a", "b"]


def test_a_watch_falls_silent(server: ApiServer, client: httpx.Client) -> None:
    """From one moment on it gets no events, no bookmarks and no end, and its connection stays open."""
    server.settings.bookmark_interval = 0.02
    client.timeout = httpx.Timeout(0.5)
    query: dict[str, Any] = {"allowWatchBookmarks": "true", "timeoutSeconds": 2}
    with watching(client, **query) as silent, watching(client, **query) as other:
        assert [next(events).type for events in (silent, other)] == ["BOOKMARK"] * 2
        server.faults.add(faults.Fault(faults.BlackHole(), verb="watch"))
        server.put(service())
        assert ("ADDED", "web") in short(other)
        server.wait_for_watches(1)
        with pytest.raises(httpx.ReadTimeout):
            assert {event.type for event in silent} == set()


def test_watches_that_run_are_struck_first(server: ApiServer, client: httpx.Client) -> None:
    """A fault strikes the oldest watch that matches, and then new watches until its count is used up."""
    start = server.revision
    with watching(client, resourceVersion=start) as one:
        server.faults.add(faults.Fault(faults.EndWatch(), resource="services", count=2))
        assert short(one) == []
    with watching(client, resourceVersion=start) as two:
        assert short(two) == []
    with watching(client, resourceVersion=start) as three:
        server.put(service())
        assert next(three).name == "web"


def test_every_watch_ends_at_once(server: ApiServer, client: httpx.Client) -> None:
    """Each try of a watch can be accepted and ended cleanly."""
    server.faults.add(faults.Fault(faults.EndWatch(), count=None))
    for _ in range(3):
        with watching(client) as events:
            assert short(events) == []


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (faults.Reset(), httpx.ReadError),
        (faults.Inject(b'{"type":', faults.Parting.CLOSE), httpx.RemoteProtocolError),
    ],
)
def test_a_watch_is_cut(server: ApiServer, client: httpx.Client, action: faults.Action, error: type[Exception]) -> None:
    """The connection of a watch that runs is reset, or closed in the middle of a line."""
    with watching(client) as events:
        server.faults.add(faults.Fault(action, verb="watch"))
        with pytest.raises(error):
            next(events)


def test_half_a_line(server: ApiServer, client: httpx.Client) -> None:
    """The next event is cut in the middle and the stream ends, or its connection does.  The event isn't sent again."""
    start = server.revision
    for fault in (faults.CutLine(), faults.CutLine(faults.Parting.CLOSE)):
        with client.stream("GET", SERVICES, params={"watch": "1", "resourceVersion": start}) as response:
            server.faults.add(faults.Fault(fault))
            server.put(service(type=fault.then.value))
            lines = response.iter_lines()
            if fault.then is faults.Parting.CLOSE:
                assert len(next(lines)) > 100  # of the first change
                with pytest.raises(httpx.RemoteProtocolError):
                    next(lines)
            else:
                (line,) = lines
                assert line.startswith('{"type":"ADDED","object":{')
                assert line.count("{") > line.count("}")
        server.wait_for_watches(0)


def test_events_that_no_one_expects(server: ApiServer, client: httpx.Client) -> None:
    """An unknown type comes among known types.  An ERROR of any code ends the stream."""
    with watching(client) as events:
        server.faults.add(faults.Fault(faults.unknown_event()))
        server.put(service())
        server.faults.add(faults.Fault(faults.error_event(500, "etcd is gone")))
        surprise, added, error = events
    assert (surprise.type, surprise.object["kind"], added.type) == ("SURPRISE", "Surprise", "ADDED")
    assert (error.type, error.object["code"], error.object["reason"]) == ("ERROR", 500, "InternalError")


def test_events_twice_and_in_the_wrong_order(server: ApiServer, client: httpx.Client) -> None:
    """The next event comes twice.  Then two events come in the wrong order, with falling versions."""
    with watching(client) as events:
        server.faults.add(faults.Fault(faults.Duplicate()), faults.Fault(faults.Swap()))
        server.put(*(service(name) for name in "abcd"))
        seen = [next(events) for _ in range(5)]
    assert [event.name for event in seen] == ["a", "a", "c", "b", "d"]
    assert seen[2].version > seen[3].version
