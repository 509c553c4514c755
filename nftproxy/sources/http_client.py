"""The HTTP client of a server: httpx over a pool of httpcore, whose network is asyncio's own streams.

httpx can be given a transport, and httpcore's pool a network backend, so nothing private of either is touched.  httpx's
own transport takes no backend.  The environment is never read by httpx, which fails at ranges of IPv6 in NO_PROXY and
doesn't understand the others (proxies.py reads it).
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import httpcore
import httpx

from nftproxy.sources.credentials import Credentials
from nftproxy.sources.network_backend import AsyncioBackend
from nftproxy.sources.proxies import Proxy
from nftproxy.sources.tls import system_authorities, tls_context

_ERRORS = {
    getattr(httpcore, name): getattr(httpx, name)
    for name in (
        "ConnectError ConnectTimeout LocalProtocolError PoolTimeout ProxyError ReadError ReadTimeout "
        "RemoteProtocolError UnsupportedProtocol WriteError WriteTimeout"
    ).split()
}
"""httpx's error for each of httpcore's."""
_IN_NAMES = "!#$&'*+-.^_`|~"
"""The characters, beside letters and digits, that a header's name may have (RFC 9110, section 5.6.2)."""


def http_client(credentials: Credentials, address: str, proxy: Proxy | None) -> httpx.AsyncClient:
    """Return a client of a server.  Its requests have the credentials, and it follows no redirection.

    Args:
        credentials: those of the server, without a plugin.
        address: the server's URL, to which the paths of requests are relative.
        proxy: the proxy on the way, None without one.

    Raises:
        ConnectionError: a certificate or key is invalid.
    """
    has_tls = address.startswith("https:")
    context = tls_context(credentials) if has_tls else None  # without TLS no authorities are read
    return httpx.AsyncClient(
        base_url=address,
        headers=_headers(credentials),
        transport=_PoolTransport(context, credentials.tls_server_name, proxy),
        trust_env=False,
        timeout=None,
    )


def _headers(credentials: Credentials) -> list[tuple[bytes, bytes]]:
    """Return the headers of authentication, and of impersonation (client-go, transport/round_trippers.go)."""
    headers = [("content-type", "application/json")]
    if credentials.token:
        headers.append(("authorization", f"Bearer {credentials.token}"))
    acting = credentials.impersonation
    headers += [("impersonate-user", acting.user)] if acting.user else []
    headers += [("impersonate-uid", acting.uid)] if acting.uid else []
    headers += [("impersonate-group", group) for group in acting.groups]
    headers += [(f"impersonate-extra-{quote(key, safe=_IN_NAMES)}", text) for key, text in acting.extra]
    return [(name.encode(), value.encode()) for name, value in headers]


def _pool(context: ssl.SSLContext | None, backend: AsyncioBackend, proxy: Proxy | None) -> httpcore.AsyncConnectionPool:
    return httpcore.AsyncConnectionPool(
        ssl_context=context,
        network_backend=backend,
        proxy=proxy and httpcore.Proxy(
            proxy.url, proxy.auth, ssl_context=system_authorities() if proxy.url.startswith("https:") else None
        ),
    )  # fmt: skip


class _PoolTransport(httpx.AsyncBaseTransport):
    """Requests of httpx by a pool of httpcore."""

    def __init__(self, context: ssl.SSLContext | None, server_name: str, proxy: Proxy | None) -> None:
        self._backend = AsyncioBackend({context: server_name} if context and server_name else {})
        self._pool = _pool(context, self._backend, proxy)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        with _errors_of_httpx():
            response = await self._pool.handle_async_request(
                httpcore.Request(
                    request.method,
                    httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_BodyStream(response.stream),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        try:
            await self._pool.aclose()
        finally:
            await self._backend.aclose()


class _BodyStream(httpx.AsyncByteStream):
    """The body of an answer."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream  # httpcore types it for both kinds of clients

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx():
            async for piece in self._stream:
                yield piece

    async def aclose(self) -> None:
        with _errors_of_httpx():
            await self._stream.aclose()


@contextlib.contextmanager
def _errors_of_httpx() -> Iterator[None]:
    try:
        yield
    except tuple(_ERRORS) as error:
        raise _ERRORS[type(error)](str(error)) from error
