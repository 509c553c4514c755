"""A balancer before the API server that cuts idle connections: one warning a cut at most, and one of an outage."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from nftproxy_conformance.apiserver import ApiServer

from nftproxy.api.pauses import Pause
from nftproxy.sources import api_client
from nftproxy.sources.api_client import ApiClient
from tests.sources.api_client.following import PLURALS, TIMES, change, following

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose close is a RST."""
CUTS = 3


class Balancer:
    """Forwards connections to a server by TCP, and cuts all of them at once."""

    def __init__(self, server: ApiServer) -> None:
        self.port = 0
        self._server = server
        self._ends: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection until one of its ends closes it."""
        with contextlib.suppress(OSError):
            to_server = await asyncio.open_connection("127.0.0.1", self._server.port)
            self._ends |= {writer, to_server[1]}
            await asyncio.gather(_forward(reader, to_server[1]), _forward(to_server[0], writer))
        writer.close()

    def cut(self, *, by_reset: bool) -> None:
        """Cut all connections, by FIN or by RST."""
        for each in self._ends:
            if by_reset and (connection := each.get_extra_info("socket")):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                each.transport.abort()
            each.close()
        self._ends.clear()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def balancing(server: ApiServer) -> AsyncIterator[Balancer]:
    """A balancer before the server, at a port of its own."""
    balancer = Balancer(server)
    async with await asyncio.start_server(balancer.serve, "127.0.0.1", 0) as listener:
        balancer.port = listener.sockets[0].getsockname()[1]
        yield balancer


def are_watching_since(cluster: ApiClient, began: float) -> bool:
    """Whether the answer to a watch of each resource has begun, after a time."""
    return all(
        each.what == "watching" and began < each.since <= (each.last_heard or 0.0)
        for each in cluster.activities.values()
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings so far."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("by_reset", [False, True])
@pytest.mark.parametrize(("healthy", "most"), [(0.0, 0), (7200.0, 1)])
async def test_a_cut_of_all_watches_is_one_warning_at_most(
    server: ApiServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    healthy: float,
    most: int,
    *,
    by_reset: bool,
) -> None:
    """A cut of healthy watches is no warning, one of young watches is one, and so is an outage right after."""
    monkeypatch.setattr(api_client, "_SAY_AGAIN", 7200.0)
    async with balancing(server) as balancer:
        config = server.write_kubeconfig(tmp_path / "kubeconfig", url=f"https://127.0.0.1:{balancer.port}")
        cluster = ApiClient(str(config), times=msgspec.structs.replace(TIMES, healthy=healthy))
        began = 0.0
        async with following(server, cluster) as seen:
            await seen.ready()
            for start in range(100, 100 + CUTS):
                await seen.until(functools.partial(are_watching_since, cluster, began))
                await seen.right()
                began = time.monotonic()
                balancer.cut(by_reset=by_reset)
                change(server, start=start)
            await seen.until(functools.partial(are_watching_since, cluster, began))
            await seen.right()
            assert len(warnings(caplog)) == most
            caplog.clear()
            server.stop()
            await seen.until(lambda: "no connection to" in caplog.text)
            server.start()
            await seen.right()


async def test_cuts_far_apart_are_warned_of_each(cluster: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log names one resource for each cut, although a cut breaks the watches of all resources."""
    clock = [1000.0]
    monkeypatch.setattr(api_client, "now", lambda: clock[0])
    cut = Pause(reason="the connection broke", is_cut=True)
    assert [cluster._is_news(cut) for _ in PLURALS] == [True, False, False, False]
    clock[0] += api_client._SAY_AGAIN
    assert [cluster._is_news(cut) for _ in PLURALS] == [True, False, False, False]
    assert cluster._is_news(Pause(reason="403"))
