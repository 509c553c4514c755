"""Relays a TCP connection to another, in both directions, until both are done.

* The end of a direction is passed on (half-closed), and the other direction goes on.  Any other end is passed on as a
  reset, so that no peer mistakes half an answer for a whole.
* The first bytes are copied.  After `MUCH` bytes they are spliced through a pipe, which takes less CPU, but two more
  file descriptors for each direction.
* After each chunk all other tasks of the loop get their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterator

from nftproxy.agent.tcp import reset, socket_family
from nftproxy.model.objects import Place

CONNECT = 5.0
"""Seconds that an endpoint has to accept a connection (kube-proxy 1.37, dialTimeout)."""
KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 9}
"""Idle seconds, seconds between probes, and probes until a silent endpoint counts as gone (Go's net package)."""
CHUNK = 256 * 1024
"""Bytes that a direction carries before other tasks get their turn."""
MUCH = 4 * CHUNK
"""Bytes that a direction copies before it splices."""


async def connect(endpoint: Place) -> socket.socket:
    """Connect to an endpoint, with keepalives that detect its end.

    Raises:
        OSError: the endpoint can't be reached within `CONNECT` seconds.
    """
    server = socket.socket(socket_family(endpoint.address), socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            server.setsockopt(socket.IPPROTO_TCP, option, value)
        async with asyncio.timeout(CONNECT):
            await asyncio.get_running_loop().sock_connect(server, endpoint)
    except BaseException:
        server.close()
        raise
    return server


async def relay(client: socket.socket, server: socket.socket) -> None:
    """Carry both directions.  The caller closes both ends."""
    is_whole = False
    try:
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.TaskGroup() as both:
            both.create_task(_carry(client, server))
            both.create_task(_carry(server, client))
        is_whole = True
    except* OSError:
        pass  # an end is gone, and the reset tells the other end
    finally:
        if not is_whole:
            reset(client, server)


async def _carry(source: socket.socket, sink: socket.socket) -> None:
    """Carry a direction to its end, and pass the end on."""
    if await _copy(source, sink):
        await _splice(source, sink)
    sink.shutdown(socket.SHUT_WR)


async def _copy(source: socket.socket, sink: socket.socket) -> bool:
    """Copy up to `MUCH` bytes.  Return whether there may be more."""
    loop, carried = asyncio.get_running_loop(), 0
    while carried < MUCH:
        data = await loop.sock_recv(source, CHUNK)
        if not data:
            return False
        carried += len(data)
        await loop.sock_sendall(sink, data)
        await asyncio.sleep(0)
    return True


async def _splice(source: socket.socket, sink: socket.socket) -> None:
    """Splice until the end.  The pipe is empty whenever this waits for input."""
    with _pipe() as (reader, writer):
        while True:
            try:
                count = os.splice(source.fileno(), writer, CHUNK, flags=_SPLICING)
            except BlockingIOError:
                await _readable(source)
                continue
            if not count:
                return
            while count:
                try:
                    count -= os.splice(reader, sink.fileno(), count, flags=_SPLICING)
                except BlockingIOError:
                    await _writable(sink)
            await asyncio.sleep(0)


_SPLICING = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a smaller pipe is only slower
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, CHUNK)
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


async def _readable(end: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await _until(loop.add_reader, loop.remove_reader, end)


async def _writable(end: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await _until(loop.add_writer, loop.remove_writer, end)


async def _until(
    add: Callable[[socket.socket, Callable[[], None]], object],
    remove: Callable[[socket.socket], object],
    end: socket.socket,
) -> None:
    """Wait until the loop calls back a callback that `add` registers and `remove` removes."""
    has_come = asyncio.Event()
    add(end, has_come.set)
    try:
        await has_come.wait()
    finally:
        remove(end)
