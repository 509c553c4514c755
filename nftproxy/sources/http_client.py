"""The HTTP client of a server: asyncio's streams, a pool of httpcore over these, httpx over the pool, and contents.

* httpcore's default network goes through anyio, in which an event of a watch spends more time than in the kernel
  (docs/decisions/event-loop.md).  So the network is asyncio's own streams.
* httpx can be given a transport, and httpcore's pool a network backend, so nothing private of either is touched.
  httpx's own transport takes no backend.  The environment is never read by httpx, which fails at ranges of IPv6 in
  NO_PROXY and doesn't understand the others (proxies.py reads it).
* httpx decompresses as much at once as the server sends, and a megabyte of gzip can be a gigabyte of JSON.  So we
  decompress in pieces, and their readers bound what they keep.  The ratio has no bound: a tenant's annotations of a
  single letter are compressed 600 times.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

import httpcore
import httpx
import socksio

from nftproxy.api.decode import show
from nftproxy.sources.credentials import Credentials
from nftproxy.sources.name_lookup import look_up
from nftproxy.sources.proxies import Proxy
from nftproxy.sources.tls import system_authorities, tls_contexts
from nftproxy.sources.tunnel import Tunnel

_NAMES = {"server_addr": "peername", "client_addr": "sockname"}
"""asyncio's names of what httpcore asks for, where they differ."""


class AsyncioBackend(httpcore.AsyncNetworkBackend):
    """Connections by TCP.

    Args:
        names: by context, the name that the server's certificate must have, where it isn't the name in the URL.
            httpcore has `sni_hostname` for that, but not through a proxy.
        zoned: by IPv6 address, the address with its zone.
        handshakes: of TLS that lead through a proxy to the server: 2 if the proxy has TLS too, 0 without a proxy.
        turn: the number of the address of a name to begin with.
    """

    def __init__(
        self, names: Mapping[ssl.SSLContext, str], zoned: Mapping[str, str], handshakes: int, turn: int
    ) -> None:
        self._server_names = names
        self._zoned = zoned
        self._handshakes = handshakes
        self._turn = turn
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
        """Connect to the first address, from `turn` on, that takes the connection.  All addresses share the seconds.

        asyncio can try several at once (happy_eyeballs_delay), but Python 3.11 then loses sockets if it is cancelled.

        Raises:
            httpcore.ConnectTimeout: the time is over.
            httpcore.ConnectError: no address takes the connection.
        """
        error: OSError = ConnectionError(f"{host} has no address")
        try:
            found = await self._addresses(host, port, timeout)
            first = self._turn % len(found)
            for *_, place in [*found[first:], *found[:first]]:
                try:
                    async with asyncio.timeout(timeout and timeout / len(found)):
                        reader, writer = await asyncio.open_connection(_with_zone(place), port)
                        stream = _Stream(reader, writer, self._server_names, self._open)
                        return Tunnel(stream, self._handshakes, timeout) if self._handshakes else stream
                except OSError as failure:  # a TimeoutError too
                    error = failure
            raise error
        except OSError as failure:
            raise _error(failure, httpcore.ConnectTimeout, httpcore.ConnectError) from failure.with_traceback(None)

    async def _addresses(self, host: str, port: int, timeout: float | None) -> list[Any]:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                return await look_up(self._zoned.get(host, host), port)
        except TimeoutError:
            raise ConnectionError(f"the name {host} isn't resolved within {timeout:g} s") from None


def _with_zone(place: tuple[Any, ...]) -> str:
    """Return the address of a socket's end, with the number of its zone if it has one, as a link-local address."""
    address, _, *rest = place
    zone = rest[1] if rest else 0
    return f"{address}%{zone}" if zone else str(address)


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
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = reader, writer
        """None once it is closed.

        httpx and httpcore keep a stream in cycles, until Python looks for garbage, and asyncio has a buffer of 256 KiB
        for each connection by TLS.  A minute of outages kept 60 MB.
        """
        self._server_names = names

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                return await (self._ends or _refuse())[0].read(max_bytes)
        except OSError as error:
            raise _error(error, httpcore.ReadTimeout, httpcore.ReadError) from error.with_traceback(None)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        try:
            (self._ends or _refuse())[1].write(buffer)
            async with asyncio.timeout(timeout):
                await (self._ends or _refuse())[1].drain()
        except OSError as error:
            raise _error(error, httpcore.WriteTimeout, httpcore.WriteError) from error.with_traceback(None)

    async def aclose(self) -> None:
        self._streams.discard(self)
        if self._ends:
            _, writer = self._ends
            self._ends = None
            writer.transport.abort()
            await asyncio.sleep(0)  # the loop closes the socket at its next turn, which may be its last

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                name = self._server_names.get(ssl_context, server_hostname)
                await (self._ends or _refuse())[1].start_tls(ssl_context, server_hostname=name)
        except OSError as error:
            await self.aclose()
            raise _error(error, httpcore.ConnectTimeout, httpcore.ConnectError) from error.with_traceback(None)
        except BaseException:
            await self.aclose()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        reader, writer = self._ends or (None, None)
        if info == "is_readable":  # httpcore asks before it uses an idle connection again, which has nothing to say
            return not reader or not writer or reader.at_eof() or writer.is_closing()
        return writer.get_extra_info(_NAMES.get(info, info)) if writer else None


def _refuse() -> NoReturn:
    raise ConnectionAbortedError("the connection is closed")


def _error(error: OSError, time_out: type[Exception], other: type[Exception]) -> Exception:
    """Return httpcore's error for one of asyncio's, which is raised without its traceback.

    asyncio's reader keeps its error, and the traceback would keep the reader.  So would a variable of a frame, as a
    context manager's `__exit__` has one for the traceback (Python 3.12).
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _UntrustedServer(str(error))
    return (time_out if isinstance(error, TimeoutError) else other)(str(error))


class _UntrustedServer(httpcore.ConnectError):
    """A server whose certificate isn't trusted.  httpcore drops the causes of its errors."""


_ERRORS = {
    _UntrustedServer: httpx.ConnectError,
} | {
    getattr(httpcore, name): getattr(httpx, name)
    for name in (
        "ConnectError ConnectTimeout LocalProtocolError PoolTimeout ProxyError ReadError ReadTimeout "
        "RemoteProtocolError UnsupportedProtocol WriteError WriteTimeout"
    ).split()
}
"""httpx's error for each of httpcore's."""
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_IN_NAMES = "!#$&'*+-.^_`|~"
"""The characters, beside letters and digits, that a header's name may have (RFC 9110, section 5.6.2)."""


def http_client(credentials: Credentials, address: str, proxy: Proxy | None, turn: int = 0) -> httpx.AsyncClient:
    """Return a client of a server.  Its requests have the credentials, and it follows no redirection.

    Args:
        credentials: those of the server, without a plugin.
        address: the server's URL, to which the paths of requests are relative.
        proxy: the proxy on the way, None without one.
        turn: the number of the address to begin with, if the name of the server or proxy has several.

    Raises:
        ConnectionError: a certificate or key is invalid, or a header would be.
    """
    has_tls = address.startswith("https:")
    contexts = tls_contexts(credentials) if has_tls else (None,)  # without TLS no authorities are read
    url, zoned = _without_zone(address)
    return httpx.AsyncClient(
        base_url=url,
        headers=_headers(credentials),
        transport=_PoolTransport(contexts, _server_name(credentials.tls_server_name, url), proxy, zoned, turn),
        trust_env=False,
        timeout=None,
    )


def _without_zone(address: str) -> tuple[str, Mapping[str, str]]:
    """Return a server's URL without the zone of its address (RFC 6874), and the address with the zone.

    As with Go, headers don't have the zone (net/http, removeZone).  Unlike with Go, certificates don't need it.
    """
    plain, percent, zone = (urlsplit(address).hostname or "").partition("%25")
    url = address.replace(f"{percent}{zone}]", "]", 1)
    return url, {httpx.URL(url).raw_host.decode(): f"{plain}%{zone}"} if zone else {}


def _server_name(configured: str, address: str) -> str:
    """Return the name that the server's certificate must have, "" for the host in the URL.

    As in Go, an address may have brackets, and a name may end with a dot (crypto/x509, VerifyHostname).
    """
    host = urlsplit(address).hostname or ""
    return configured.strip("[]").removesuffix(".") or (host[:-1] if host.endswith(".") else "")


def _headers(credentials: Credentials) -> list[tuple[bytes, bytes]]:
    """Return the headers of authentication, and of impersonation (client-go, transport/round_trippers.go).

    Raises:
        ConnectionError: a header would have a line break.  h11's error would show a token.
    """
    headers = [("content-type", "application/json")]
    if credentials.token:
        headers.append(("authorization", f"Bearer {credentials.token}"))
    elif credentials.basic:
        headers.append(("authorization", f"Basic {base64.b64encode(credentials.basic.encode()).decode()}"))
    acting = credentials.impersonation
    headers += [("impersonate-user", acting.user)] if acting.user else []
    headers += [("impersonate-uid", acting.uid)] if acting.uid else []
    headers += [("impersonate-group", group) for group in acting.groups]
    headers += [(f"impersonate-extra-{quote(key, safe=_IN_NAMES)}", text) for key, text in acting.extra]
    for name, value in headers:
        if _CONTROL.search(value):
            raise ConnectionError(f"no credentials: the header {name} would have a line break or control character")
    return [(name.encode(), value.strip().encode()) for name, value in headers]


def _pool(context: ssl.SSLContext | None, backend: AsyncioBackend, proxy: Proxy | None) -> httpcore.AsyncConnectionPool:
    return httpcore.AsyncConnectionPool(ssl_context=context, network_backend=backend, proxy=proxy and _proxy(proxy))


def _proxy(proxy: Proxy) -> httpcore.Proxy:
    user, password = (each.encode() for each in proxy.auth or ("", ""))
    return httpcore.Proxy(
        proxy.url,
        (user, password) if proxy.auth else None,
        ssl_context=system_authorities() if proxy.url.startswith("https:") else None,
    )


class _PoolTransport(httpx.AsyncBaseTransport):
    """Requests of httpx by a pool of httpcore."""

    def __init__(
        self,
        contexts: Sequence[ssl.SSLContext | None],
        server_name: str,
        proxy: Proxy | None,
        zoned: Mapping[str, str],
        turn: int,
    ) -> None:
        names = {context: server_name for context in contexts if context and server_name}
        handshakes = 1 + proxy.url.startswith("https:") if proxy and any(contexts) else 0
        self._backend = AsyncioBackend(names, zoned, handshakes, turn)
        self._pools = [_pool(context, self._backend, proxy) for context in contexts]
        """The pool in use, and then those to try if it doesn't trust the server."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        asked = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _errors_of_httpx():
            response = await self._response(asked)
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_BodyStream(response.stream),
            extensions=response.extensions,
        )

    async def _response(self, request: httpcore.Request) -> httpcore.Response:
        """Return the answer, by the first pool that trusts the server.  Nothing is sent to a server without trust."""
        pools = list(self._pools)
        for number, pool in enumerate(pools, 1):
            try:
                response = await pool.handle_async_request(request)
            except _UntrustedServer:
                if number == len(pools):
                    raise
            else:
                self._pools = [pool, *(each for each in pools if each is not pool)]
                return response
        raise AssertionError("there is a pool")

    async def aclose(self) -> None:
        try:
            for pool in self._pools:
                await pool.aclose()
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
    except socksio.SOCKSError as error:
        raise httpx.ProxyError("its answer is not of SOCKS 5") from error


LARGEST_CHUNK = 2**18
"""Bytes that are decompressed at once."""
CHUNKS_OF_A_TURN = 32
"""Pieces after which other tasks get their turn.  The reader of a socket has up to 64 KiB at a time, which may be
10,000 chunks of a byte (30 us each), or 64 MB of decompressed zeros."""

_GZIP = zlib.MAX_WBITS | 16
"""The format gzip (zlib's inflateInit2)."""


async def pieces(response: httpx.Response) -> AsyncGenerator[bytes]:
    """Yield the content of an answer in pieces of at most `LARGEST_CHUNK` bytes if it is compressed, else as it comes.

    Other tasks run after `CHUNKS_OF_A_TURN` pieces.

    Raises:
        ConnectionError: it is compressed in a way that was not asked for, or is damaged.
    """
    count = 0
    async with aclosing(_content(response)) as content:
        async for piece in content:
            count += 1
            if count % CHUNKS_OF_A_TURN == 0:
                await asyncio.sleep(0)
            yield piece


async def _content(response: httpx.Response) -> AsyncGenerator[bytes]:
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        stream = response.stream  # `aiter_raw` would gather bytes for pieces of a size, which nobody asked for
        assert isinstance(stream, AsyncIterable), "an answer to an asynchronous client"
        async for data in stream:
            yield data
    elif encoding == "gzip":
        decompressor = zlib.decompressobj(_GZIP)
        async for data in response.aiter_raw():
            for piece in _decompressed(decompressor, data):
                yield piece
    else:
        raise ConnectionError(f"its answer is encoded as {show(encoding)}, which the request does not accept")


def _decompressed(decompressor: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield the decompressed pieces of the next data."""
    while data and not decompressor.eof:
        try:
            piece = decompressor.decompress(data, LARGEST_CHUNK)
        except zlib.error as error:
            raise ConnectionError(f"its answer is damaged: {error}") from error
        data = decompressor.unconsumed_tail
        if piece:
            yield piece
