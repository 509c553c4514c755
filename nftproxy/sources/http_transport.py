"""HTTP/1.1 for httpx over asyncio's own connections, by h11.

httpx' own transport goes through httpcore and anyio, in which an event of a watch spends more time than in the kernel
(docs/decisions/event-loop.md).  Proxies are left to it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator

import h11
import httpx

MOST_BUFFERED = 2**20
"""Bytes that have come and aren't read yet.  With more, the kernel holds the server up."""
LONGEST_HEAD = 100 * 1024
"""Bytes of an answer's head, and of the head of a chunk: httpcore's limit."""


class HttpTransport(httpx.AsyncBaseTransport):
    """Connections to a single server.

    A request takes the idle connection if there is one, and otherwise makes another.
    """

    def __init__(self, context: ssl.SSLContext | None) -> None:
        """`context` is for servers with https."""
        self._context = context
        self._all = set[_Wire]()
        self._idle: _Wire | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Make a request, and return the answer as soon as its head is there.

        Raises:
            httpx.TransportError: as httpx' own transport does.
        """
        wire, self._idle = self._idle, None
        if wire is None or wire.is_closed:
            wire = await self._connected(request)
        try:
            head = await wire.ask(request)
        except BaseException:
            await self._end(wire)
            raise
        return httpx.Response(
            head.status_code,
            headers=head.headers.raw_items(),
            stream=_AnswerBody(self, wire),
            extensions={"network_stream": wire.transport},
        )

    async def _connected(self, request: httpx.Request) -> _Wire:
        """Connect to the server of a request.  TCP and TLS may each take the seconds of its timeout."""
        url = request.url
        seconds = request.extensions["timeout"]["connect"]
        self._all = {wire for wire in self._all if not wire.is_closed}
        try:
            wire = await _connection(url.host, url.port or (443 if url.scheme == "https" else 80), seconds)
            self._all.add(wire)
            if url.scheme == "https":
                assert self._context is not None, "a context is made for https"
                name = request.extensions.get("sni_hostname") or url.host
                async with asyncio.timeout(seconds):
                    await wire.encrypt(self._context, name)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return wire

    async def release(self, wire: _Wire) -> None:
        """Keep a connection for the next request if its answer is complete, and otherwise end it."""
        if self._idle is None and wire.begin_anew():
            self._idle = wire
        else:
            await self._end(wire)

    async def _end(self, wire: _Wire) -> None:
        self._all.discard(wire)
        await _abort(wire.transport)

    async def aclose(self) -> None:
        """End all connections."""
        self._idle = None
        wires, self._all = self._all, set()
        for wire in wires:
            wire.transport.abort()
        await asyncio.sleep(0)


async def _connection(host: str, port: int, seconds: float) -> _Wire:
    """Connect to the first address of a host that takes the connection.  All addresses share the time.

    asyncio can try several at once (happy_eyeballs_delay), but Python 3.11 then loses sockets if it is cancelled.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    error: OSError = ConnectionError(f"{host} has no address")
    for *_, (address, *_) in found:
        try:
            async with asyncio.timeout(seconds / len(found)):
                return (await loop.create_connection(_Wire, str(address), port))[1]
        except OSError as failure:  # a TimeoutError too
            error = failure
    raise error


async def _abort(transport: asyncio.Transport) -> None:
    transport.abort()
    await asyncio.sleep(0)  # the loop closes the socket at its next turn, which may be its last


class _AnswerBody(httpx.AsyncByteStream):
    """The body of an answer."""

    def __init__(self, owner: HttpTransport, wire: _Wire) -> None:
        self._owner = owner
        self._wire = wire
        self._is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._wire.event(), h11.Data):
            yield bytes(event.data)

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._owner.release(self._wire)


class _Wire(asyncio.Protocol):
    """A connection: bytes from the transport, and h11's state, which makes events of them."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.is_closed = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._come = deque[bytes]()
        self._size = 0
        self._error: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._patience: float | None = None
        self._deadline = float("inf")
        self._alarm: asyncio.TimerHandle | None = None

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._come.append(data)
        self._size += len(data)
        if self._size > MOST_BUFFERED:
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._come.append(b"")
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._error = error
        self._come.append(b"")
        if self._alarm is not None:
            self._alarm.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # To the transport above

    async def encrypt(self, context: ssl.SSLContext, name: str) -> None:
        """Do the handshake of TLS with a server of this name."""
        try:
            made = await self._loop.start_tls(self.transport, self, context, server_hostname=name)
        except BaseException:
            await _abort(self.transport)
            raise
        if made is None:
            raise ConnectionResetError("the connection ended during the TLS handshake")
        self.transport = made

    async def ask(self, request: httpx.Request) -> h11.Response:
        """Send a request, and return the head of its answer."""
        self._patience = request.extensions["timeout"]["read"]
        content = await request.aread()
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        events = (head, h11.Data(content), h11.EndOfMessage()) if content else (head, h11.EndOfMessage())
        self.transport.write(b"".join([self._http.send(event) or b"" for event in events]))
        while not isinstance(event := await self.event(), h11.Response):
            pass  # 100 Continue and the like
        return event

    async def event(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next part of an answer."""
        try:
            while True:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event  # type: ignore[return-value]  # mypy can't narrow a class by identity
                data = await self._read()
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    async def _read(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        if not self._come:
            if self._size > MOST_BUFFERED:
                self.transport.resume_reading()
            self._size = 0
            await self._arrival()
        data = self._come.popleft()
        if not data and self._error is not None:
            raise httpx.ReadError(str(self._error)) from self._error
        return data

    async def _arrival(self) -> None:
        """Wait until something comes.  The alarm stays from wait to wait, so that a wait needs no timer of its own."""
        if self.is_closed:
            self._come.append(b"")
            return
        self._waiter = self._loop.create_future()
        if self._patience is not None:
            self._deadline = self._loop.time() + self._patience
            if self._alarm is None:
                self._alarm = self._loop.call_at(self._deadline, self._ring)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _ring(self) -> None:
        self._alarm = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._deadline:
            self._alarm = self._loop.call_at(self._deadline, self._ring)
        else:
            self._waiter.set_exception(httpx.ReadTimeout("nothing came"))

    def begin_anew(self) -> bool:
        """Make the connection ready for another request.  Return whether the last answer leaves it so."""
        if self.is_closed or self._come or self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            return False
        self._http.start_next_cycle()
        return True
