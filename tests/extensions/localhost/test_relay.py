"""The relay passes on all bytes, each half-close, and every failure, over real sockets."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from nftproxy.extensions.localhost.agent.relay import MUCH, connect, relay
from nftproxy.model.addresses import Address
from nftproxy.model.objects import Place

TIMEOUT = 60.0


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def limited() -> None:
            async with asyncio.timeout(TIMEOUT):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


class Ends(NamedTuple):
    """Two ends that talk over a relay, and the relay."""

    client: socket.socket
    server: socket.socket
    relaying: asyncio.Task[None]


async def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = await connect(Place(Address("127.0.0.1"), listener.getsockname()[1]))
        theirs, _ = listener.accept()
    theirs.setblocking(False)
    return ours, theirs


@asynccontextmanager
async def relayed() -> AsyncIterator[Ends]:
    """A client and a server with a relay between them."""
    client, near = await pair()
    far, server = await pair()

    async def run() -> None:
        with near, far:
            await relay(near, far)

    with client, server:
        task = asyncio.create_task(run())
        yield Ends(client, server, task)
        task.cancel()
        await asyncio.wait([task])


async def read_all(end: socket.socket) -> bytes:
    """Read until the other end has sent all."""
    loop, found = asyncio.get_running_loop(), bytearray()
    while data := await loop.sock_recv(end, 1 << 20):
        found += data
    return bytes(found)


async def send(end: socket.socket, data: bytes, *, is_last: bool = True) -> None:
    """Send all of it, and by default send the end of the stream."""
    await asyncio.get_running_loop().sock_sendall(end, data)
    if is_last:
        end.shutdown(socket.SHUT_WR)


@on_a_loop
@pytest.mark.parametrize("size", [0, 1, MUCH - 1, MUCH, MUCH + 1, 5 * MUCH + 17])
async def test_both_directions_at_once(size: int) -> None:
    """Every byte of both directions arrives, copied or spliced, and then the relay ends by itself."""
    up, down = os.urandom(size), os.urandom(size)
    async with relayed() as it:
        got = await asyncio.gather(read_all(it.server), read_all(it.client), send(it.client, up), send(it.server, down))
        assert (got[0] == up, got[1] == down) == (True, True)
        await it.relaying


@on_a_loop
@pytest.mark.parametrize("size", [10, 2 * MUCH])
async def test_half_closed(size: int) -> None:
    """An end that has finished sending still receives the answer, however late and long."""
    async with relayed() as it:
        await send(it.client, b"all of the question")
        assert await read_all(it.server) == b"all of the question"
        assert not it.relaying.done()
        _, answer = await asyncio.gather(send(it.server, bytes(size)), read_all(it.client))
        assert answer == bytes(size)
        await it.relaying


@on_a_loop
@pytest.mark.parametrize("before", [0, 2 * MUCH])
@pytest.mark.parametrize("is_client", [True, False])
async def test_a_reset_is_passed_on(before: int, is_client: bool) -> None:
    """When one end is reset the other end is reset too, so that a truncated stream doesn't look complete."""
    async with relayed() as it:
        breaking, other = (it.client, it.server) if is_client else (it.server, it.client)
        loop = asyncio.get_running_loop()
        sending = asyncio.create_task(send(breaking, bytes(before) + b".", is_last=False))
        found = 0
        while found <= before:
            found += len(await loop.sock_recv(other, 1 << 20))
        await sending
        breaking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        breaking.close()
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(other, 1)
        await it.relaying


@on_a_loop
async def test_a_relay_that_is_cancelled_resets_both_ends() -> None:
    """Neither end of a cancelled relay takes its bytes for the complete stream."""
    async with relayed() as it:
        await send(it.client, b"first", is_last=False)
        assert await asyncio.get_running_loop().sock_recv(it.server, 100) == b"first"
        it.relaying.cancel()
        await asyncio.wait([it.relaying])
        for end in (it.client, it.server):
            with pytest.raises(ConnectionResetError):
                await asyncio.get_running_loop().sock_recv(end, 1)


async def fill(sender: socket.socket, most: int) -> int:
    """Send until nothing more is taken in, or so many bytes are.  Return how many."""
    sent = pauses = 0
    while sent < most and pauses < 5:
        try:
            sent += sender.send(bytes(min(MUCH, most - sent)))
            pauses = 0
        except BlockingIOError:
            await asyncio.sleep(0.02)  # the relay has a turn, and the kernel moves what it has
            pauses += 1
    return sent


@on_a_loop
async def test_a_reader_that_waits_holds_the_sender_back() -> None:
    """Unread bytes don't pile up in memory: the sender stops, and continues with the reader."""
    async with relayed() as it:
        total = 64 << 20
        sent = await fill(it.client, total)
        assert sent < total, "64 MB were taken in, although nobody reads them"
        reading = asyncio.create_task(read_all(it.server))
        await send(it.client, bytes(total - sent))
        assert len(await reading) == total


def descriptors() -> int:
    """The number of open file descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))


@on_a_loop
async def test_pipes_are_closed() -> None:
    """A spliced connection leaves no file descriptor."""
    before = descriptors()
    async with relayed() as it:
        await asyncio.gather(send(it.client, bytes(3 * MUCH)), read_all(it.server))
        await asyncio.gather(send(it.server, bytes(3 * MUCH)), read_all(it.client))
        await it.relaying
    assert descriptors() == before


@on_a_loop
async def test_nobody_listens() -> None:
    """An endpoint that refuses is an error at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await connect(Place(Address("127.0.0.1"), port))
