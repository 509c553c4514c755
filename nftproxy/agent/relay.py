"""One TCP connection carried over another, both ways, until both ends are done.

* The end of one direction is passed on, and the other goes on.  Whatever else ends a connection is passed on as a
  reset, so that nobody takes half an answer for a whole one.
* The first bytes are copied, through one buffer that all connections share.  From `MUCH` on they are spliced through a
  pipe: this takes less of a CPU, but two more file descriptors for each direction.
* After each chunk all others on the loop get their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator

from nftproxy.model.addresses import Address, Family, family_of

CONNECT = 5.0
"""Seconds that an endpoint has to accept a connection (kube-proxy 1.37, dialTimeout)."""
KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 9}
"""Seconds, seconds and probes after which a silent endpoint counts as gone (the defaults of Go's net package)."""
CHUNK = 256 * 1024
"""Bytes that one direction carries before others get their turn."""
MUCH = 4 * CHUNK
"""Bytes of one direction from which on they are spliced."""
_ABORT = struct.pack("ii", 1, 0)


def reset(*ends: socket.socket) -> None:
    """Have connections reset when they are closed (SO_LINGER with no time)."""
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)


async def connect(endpoint: tuple[Address, int]) -> socket.socket:
    """A connection to an endpoint, which notices when that is gone.

    Raises:
        OSError: it can't be reached, or not within `CONNECT` seconds.
    """
    family = socket.AF_INET6 if family_of(endpoint[0]) is Family.IPV6 else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
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


async def relay(client: socket.socket, server: socket.socket, buffer: memoryview) -> None:
    """Carry both directions; `buffer` may be shared with others on the loop.  Whoever called closes both ends."""
    is_whole = False
    try:
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.TaskGroup() as both:
            both.create_task(_carry(client, server, buffer))
            both.create_task(_carry(server, client, buffer))
        is_whole = True
    except* OSError:
        pass  # one end is gone, and the other notices by the reset
    finally:
        if not is_whole:
            reset(client, server)


async def _carry(source: socket.socket, sink: socket.socket, buffer: memoryview) -> None:
    """Carry one direction to its end, and pass that on."""
    if await _copy(source, sink, buffer):
        await _splice(source, sink)
    sink.shutdown(socket.SHUT_WR)


async def _copy(source: socket.socket, sink: socket.socket, buffer: memoryview) -> bool:
    """Copy until `MUCH` was carried; whether there may be more."""
    carried = 0
    while carried < MUCH:
        try:
            count = source.recv_into(buffer)
        except BlockingIOError:
            await _readable(source)
            continue
        if not count:
            return False
        carried += count
        await _send(sink, buffer[:count])
        await asyncio.sleep(0)
    return True


async def _send(sink: socket.socket, data: memoryview) -> None:
    """Send all of it; what can't be sent at once is copied, as the buffer is others' meanwhile."""
    sent = _try_to_send(sink, data)
    rest = memoryview(bytes(data[sent:]))
    while rest:
        await _writable(sink)
        rest = rest[_try_to_send(sink, rest) :]


def _try_to_send(sink: socket.socket, data: memoryview) -> int:
    try:
        return sink.send(data)
    except BlockingIOError:
        return 0


async def _splice(source: socket.socket, sink: socket.socket) -> None:
    """Splice until the end; the pipe is empty whenever something is waited for that comes."""
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
        with contextlib.suppress(OSError):  # a smaller one is only slower
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
    """Wait for what `add` has a callback called for."""
    has_come = asyncio.Event()
    add(end, has_come.set)
    try:
        await has_come.wait()
    finally:
        remove(end)
