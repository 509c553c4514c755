"""The network below httpcore, by asyncio's own streams.

httpcore's default goes through anyio, in which an event of a watch spends more time than in the kernel
(docs/decisions/event-loop.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpcore

_NAMES = {"server_addr": "peername", "client_addr": "sockname"}
"""asyncio's names of what httpcore asks for, where they differ."""


class AsyncioBackend(httpcore.AsyncNetworkBackend):
    """Connections by TCP.

    Args:
        names: the name in the server's certificate for each context that verifies one, for contexts whose servers have
            another name than their URL.  httpcore has `sni_hostname` for that, but not through a proxy.
    """

    def __init__(self, names: Mapping[ssl.SSLContext, str] | None = None) -> None:
        self._server_names = names or {}
        self._open = set[_Stream]()

    async def aclose(self) -> None:
        """Close all connections.  httpcore forgets to close a connection that a SOCKS proxy denies."""
        for stream in list(self._open):
            await stream.aclose()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # httpcore's interface
        local_address: str | None = None,  # noqa: ARG002  # we set none
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002  # nor any of these
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of a host that takes the connection.  All addresses share the seconds.

        asyncio can try several at once (happy_eyeballs_delay), but Python 3.11 then loses sockets if it is cancelled.

        Raises:
            httpcore.ConnectTimeout: the time is over.
            httpcore.ConnectError: no address takes the connection.
        """
        with _errors(httpcore.ConnectTimeout, httpcore.ConnectError):
            async with asyncio.timeout(timeout):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            error: OSError = ConnectionError(f"{host} has no address")
            for *_, (address, *_) in found:
                try:
                    async with asyncio.timeout(timeout and timeout / len(found)):
                        reader, writer = await asyncio.open_connection(str(address), port)
                        return _Stream(reader, writer, self._server_names, self._open)
                except OSError as failure:  # a TimeoutError too
                    error = failure
            raise error


class _Stream(httpcore.AsyncNetworkStream):
    """A connection for httpcore over streams of asyncio."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        names: Mapping[ssl.SSLContext, str],
        streams: set[_Stream],
    ) -> None:
        self._streams = streams
        streams.add(self)
        self._reader = reader
        self._writer = writer
        self._server_names = names

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        with _errors(httpcore.ReadTimeout, httpcore.ReadError):
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        with _errors(httpcore.WriteTimeout, httpcore.WriteError):
            self._writer.write(buffer)
            async with asyncio.timeout(timeout):
                await self._writer.drain()

    async def aclose(self) -> None:
        self._streams.discard(self)
        self._writer.transport.abort()
        await asyncio.sleep(0)  # the loop closes the socket at its next turn, which may be its last

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        with _errors(httpcore.ConnectTimeout, httpcore.ConnectError):
            try:
                async with asyncio.timeout(timeout):
                    name = self._server_names.get(ssl_context, server_hostname)
                    await self._writer.start_tls(ssl_context, server_hostname=name)
            except BaseException:
                await self.aclose()
                raise
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # httpcore asks before it uses an idle connection again, which has nothing to say
            return self._reader.at_eof() or self._writer.is_closing()
        return self._writer.get_extra_info(_NAMES.get(info, info))


@contextlib.contextmanager
def _errors(time_out: type[Exception], other: type[Exception]) -> Iterator[None]:
    """Raise httpcore's errors instead of asyncio's."""
    try:
        yield
    except TimeoutError as error:
        raise time_out(str(error)) from error
    except OSError as error:
        raise other(str(error)) from error
