"""HTTP/1.1 for a few small answers: what h11 parses, on connections that are bounded (connections.py).

h11 speaks the protocol and is there anyway, as the client of the API has it too; the servers of larger libraries weigh
10 MB, which every node would carry for a probe every few seconds.

* A request is its head, of a bounded size, within a bounded time.  Whoever sends a body gets the answer, and the end.
* An answer has a bounded time too, so that no client keeps one by not reading it.
* Between two requests of a connection everything else on the loop gets its turn, however many have come at once.
* Whatever is no HTTP gets a 4xx and the end, without a word in the log: ports are scanned all day.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from contextlib import aclosing
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import h11

from nftproxy.agent.connections import Connections
from nftproxy.model.codes import Code

log = logging.getLogger(__name__)

IDLE = 60.0
"""Seconds until a request must have come: longer than probes and scrapes are apart, and these may reconnect anyway."""
LONGEST_ANSWER = 60.0
"""Seconds that an answer may take: 100,000 endpoints take some seconds, and whoever reads slower is cut off."""
LARGEST_HEAD = 16 * 1024
"""Bytes of a request, without a body; h11's default, and twice what most servers take."""
SHUTDOWN = 0.1
"""Seconds that an answer may still take when its server is closed; nearly all are ready at once."""


class Request(NamedTuple):
    """What is asked: path and query are decoded; `connection` is the socket that it came over."""

    method: str
    path: str
    query: Mapping[str, str]
    connection: socket.socket


class Response(NamedTuple):
    """What is answered: a body that is whole, or comes in pieces, of which empty ones are only a pause."""

    status: int
    headers: Mapping[str, str]
    body: bytes | AsyncGenerator[bytes]


Respond = Callable[[Request], Awaitable[Response]]


class Server:
    """What speaks HTTP on the connections of one listener, and has them bounded among all."""

    def __init__(self, listener: Hashable, connections: Connections, respond: Respond) -> None:
        """Nothing is opened yet.

        Args:
            listener: what the connections belong to.
            connections: where they are counted.
            respond: answers a request.
        """
        self._listener = listener
        self._connections = connections
        self._respond = respond
        self._server: asyncio.Server | None = None
        self._conversations: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self, listening: socket.socket, backlog: int) -> None:
        """Accept connections at this socket, which is the server's from now on.

        Args:
            listening: where.
            backlog: connections that may wait, and are accepted in one turn before any of them is counted.
        """
        self._server = await asyncio.start_server(self._converse, sock=listening, backlog=backlog, limit=LARGEST_HEAD)

    async def close(self) -> None:
        """Close the socket, and all connections as soon as what is being answered is."""
        if self._server:
            self._server.close()
        if self._answering:
            await asyncio.wait(self._answering, timeout=SHUTDOWN)
        for task, transport in self._conversations.items():
            transport.abort()
            task.cancel()
        if self._conversations:
            await asyncio.wait(self._conversations)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """All requests of a connection, one after the other."""
        task, transport = _this_task(), writer.transport
        transport.set_write_buffer_limits(0)  # what is drained has left the process, so that nothing waits at the end
        self._conversations[task] = transport
        self._connections.made(transport, self._listener, transport)
        protocol = h11.Connection(h11.SERVER, LARGEST_HEAD)
        try:
            while await self._exchange(protocol, reader, writer):
                protocol.start_next_cycle()
        except OSError:
            pass  # whoever asked has gone, or took too long (TimeoutError)
        except Exception:
            log.exception("a defect while answering over HTTP", extra={"code": Code.DEFECT})
        finally:
            transport.abort()
            self._connections.lost(transport)
            self._conversations.pop(task)

    async def _exchange(
        self, protocol: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """A request and its answer; the result says whether another one may follow."""
        async with asyncio.timeout(IDLE):
            try:
                request = await _next_request(protocol, reader, writer)
            except h11.RemoteProtocolError as error:
                await _send(protocol, writer, Response(error.error_status_hint, {}, b""))
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
        return protocol.our_state is h11.DONE and protocol.their_state is h11.DONE


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # this runs in one
    return task


async def _next_request(
    protocol: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    """The next request, None at the end.

    Raises:
        h11.RemoteProtocolError: it is no HTTP, or too long.
    """
    while (event := protocol.next_event()) is h11.NEED_DATA:
        protocol.receive_data(await reader.read(LARGEST_HEAD))
    if not isinstance(event, h11.Request):
        return None
    protocol.next_event()  # the end of the request, if it has no body: only then there may be another one
    path, _, query = event.target.decode("ascii").partition("?")
    connection = writer.get_extra_info("socket")
    return Request(event.method.decode("ascii"), unquote(path), dict(parse_qsl(query)), connection)


async def _send(
    protocol: h11.Connection, writer: asyncio.StreamWriter, response: Response, *, has_body: bool = True
) -> None:
    """Send an answer, until the client has read so much of it that the kernel holds the rest."""
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
