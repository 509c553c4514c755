"""A thread with an event loop, and its listening sockets.

A socket belongs to the network namespace of the thread that made it.  So the server may listen in another namespace
than its thread's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aiohttp import web

T = TypeVar("T")

BACKLOG = 128  # more than connect at once in any test; asyncio's default is 100
LINGER_NOT = struct.pack("ii", 1, 0)
"""With this SO_LINGER, closing a socket resets its connection (socket(7))."""

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
MakeSocket = Callable[[int, int], socket.socket]


class _Server(web.Server):
    """Answers requests until it is over.  A connection whose TLS handshake ends after that is reset."""

    is_over = False

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Take a connection, after its TLS handshake."""
        super().connection_made(handler, transport)
        if self.is_over:
            reset(transport)


class Listener:
    """Listens between `start` and `stop`.

    Args:
        handle: answers a request, in the thread.
        hosts: the addresses.
        port: the port of all addresses, 0 for any.  It is known after the first `start`.
        make_socket: makes a socket of a family and a type.
        context: for TLS, or None.
    """

    def __init__(
        self, handle: Handle, hosts: Sequence[str], port: int, make_socket: MakeSocket, context: ssl.SSLContext | None
    ) -> None:
        self.port = port
        self._handle = handle
        self._hosts = hosts
        self._make_socket = make_socket
        self._context = context
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._http: _Server | None = None
        self._servers: list[asyncio.Server] = []

    def start(self) -> None:
        """Start to listen, unless the server listens already.

        Raises:
            OSError: an address or the port isn't available.
        """
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._is_over = False
            self._thread = threading.Thread(target=self._serve, args=[self._loop], name="API server", daemon=True)
            self._thread.start()
        self._run(self._open())

    def stop(self) -> None:
        """Stop listening, and reset all connections."""
        if self._loop is not None:
            self._run(self._shut())

    def close(self) -> None:
        """End the thread too."""
        if self._loop is None or self._thread is None:
            return
        self.stop()
        self._run(self._abandon())
        self._run(self._loop.shutdown_default_executor())
        self._is_over = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until `close`.  A SystemExit of a task doesn't end the thread, as callers wait for its work."""
        while not self._is_over:
            with contextlib.suppress(SystemExit):
                loop.run_forever()

    def call(self, function: Callable[[], T]) -> T:
        """Call the function in the server's thread, and return its result.  Without that thread, call it here."""
        if self._loop is None or threading.current_thread() is self._thread:
            return function()

        async def call() -> T:
            return function()

        return self._run(call())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _abandon(self) -> None:
        """Cancel what is left, such as TLS handshakes that the client doesn't go on with."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _open(self) -> None:
        if self._servers:
            return
        self._http = _Server(self._handle, handler_cancellation=True, access_log=None)
        loop = asyncio.get_running_loop()
        try:
            for host in self._hosts:
                bound = self._bound(host)
                self._servers.append(
                    await loop.create_server(self._http, sock=bound, ssl=self._context, backlog=BACKLOG)
                )
        except OSError:
            await self._shut()
            raise

    def _bound(self, host: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = self._make_socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind((host, self.port))
        except OSError:
            made.close()
            raise
        self.port = made.getsockname()[1]
        return made

    async def _shut(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._http is None:
            return
        self._http.is_over = True
        for connection in self._http.connections:
            if connection.transport is not None:
                reset(connection.transport)
        await self._http.shutdown(1.0)
        self._http = None


def reset(transport: asyncio.BaseTransport) -> None:
    """Reset a connection at once, without sending the rest.  It may be gone already."""
    try:
        connection = transport.get_extra_info("socket")
    except AttributeError:  # by a TLS transport of Python 3.11 that was closed twice
        return
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    assert isinstance(transport, asyncio.WriteTransport)
    transport.abort()
