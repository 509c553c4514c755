"""The answers of a proxy, until a connection leads through it to the server."""

from __future__ import annotations

import ssl
from typing import Any

import httpcore

CONNECTIONS = 2.0
"""How many times the seconds of a connection a proxy has for an answer: for the server's name, and for TCP."""


class Tunnel(httpcore.AsyncNetworkStream):
    """A connection to a proxy, until TLS with the server begins.

    httpcore waits for the answer to CONNECT as long as for the server's, and for a SOCKS proxy's without end.

    Args:
        stream: the connection.
        handshakes: of TLS, until it leads to the server.
        patience: the limit of seconds for a connection.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream, handshakes: int, patience: float | None) -> None:
        self._stream = stream
        self._handshakes = handshakes
        self._patience = patience and CONNECTIONS * patience

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002, ASYNC109
        """Return the next bytes of the proxy's answer.

        Raises:
            httpcore.ProxyError: none come in time.
        """
        try:
            return await self._stream.read(max_bytes, self._patience)
        except httpcore.ReadTimeout:
            raise httpcore.ProxyError(f"the proxy doesn't answer within {self._patience:g} s") from None

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send bytes to the proxy."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        """Begin TLS with the proxy or with the server, and return the connection to go on with."""
        stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        self._handshakes -= 1
        return self if self._handshakes else stream

    def get_extra_info(self, info: str) -> Any:
        """Return a detail of the connection, as httpcore names it."""
        return self._stream.get_extra_info(info)
