"""A small HTTP/1.1 server on h11, whose connections are bounded (connection_limits.py).

h11 speaks the protocol, and is installed anyway for the client of the API.  The servers of larger libraries weigh
10 MB, which every node would carry for a probe every few seconds.

* A request is a head of bounded size, within a bounded time.  After a request with a body the connection is closed.
* An answer has a bounded time too, so that no client holds it by reading slowly.
* Between two requests of a connection all other tasks of the loop get their turn, even if a client pipelines them.
* If connections come faster than they are accepted, clients beyond their rate are refused the rest at once, before a
  task or a buffer is made for them.
* Input that isn't HTTP gets a 4xx and the connection is closed, without a log line: ports are scanned all day.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from contextlib import aclosing
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import h11

from nftproxy.agent.http.connection_limits import BoundedConnections, ClientRates
from nftproxy.agent.tcp import is_smuggled, pause_accepting, reset
from nftproxy.logs import warn
from nftproxy.model.codes import Code

IDLE = 60.0
"""Seconds that a connection may idle: longer than the interval of probes and scrapes, which may reconnect anyway."""
LONGEST_ANSWER = 60.0
"""Seconds that an answer may take: 100,000 endpoints take some seconds, and a slower reader is cut off."""
LARGEST_HEAD = 16 * 1024
"""Bytes of a request's head: h11's default, and twice the limit of most servers."""
AT_ONCE = 32
"""Connections that are accepted in one turn, before any of them is counted, and before other tasks get their turn."""
SHUTDOWN = 0.1
"""Seconds that an answer may still take when its server is closed.  Nearly all are ready at once."""


class HttpRequest(NamedTuple):
    """A request.  Path and query are decoded, and `connection` is its socket."""

    method: str
    path: str
    query: Mapping[str, str]
    connection: socket.socket


class HttpResponse(NamedTuple):
    """An answer.  Its body is whole, or comes in pieces, of which an empty piece is only a pause."""

    status: int
    headers: Mapping[str, str]
    body: bytes | AsyncGenerator[bytes]


Respond = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Serves HTTP on the connections of a listener."""

    def __init__(self, listener: Hashable, connections: BoundedConnections, respond: Respond) -> None:
        """Nothing is opened yet.

        Args:
            listener: the key of the listener among `connections`.
            connections: bounds the connections of all listeners.
            respond: answers a request.
        """
        self._listener = listener
        self._connections = connections
        self._respond = respond
        self._is_behind: dict[socket.socket, bool] = {}
        """The sockets at which connections are accepted.  True if more wait than were accepted in the last turn."""
        self._rates = ClientRates()
        self._beginning: set[asyncio.Task[None]] = set()
        self._conversations: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self, listening: socket.socket, backlog: int) -> None:
        """Accept connections at a socket, which the server owns from now on.  It may have several.

        Args:
            listening: the socket.
            backlog: the connections that may wait to be accepted.  Beyond that the kernel drops first packets of
                clients, which send them again after a second or more.
        """
        listening.listen(backlog)
        listening.setblocking(False)
        self._is_behind[listening] = False
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def close(self) -> None:
        """Close the sockets, and all connections once their present answers are sent."""
        while self._is_behind:
            listening, _ = self._is_behind.popitem()
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        for beginning in self._beginning:
            beginning.cancel()
        if self._answering:
            await asyncio.wait(self._answering, timeout=SHUTDOWN)
        for task, transport in self._conversations.items():
            transport.abort()
            task.cancel()
        if self._conversations:
            await asyncio.wait(self._conversations)

    def _accept(self, listening: socket.socket) -> None:
        """Accept the connections that wait, up to some.  While more wait, clients beyond their rate are refused.

        Connections to loopback addresses from outside are always refused.
        """
        is_behind, reserve = self._is_behind[listening], self._connections.reserve
        if reserve.is_short:
            reserve.refill()
        for _ in range(AT_ONCE):
            try:
                made, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._is_behind[listening] = False
                return
            except OSError as error:  # no more file descriptors, or no memory
                if reserve.lend(error):
                    continue
                pause_accepting(listening, partial(self._accept, listening), lambda: listening in self._is_behind)
                return
            client = address[0] if isinstance(address, tuple) else ""
            is_within = self._rates.admit(listening, client, is_flooded=is_behind) or not is_behind
            if is_within and not is_smuggled(made):
                task = asyncio.get_running_loop().create_task(self._begin(made, (self._listener, listening)))
                self._beginning.add(task)
                task.add_done_callback(self._beginning.discard)
            else:
                reset(made)
                made.close()
        self._is_behind[listening] = True

    async def _begin(self, made: socket.socket, group: Hashable) -> None:
        """Give a connection its stream, which begins the conversation.  The connections of a group share limits."""
        loop = asyncio.get_running_loop()
        converse = partial(self._converse, group)
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(LARGEST_HEAD, loop), converse, loop)
        try:
            made.setblocking(False)
            await loop.connect_accepted_socket(lambda: protocol, made)
        except BaseException:
            made.close()
            raise

    async def _converse(self, group: Hashable, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve all requests of a connection, in their order."""
        task, transport = _this_task(), writer.transport
        transport.set_write_buffer_limits(0)  # drained data has left the process, so nothing is lost at the end
        self._conversations[task] = transport
        self._connections.add(transport, group, transport)
        protocol = h11.Connection(h11.SERVER, LARGEST_HEAD)
        try:
            while await self._exchange(protocol, reader, writer):
                protocol.start_next_cycle()
        except OSError:
            pass  # the client has gone, or took too long (TimeoutError)
        except Exception as error:  # noqa: BLE001  # the log has its traceback
            warn(
                Code.DEFECT,
                "unexpected error while answering an HTTP request",
                of="",
                level=logging.ERROR,
                exc_info=error,
            )
        finally:
            transport.abort()
            self._connections.remove(transport)
            self._conversations.pop(task)
            if self._connections.reserve.is_short:  # the socket is closed in the loop's next round
                asyncio.get_running_loop().call_soon(self._connections.reserve.refill)

    async def _exchange(
        self, protocol: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Serve a request.  Return whether another may follow."""
        async with asyncio.timeout(IDLE):
            try:
                request = await _next_request(protocol, reader, writer)
            except h11.RemoteProtocolError as error:
                await _send(protocol, writer, HttpResponse(error.error_status_hint, {}, b""))
                return False
        if request is None:
            return False
        self._answering.add(_this_task())
        try:
            async with asyncio.timeout(LONGEST_ANSWER):
                await _send(protocol, writer, await self._respond(request), has_body=request.method != "HEAD")
        finally:
            self._answering.discard(_this_task())
        await asyncio.sleep(0)
        is_done = protocol.our_state is h11.DONE and protocol.their_state is h11.DONE
        return is_done and not self._connections.reserve.is_short


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # this runs in a task
    return task


async def _next_request(
    protocol: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> HttpRequest | None:
    """Return the next request, None at the end of the connection.

    Raises:
        h11.RemoteProtocolError: the input isn't HTTP, or is too long.
    """
    while (event := protocol.next_event()) is h11.NEED_DATA:
        protocol.receive_data(await reader.read(LARGEST_HEAD))
    if not isinstance(event, h11.Request):
        return None
    protocol.next_event()  # the end of a request without a body: only then another request may follow
    path, _, query = event.target.decode("ascii").partition("?")
    connection = writer.get_extra_info("socket")
    return HttpRequest(event.method.decode("ascii"), unquote(path), dict(parse_qsl(query)), connection)


async def _send(
    protocol: h11.Connection, writer: asyncio.StreamWriter, response: HttpResponse, *, has_body: bool = True
) -> None:
    """Send an answer.  Return once the kernel has buffered the part that the client hasn't read."""
    body = response.body
    headers = {**response.headers, "Date": formatdate(usegmt=True)}
    if isinstance(body, bytes):
        headers["Content-Length"] = str(len(body))
    reason = HTTPStatus(response.status).phrase.encode()
    head = h11.Response(status_code=response.status, reason=reason, headers=list(headers.items()))
    sent = protocol.send(head) or b""
    if isinstance(body, bytes):
        sent += (protocol.send(h11.Data(body)) or b"") if has_body else b""
    else:
        async with aclosing(body):
            async for piece in body:
                writer.write(sent + ((protocol.send(h11.Data(piece)) or b"") if piece else b""))
                sent = b""
                await writer.drain()
                await asyncio.sleep(0)
    writer.write(sent + (protocol.send(h11.EndOfMessage()) or b""))
    await writer.drain()
