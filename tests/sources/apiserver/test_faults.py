"""Whatever goes wrong with lists and watches, what is known is right afterwards, and no server is overrun."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from nftproxy.lab.apiserver import ApiServer, faults
from nftproxy.model.events import Listed
from nftproxy.sources.api_connection import error_text
from nftproxy.sources.apiserver import Cluster
from tests.sources.apiserver.following import PATIENCE, RESOURCES, SOON, change, following, reach, service

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
PATIENT = structs.replace(PATIENCE, silence=SOON)  # no watch is begun anew because the machine is busy
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
    """One test for each fault."""
    return pytest.mark.parametrize("action", table.values(), ids=table.keys())


@with_each(STREAM_FAULTS)
def test_faults_in_watches(server: ApiServer, tmp_path: Path, action: faults.Action) -> None:
    """Whatever happens to watches that run, changes meanwhile are not missed, and other watches not disturbed."""
    is_silent = action in SILENT_FAULTS

    async def run() -> None:
        async with following(server, reach(server, tmp_path, patience=PATIENCE if is_silent else PATIENT)) as seen:
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

    asyncio.run(run())


@with_each(ANSWER_FAULTS)
def test_faults_of_watches(server: ApiServer, tmp_path: Path, action: faults.Action) -> None:
    """Whatever a watch is answered, a few times, it runs in the end, from where the last one was."""

    async def run() -> None:
        async with following(server, reach(server, tmp_path, patience=PATIENT)) as seen:
            await seen.right()
            server.faults.add(faults.Fault(action, verb="watch", resource="services", count=3))
            server.faults.add(faults.Fault(faults.EndWatch(), verb="watch", resource="services"))
            change(server)
            await seen.right()
            change(server, start=200)
            await seen.right()
            assert seen.requests(verb="watch", resource="endpointslices") == 1

    asyncio.run(run())


@with_each(LIST_FAULTS | {"stale": faults.Stale(4)})
def test_faults_of_first_lists(server: ApiServer, cluster: Cluster, action: faults.Action) -> None:
    """Whatever the answer to a first list is, a few times, there is no event before the whole of it has come."""

    async def run() -> None:
        for plural in ("services", "endpointslices"):
            server.faults.add(faults.Fault(action, verb="list", resource=plural, count=2))
        async with following(server, cluster) as seen:
            await seen.ready()
            ((first, *more),) = seen.batches["services"][:1]
            assert isinstance(first, Listed)
            assert not more
            assert isinstance(action, faults.Stale) or len(first.objects) == 5
            await seen.right()

    asyncio.run(run())


@with_each(LIST_FAULTS)
def test_faults_of_later_lists(server: ApiServer, cluster: Cluster, action: faults.Action) -> None:
    """Whatever a later list is answered, a few times, what is known stays until the whole of the new one has come."""

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            known = set(seen.state.services)
            server.faults.add(faults.Fault(action, verb="list", resource="services", count=2))
            server.faults.add(faults.Fault(faults.error_event(410), verb="watch", resource="services"))
            server.put(service(50))
            await seen.until(lambda: len(seen.state.services) == 6)
            assert set(seen.state.services) > known
            await seen.right()
            assert all(len(event.objects) >= 5 for [event] in seen.batches["services"] if isinstance(event, Listed))

    asyncio.run(run())


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


@pytest.mark.parametrize("fault", EVERLASTING.values(), ids=EVERLASTING.keys())
def test_no_hot_loop(server: ApiServer, cluster: Cluster, fault: faults.Fault) -> None:
    """A fault that doesn't end costs a request or two for each pause, not more; and when it ends, all is well."""
    server.faults.add(fault)

    async def run() -> None:
        async with following(server, cluster) as seen:
            began = time.monotonic()
            await asyncio.sleep(0.6)
            await seen.until(lambda: seen.requests(resource="services") >= 4)
            # Pauses are at least 0.01, 0.02, 0.04, 0.08, 0.1, 0.1, ... seconds; a listing may come with each watch
            assert seen.requests(resource="services") <= 2 * (5 + (time.monotonic() - began) / 0.1)
            change(server)
            server.faults.clear()
            await seen.right()

    asyncio.run(run())


def test_retry_after(server: ApiServer, cluster: Cluster) -> None:
    """A server that asks for a second of peace gets it, for lists and for watches, and a little more."""
    for verb in ("list", "watch"):
        server.faults.add(faults.Fault(faults.Respond(429, retry_after=1), verb=verb, resource="services"))

    async def run() -> None:
        async with following(server, cluster, [RESOURCES[2]]) as seen:
            await seen.until(lambda: server.watches() == 1)

    asyncio.run(run())
    for verb in ("list", "watch"):
        refused, heard = server.requests(verb=verb)
        assert 1.0 <= heard.time - refused.time < 1.5


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (httpx.ReadError("lost"), OSError("reset"), "ReadError: lost"),
        (httpx.ReadError(""), OSError("reset"), "OSError: reset"),
        (httpx.ReadError(""), None, "ReadError"),
    ],
    ids=["its own", "its cause's", "none"],
)
def test_a_fault_is_never_logged_without_words(error: Exception, cause: Exception | None, words: str) -> None:
    """The log has an error's words, or its cause's, or where there are none its name alone."""
    error.__cause__ = cause
    assert error_text(error) == words


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


def test_pages(server: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in pages is one event."""
    pages(server, monkeypatch)

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            assert len(seen.batches["services"]) == 1

    asyncio.run(run())
    asked = ["continue" in request.query for request in server.requests(verb="list", resource="services")]
    assert asked == [False, False, True, True]


@pytest.mark.parametrize(
    "action",
    [faults.Respond(500), faults.Respond(429), faults.Reset(), faults.BlackHole(), faults.Truncate()],
    ids=repr,
)
def test_a_page_fails(
    server: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, action: faults.Action
) -> None:
    """A page that fails once is asked for again, and the pages before it are not."""
    pages(server, monkeypatch)
    server.faults.add(
        faults.Fault(action, verb="list", resource="services", when=lambda request: "continue" in request.query)
    )

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            assert len(seen.batches["services"]) == 1

    asyncio.run(run())
    asked = ["continue" in request.query for request in server.requests(verb="list", resource="services")]
    assert asked == [False, False, True, True, True]


def test_a_page_has_expired(server: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are gone are given up, for a list of everything at once, without what was deleted meanwhile."""
    pages(server, monkeypatch)

    def compacted(request: Any) -> bool:
        if "continue" in request.query:
            server.delete("Service", "shop", "s0")
            server.compact()
        return False

    server.faults.add(faults.Fault(faults.Respond(500), verb="list", resource="services", when=compacted))

    async def run() -> None:
        async with following(server, cluster) as seen:
            await seen.right()
            assert len(seen.batches["services"]) == 1
            assert len(seen.state.services) == 4

    asyncio.run(run())
    last = server.requests(verb="list", resource="services")[-1]
    assert not {"limit", "continue", "resourceVersion"} & last.query.keys()
