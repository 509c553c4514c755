"""After any fault of lists and watches, the state is right, and no server is overrun."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from nftproxy_conformance.apiserver import ApiServer, faults

from nftproxy.model.events import Listed
from nftproxy.sources.api_client import ApiClient
from nftproxy.sources.api_connection import Timeouts
from nftproxy.sources.failure_texts import failure_text
from tests.sources.api_client.following import BRIEF, RESOURCES, change, following, listings, reach, service
from tests.support.selection import every
from tests.support.waiting import PATIENCE

# ---- faults --------------------------------------------------------------------------------------------------------

STREAM_FAULTS = {
    "ends": faults.EndWatch(),
    "reset": faults.Reset(),
    "black hole": faults.BlackHole(),
    "line cut": faults.CutLine(),
    "line cut, closed": faults.CutLine(faults.Parting.CLOSE),
    "line cut, silent": faults.CutLine(faults.Parting.HANG),
    "line cut, reset": faults.CutLine(faults.Parting.RESET),
    "twice": faults.Duplicate(),
    "out of order": faults.Swap(),
    "410": faults.error_event(410, reason="Expired"),
    "410 and on": faults.Inject(faults.error_event(410).data),
    "429": faults.error_event(429),
    "500": faults.error_event(500),
    "403": faults.error_event(403),
    "0": faults.Inject(b'{"type":"ERROR","object":{"kind":"Status"}}\n'),
    "ERROR of nothing": faults.Inject(b'{"type":"ERROR","object":null}\n'),
    "unknown type": faults.unknown_event(),
    "HTML": faults.Inject(b"<html>\n"),
    "not UTF-8": faults.Inject(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}\n'),
    "no object": faults.Inject(b'{"type":"ADDED"}\n'),
    "bad object": faults.Inject(b'{"type":"ADDED","object":[]}\n'),
    "blank": faults.Inject(b"\n\r\n"),
}
SILENT_FAULTS = STREAM_FAULTS["black hole"], STREAM_FAULTS["line cut, silent"]
ANSWER_FAULTS = {
    **{str(code): faults.Respond(code) for code in (400, 401, 403, 404, 410, 422, 429, 500, 503, 504)},
    "429 of a queue": faults.Respond(429, body=b"Too many requests\n"),
    "502 of a proxy": faults.Respond(502, body=b"<html>Bad Gateway</html>"),
    "slow": faults.Slow(before=0.2),
    "too slow": faults.Slow(before=0.6),
    "reset": faults.Reset(),
}
LIST_FAULTS = ANSWER_FAULTS | {
    "black hole": faults.BlackHole(),
    "HTML": faults.Respond(200, body=b"<html>Welcome</html>"),
    "no list": faults.Respond(200, body=b"{}"),
    "another list": faults.Respond(200, body=b'{"kind":"List","metadata":{"resourceVersion":"1"},"items":[]}'),
    "cut": faults.Truncate(then=faults.Parting.END),
    "cut, closed": faults.Truncate(then=faults.Parting.CLOSE),
    "cut, silent": faults.Truncate(then=faults.Parting.HANG),
    "slowly": faults.Slow(during=0.3),
}


def with_each(table: dict[str, Any]) -> pytest.MarkDecorator:
    """A test for each fault, by default for every third."""
    return pytest.mark.parametrize("action", every(3, list(table), list(table.values())))


@with_each(STREAM_FAULTS)
async def test_faults_in_watches(server: ApiServer, tmp_path: Path, action: faults.Action) -> None:
    """In spite of any fault in running watches, no changes are missed, and other watches aren't disturbed."""
    is_silent = action in SILENT_FAULTS
    async with following(server, reach(server, tmp_path, patience=BRIEF if is_silent else None)) as seen:
        await seen.right()
        server.faults.add(
            *(faults.Fault(action, verb="watch", resource=name) for name in ("services", "endpointslices"))
        )
        change(server)
        await seen.right()
        change(server, start=200)
        await seen.right()
        assert seen.requests(verb="watch", resource="nodes") == 1 or is_silent, "a busy server may be silent, too"
        assert 1 <= seen.requests(verb="watch", resource="services") <= 4


@with_each(ANSWER_FAULTS)
async def test_faults_of_watches(server: ApiServer, cluster: ApiClient, action: faults.Action) -> None:
    """After any answers to a watch, it runs in the end, from where the last watch ended."""
    async with following(server, cluster) as seen:
        await seen.right()
        server.faults.add(faults.Fault(action, verb="watch", resource="services", count=3))
        server.faults.add(faults.Fault(faults.EndWatch(), verb="watch", resource="services"))
        change(server)
        await seen.right()
        change(server, start=200)
        await seen.right()
        assert seen.requests(verb="watch", resource="endpointslices") == 1


@with_each(LIST_FAULTS | {"stale": faults.Stale(4)})
async def test_faults_of_first_lists(server: ApiServer, tmp_path: Path, action: faults.Action) -> None:
    """After any answers to a first list, there is no event before the whole list has come."""
    for plural in ("services", "endpointslices"):
        server.faults.add(faults.Fault(action, verb="list", resource=plural, count=2))
    async with following(server, reach(server, tmp_path, patience=BRIEF)) as seen:
        await seen.ready()
        ((first, *more),) = seen.batches["services"][:1]
        assert isinstance(first, Listed)
        assert not more
        assert isinstance(action, faults.Stale) or len(first.objects) == 5
        await seen.right()


@with_each(LIST_FAULTS)
async def test_faults_of_later_lists(server: ApiServer, tmp_path: Path, action: faults.Action) -> None:
    """After any answers to a later list, the known objects stay until the whole new list has come."""
    async with following(server, reach(server, tmp_path, patience=BRIEF)) as seen:
        await seen.right()
        known = set(seen.state.services)
        server.faults.add(faults.Fault(action, verb="list", resource="services", count=2))
        server.faults.add(faults.Fault(faults.error_event(410), verb="watch", resource="services"))
        server.put(service(50))
        await seen.until(lambda: len(seen.state.services) == 6)
        assert set(seen.state.services) > known
        await seen.right()
        assert all(len(event.objects) >= 5 for [event] in seen.batches["services"] if isinstance(event, Listed))


EVERLASTING = {
    "list 500": faults.Fault(faults.Respond(500), verb="list", count=None),
    "list 410": faults.Fault(faults.Respond(410), verb="list", count=None),
    "list 404": faults.Fault(faults.Respond(404), verb="list", resource="services", count=None),
    "list reset": faults.Fault(faults.Reset(), verb="list", count=None),
    "all 401": faults.Fault(faults.Respond(401), count=None),
    "all 403": faults.Fault(faults.Respond(403), count=None),
    "all 429": faults.Fault(faults.Respond(429), count=None),
    "watch 410": faults.Fault(faults.Respond(410), verb="watch", count=None),
    "watch 404": faults.Fault(faults.Respond(404), verb="watch", count=None),
    "watch 500": faults.Fault(faults.Respond(500), verb="watch", count=None),
    "ERROR 410": faults.Fault(faults.error_event(410), verb="watch", count=None),
    "ERROR 500": faults.Fault(faults.error_event(500), verb="watch", count=None),
    "ends": faults.Fault(faults.EndWatch(), verb="watch", count=None),
    "HTML": faults.Fault(faults.Inject(b"<html>\n"), verb="watch", count=None),
    "reset": faults.Fault(faults.Reset(), verb="watch", count=None),
}


@pytest.mark.parametrize("fault", every(3, list(EVERLASTING), list(EVERLASTING.values())))
async def test_no_hot_loop(server: ApiServer, cluster: ApiClient, fault: faults.Fault) -> None:
    """A lasting fault costs a request or two for each pause, not more.  When it ends, the state is right."""
    server.faults.add(fault)
    async with following(server, cluster) as seen:
        began = time.monotonic()
        await asyncio.sleep(0.6)
        await seen.until(lambda: seen.requests(resource="services") >= 4)
        # Pauses are at least 0.01, 0.02, 0.04, 0.08, 0.1, 0.1, ... seconds.  A listing may come with each watch
        assert seen.requests(resource="services") <= 2 * (5 + (time.monotonic() - began) / 0.1)
        change(server)
        server.faults.clear()
        await seen.right()


async def test_retry_after(server: ApiServer, cluster: ApiClient) -> None:
    """A server that asks for a second without requests gets it, for lists and for watches."""
    for verb in ("list", "watch"):
        server.faults.add(faults.Fault(faults.Respond(429, retry_after=1), verb=verb, resource="services"))
    async with following(server, cluster, [RESOURCES[2]]) as seen:
        await seen.until(lambda: server.watches() == 1)
    for refused, heard in (listings(server, "services"), server.requests(verb="watch")):
        assert heard.time - refused.time >= 1.0


def hang(server: ApiServer) -> contextlib.ExitStack:
    """Replace a server by a full queue of connections: further packets to it are dropped, as by a firewall."""
    server.stop()
    held = contextlib.ExitStack()
    held.enter_context(socket.create_server(("127.0.0.1", server.port), backlog=0))
    for _ in range(3):
        waiting = held.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(("127.0.0.1", server.port))
    return held


def strike(action: faults.Action, verb: str) -> Callable[[ApiServer], None]:
    """Strike every request of a verb."""
    return lambda server: server.faults.add(faults.Fault(action, verb=verb, count=None))


FOR_LONG = Timeouts(connect=PATIENCE)
"""Only a fault ends a request.  The log doesn't have a second reason soon after the first."""
HARM: dict[str, tuple[Callable[[ApiServer], object], Timeouts, str]] = {
    "refused": (ApiServer.stop, FOR_LONG, "no connection to {host}: Connection refused"),
    "hanging": (hang, Timeouts(connect=0.5), "no connection to {host} within 0.5 s"),
    "reset": (strike(faults.Reset(), "list"), FOR_LONG, "the connection to {host} broke: Connection reset by peer"),
    "silent list": (
        strike(faults.BlackHole(), "list"),
        Timeouts(connect=PATIENCE, answer=0.3),
        "no data from {host} for 0.3 s",
    ),
    # the file and its time follow
    "unauthorized": (strike(faults.Respond(401), "list"), FOR_LONG, "401 Unauthorized: 'a fault on demand': /"),
    "forbidden": (strike(faults.Respond(403), "watch"), FOR_LONG, "403 Forbidden: 'a fault on demand'"),
}


@pytest.mark.parametrize(("harm", "patience", "words"), HARM.values(), ids=HARM.keys())
async def test_failures_in_words(
    server: ApiServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[ApiServer], object],
    patience: Timeouts,
    words: str,
) -> None:
    """The log names the server, the fault of its answer, and how long the agent has waited for it."""
    caplog.set_level(logging.INFO, logger="nftproxy")
    harmed = harm(server)
    expected = f"services: {words.format(host=f'127.0.0.1:{server.port}')}"
    async with following(server, reach(server, tmp_path, patience=patience), [RESOURCES[2]]) as seen:
        await seen.until(lambda: any(expected in line and "; trying again in" in line for line in caplog.messages))
        if isinstance(harmed, contextlib.ExitStack):
            harmed.close()
        server.faults.clear()
        server.start()
        await seen.until(lambda: server.watches() == 1)  # no connection is cut while it is made
    assert "Cancel" not in caplog.text


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (httpx.ReadError("lost"), None, "the connection to a:1 broke: lost"),
        (httpx.ReadError(""), OSError("reset"), "the connection to a:1 broke: reset"),
        (httpx.ReadError(""), asyncio.CancelledError("a scope"), "the connection to a:1 broke: ReadError"),
        (httpx.ConnectError("all failed"), OSError(113, "No route to host"), "no connection to a:1: No route to host"),
        (TimeoutError(), None, "a:1 took longer than 120 s for an answer"),
        (ConnectionError("no credentials: x"), OSError(2, "No such file"), "no credentials: x"),
    ],
    ids=["its own", "its cause's", "none", "the system's", "a long answer", "ours"],
)
def test_a_fault_is_never_logged_without_words(error: Exception, cause: BaseException | None, words: str) -> None:
    """The log has the message of the system, the error or its cause, and never that of a cancelled task."""
    error.__cause__ = cause
    assert failure_text(error, "a:1", Timeouts()) == words


# ---- listing in pages ----------------------------------------------------------------------------------------------


def pages(server: ApiServer, monkeypatch: pytest.MonkeyPatch, *more: faults.Fault) -> None:
    """Have Services listed in pages of two: the server has no cache to list from."""
    monkeypatch.setattr("nftproxy.api.reflector.PAGE", 2)
    server.faults.add(
        faults.Fault(
            faults.Respond(410),
            verb="list",
            resource="services",
            when=lambda request: "resourceVersion" in request.query,
        )
    )
    server.faults.add(*more)


async def test_pages(server: ApiServer, cluster: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in pages is a single event."""
    pages(server, monkeypatch)
    async with following(server, cluster) as seen:
        await seen.right()
        assert len(seen.batches["services"]) == 1
    await cluster.aclose()
    asked = ["continue" in request.query for request in server.requests(verb="list", resource="services")]
    assert asked == [False, False, True, True]


@pytest.mark.parametrize(
    "action",
    [faults.Respond(500), faults.Respond(429), faults.Reset(), faults.BlackHole(), faults.Truncate()],
    ids=repr,
)
async def test_a_page_fails(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: faults.Action
) -> None:
    """A page that fails once is asked for again, and the pages before it are not."""
    patience = Timeouts(answer=1.0) if isinstance(action, faults.BlackHole) else None
    pages(server, monkeypatch)
    server.faults.add(
        faults.Fault(action, verb="list", resource="services", when=lambda request: "continue" in request.query)
    )
    async with following(server, reach(server, tmp_path, patience=patience)) as seen:
        await seen.right()
        assert len(seen.batches["services"]) == 1
    asked = ["continue" in request.query for request in server.requests(verb="list", resource="services")]
    assert asked == [False, False, True, True, True]


async def test_a_page_has_expired(server: ApiServer, cluster: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that have expired are given up, for a list of everything at once, without the objects deleted meanwhile."""
    pages(server, monkeypatch)

    def compacted(request: Any) -> bool:
        if "continue" in request.query:
            server.delete("Service", "shop", "s0")
            server.compact()
        return False

    server.faults.add(faults.Fault(faults.Respond(500), verb="list", resource="services", when=compacted))
    async with following(server, cluster) as seen:
        await seen.right()
        assert len(seen.batches["services"]) == 1
        assert len(seen.state.services) == 4
    last = server.requests(verb="list", resource="services")[-1]
    assert not {"limit", "continue", "resourceVersion"} & last.query.keys()
