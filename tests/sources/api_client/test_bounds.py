"""Actions that an API server, or an impostor, can't cause: a redirection elsewhere, or reading for ever."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.faults import Endless, Fault, Respond, Slow

from nftproxy.model.errors import Unavailable
from nftproxy.model.events import Listed
from nftproxy.sources.api_client import ApiClient
from nftproxy.sources.api_connection import Timeouts
from tests.sources.api_client.following import NODE, RESOURCES, TIMES, change, following, listings, reach, service
from tests.support.waiting import until

BUFFERS = 8 * 2**20
"""Bytes that may be on their way between two processes: TCP grows its buffers up to 6 MiB (tcp_rmem, tcp(7))."""


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("tls", [True, False], ids=["https", "http"])
async def test_no_redirection_is_followed(
    server: ApiServer, cluster: ApiClient, caplog: pytest.LogCaptureFixture, tls: bool, code: int, verb: str
) -> None:
    """A redirection, with TLS or without, is not followed.  It is logged once, and the request is retried later."""
    with ApiServer(tls=tls) as stranger:
        target = f"{stranger.url}/api/v1/services"
        server.faults.add(Fault(Respond(code, body=b"", location=target), verb=verb, resource="services"))
        async with following(server, cluster) as seen:
            await seen.right()
        assert not server.faults.waiting
        assert stranger.requests() == []
    assert caplog.text.count(f"services: {code}: it redirects to '{target[:20]}") == 1


async def test_not_even_to_itself(server: ApiServer, cluster: ApiClient) -> None:
    """A redirection to the same server isn't followed either: no API server has a reason for it."""
    server.faults.add(Fault(Respond(307, body=b"", location="/api/v1/nodes"), verb="list", resource="services"))
    async with following(server, cluster) as seen:
        await seen.right()
    assert [each.status for each in listings(server, "services")] == [307, 200]


async def test_events_are_not_redirected(server: ApiServer, cluster: ApiClient) -> None:
    """Nor does an Event, with the token, go where an answer points."""
    with ApiServer() as stranger:
        server.faults.add(Fault(Respond(307, body=b"", location=f"{stranger.url}/x"), verb="create"))
        failure = await cluster.send_event("default", {})
        assert failure is not None
        assert failure.code == 307
        await cluster.aclose()
        assert stranger.requests() == []


async def test_a_list_without_end_is_given_up(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An endless list is read for a while, and requested again later.  The known objects stay."""
    cluster = reach(server, tmp_path, patience=Timeouts(page=0.5))
    async with following(server, cluster) as seen:
        await seen.right()
        server.faults.add(Fault(Endless(), verb="list", resource="services", count=2))
        server.faults.add(Fault(Respond(410), verb="watch", resource="services"))
        server.restart()
        change(server)
        await seen.right()
        assert all(len(event.objects) >= 4 for [event] in seen.batches["services"] if isinstance(event, Listed))
    assert not server.faults.waiting
    assert caplog.text.count("giving up a list that has no end within 0 s") == 2


async def test_an_agent_knows_that_no_listing_can_be_used(server: ApiServer, cluster: ApiClient) -> None:
    """The activity of a resource says since when its listings can't be used, until a listing can be."""
    server.faults.add(Fault(Respond(200, body=b"<html>"), verb="list", resource="services", count=None))
    async with following(server, cluster) as seen:
        await seen.until(lambda: any(each.unusable_since is not None for each in cluster.activities.values()))
        server.faults.clear()
        await seen.right()
        assert cluster.activities["services"].unusable_since is None


async def test_a_bomb_is_given_up(server: ApiServer, cluster: ApiClient, caplog: pytest.LogCaptureFixture) -> None:
    """A list of zeros that is compressed a thousand times is given up, and requested again later."""
    server.faults.add(Fault(Respond(200, body=bytes(20_000_000)), verb="list", resource="services"))
    async with following(server, cluster) as seen:
        await seen.right()
    assert not server.faults.waiting
    assert "a ServiceList whose items can't be separated in 16777216 bytes" in caplog.text


async def test_no_ratio_makes_a_list_unreadable(server: ApiServer, cluster: ApiClient) -> None:
    """A tenant's annotations of a single letter, which gzip compresses hundreds of times, are read like any others."""
    letters = {f"note-{number}": "x" * 2**17 for number in range(2)}
    for number in range(900, 912):
        server.put(service(number, annotations=letters))
    async with following(server, cluster) as seen:
        await seen.right()
    (answer, *_) = server.requests(verb="list", resource="services")
    assert answer.bytes < 12 * 2**18 / 100


async def test_a_list_that_trickles_is_given_up(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A list that comes byte by byte, each in time, is given up after a while as a whole, and requested again."""
    cluster = reach(server, tmp_path, patience=Timeouts(page=0.3))
    server.faults.add(Fault(Slow(during=3600.0), verb="list", resource="services", count=2))
    async with following(server, cluster, [each for each in RESOURCES if each.plural == "services"]) as seen:
        await seen.until(lambda: caplog.text.count("giving up a list that has no end within 0 s") >= 2)


@contextlib.asynccontextmanager
async def trickling(first: bytes, then: bytes) -> AsyncIterator[str]:
    """A server that answers each request with some bytes, and then sends other bytes until the client goes."""
    connections = set[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            while True:
                writer.write(then)
                await writer.drain()
                await asyncio.sleep(0.01)
        connections.remove(writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        await until(lambda: not connections)


async def _until_an_answer_has_not_begun(cluster: ApiClient) -> None:
    """Read the Node until that fails for want of an answer.  On a busy machine a piece may be late before that."""
    while True:
        try:
            await cluster.read_node(NODE)
        except Unavailable as error:
            if re.fullmatch(r"no answer from 127\.0\.0\.1:\d+ has begun within 0\.4 s", str(error)):
                return


@pytest.mark.parametrize(
    ("first", "then"), [(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n")]
)
async def test_an_answer_that_never_begins_is_given_up(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, first: bytes, then: bytes
) -> None:
    """Interim answers without end, or a head without end, are given up though each piece is in time."""
    async with trickling(first, then) as url:
        config = server.write_kubeconfig(tmp_path / "kubeconfig", url=url)
        cluster = ApiClient(str(config), times=TIMES, patience=Timeouts(connect=0.1, answer=0.1))
        asking = asyncio.create_task(_until_an_answer_has_not_begun(cluster))
        async with following(server, cluster, [each for each in RESOURCES if each.plural == "services"]) as seen:
            await seen.until(lambda: "has begun within 0.4 s; trying again in" in caplog.text and asking.done())
        await asking
        await cluster.aclose()


@pytest.mark.parametrize("code", [403, 500])
async def test_a_refusal_without_end_is_cut(server: ApiServer, cluster: ApiClient, code: int) -> None:
    """Only the shown part of a denial is read, however long the answer is."""
    server.settings.gzip_threshold = None
    body = b"<html>" + b"x" * (8 * BUFFERS)
    server.faults.add(Fault(Respond(code, body=body), verb="list", resource="services"))
    server.faults.add(Fault(Respond(code, body=body), verb="create"))
    async with following(server, cluster) as seen:
        await seen.right()
        try:
            assert await cluster.send_event("default", {})
        except Unavailable:
            assert code == 500
    await cluster.aclose()
    refused = server.requests(status=code)
    assert len(refused) == 2
    assert all(request.bytes < len(body) / 2 for request in refused)
