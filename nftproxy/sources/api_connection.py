"""A connection to the API over kr8s, which has the transport and the credentials.

kr8s is used only for `Api.call_api`, with `raise_for_status=False`.  Otherwise kr8s answers a 401 or 403 by closing the
session with all its streams, and retries three times at once.  An `Api` is never awaited: that reads the server's
version, fails if there is no server yet, and warns of unknown versions.  The credentials are passed to it as a
kubeconfig that we have read: kr8s doesn't know `tokenFile`, keeps a newline that ends a token, and leaves keys behind
in temporary files.  So no file is written, and the root file system may be read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from nftproxy.api.reflector import ApiRequest
from nftproxy.sources.access import Access
from nftproxy.sources.credentials import Credentials, kubeconfig_of
from nftproxy.sources.decompression import pieces
from nftproxy.sources.import_later import call_later, import_later, never_import
from nftproxy.version import __version__

# For port forwarding, paths in objects, and the names in certificates, which are not used here: 5 MB.
import_later("httpx_ws", "jsonpath", "cryptography.x509")
call_later("box", "Box")  # for kr8s' objects, of which the agent makes none: 1.6 MB
never_import("httpx._main")  # its command line, with pygments where that is installed: 1 MB
import httpx  # noqa: E402
import kr8s  # noqa: E402
from kr8s.asyncio import Api  # noqa: E402

from nftproxy.sources.network_backend import use_asyncio  # noqa: E402

HEADERS = {"accept": "application/json", "accept-encoding": "gzip", "user-agent": f"nftproxy/{__version__}"}
_WATCH_HEADERS = HEADERS | {"accept-encoding": "identity"}  # compression could hold an event back

CONNECTION_ERRORS = (httpx.HTTPError, kr8s.APITimeoutError, OSError)
"""The exceptions of a connection that fails.  Any other exception is a defect, here or in a library."""
SILENCE = httpx.ReadTimeout
"""The exception of a server that sends nothing more."""

KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
"""Seconds and probes until a connection whose packets are dropped has ended: 30 s.  client-go takes 45 s with pings of
HTTP/2.  Bookmarks come each minute, so without probes it would take `silence`."""

_STATUSES = frozenset(HTTPStatus)


class Timeouts(msgspec.Struct, frozen=True):
    """How long to wait, in seconds."""

    connect: float = 5.0  # for a connection, once each for the host's name, for TCP and for TLS
    answer: float = 60.0  # for the next bytes of a list: kube-apiserver takes a minute at most (--request-timeout)
    page: float = 120.0  # for a complete list or page, however slowly its bytes come
    silence: float = 90.0  # for the next bytes of a watch: a bookmark comes every minute
    plugin: float = 30.0  # for a run of a credential plugin, which may call servers of its own
    plugin_again: float = 5.0  # from the end of a plugin's run to the next run, at least


class RequestOutcome(NamedTuple):
    """The outcome of a request to the API, as client-go's metrics have it."""

    code: str  # the answer's status, "<error>" without an answer, "other" for a number that is no status
    method: str
    host: str  # the server's, with its port
    seconds: float  # until the answer began: the answer to a watch lasts for minutes


class Connection:
    """A connection to the API for a resource: a `kr8s.Api` that is replaced when credentials or addresses change."""

    def __init__(
        self,
        access: Access,
        patience: Timeouts,
        report_request: Callable[[RequestOutcome], None],
        report_answer: Callable[[], None],
        report_peer: Callable[[str, int], None],
    ) -> None:
        """Prepare the connection.  The first request opens it.

        Args:
            access: the credentials and addresses.
            patience: how long to wait for the server.
            report_request: called after each request.
            report_answer: called when an answer begins, with any status.
            report_peer: called with the address and port of the server at the other end.
        """
        self._access = access
        self.patience = patience
        self._report_request = report_request
        self._report_answer = report_answer
        self._report_peer = report_peer
        self._api: Api | None = None
        self._is_for: tuple[Credentials, str] | None = None
        self.host = ""
        """The server of the last request: its name or address, with its port."""
        self._files = contextlib.ExitStack()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def answer_to(self, request: ApiRequest) -> AsyncIterator[httpx.Response]:
        """Make a reflector's request.  The body of the answer is left to be read."""
        read = self.patience.silence if request.is_watch else self.patience.answer
        async with self.answer(
            version=request.api_version,
            url=request.plural,
            params=request.params,
            headers=_WATCH_HEADERS if request.is_watch else HEADERS,
            read=read,
        ) as response:
            yield response

    @asynccontextmanager
    async def answer(self, read: float, **request: Any) -> AsyncIterator[httpx.Response]:
        """Make any request.  It goes to the present address, and no redirection is followed.

        `read` limits the seconds until the next bytes come, and until the head of the answer is complete.
        """
        self.host = _host(self._access.address)
        api, address = await self._current()
        begin, code, self.host = now(), "<error>", _host(address)
        host = self.host
        timeout = httpx.Timeout(self.patience.connect, read=read)
        call = api.call_api(stream=True, raise_for_status=False, follow_redirects=False, timeout=timeout, **request)
        async with AsyncExitStack() as stack:
            try:
                response = await _head(stack.enter_async_context(call), host, 3 * self.patience.connect + read)
                code = _code(response.status_code)
            finally:
                self._report_request(RequestOutcome(code, request.get("method", "GET"), host, now() - begin))
            self._report_answer()
            stream = response.extensions["network_stream"]
            if peer := stream.get_extra_info("server_addr"):
                self._report_peer(*peer[:2])
            keep_alive(stream.get_extra_info("socket"))
            yield response
        if response.status_code >= 500:
            await self.fail_over()
        elif response.status_code == 401:
            await self._discard()

    async def fail_over(self) -> None:
        """Close the connection.  The next request uses fresh credentials and names, and the next address."""
        if self._is_for:
            self._access.fail_over(self._is_for[1])
        await self.aclose()

    async def _discard(self) -> None:
        if self._is_for:
            self._access.discard(self._is_for[0])
        await self.aclose()

    async def _current(self) -> tuple[Api, str]:
        """Return the client for the present credentials and address, and this address."""
        wanted = await self._access.credentials(), self._access.address
        if self._api is None or wanted != self._is_for:
            await self.aclose()
            self._is_for = wanted
            api = Api(bypass_factory=True, kubeconfig=kubeconfig_of(*wanted, self._files), serviceaccount="")
            try:
                await api.auth
            except Exception as error:
                raise ConnectionError(f"no credentials: {error}") from error  # kr8s may fail in any way
            if wanted[0].has_default_authorities:
                api.auth.ssl_context = _public_authorities if wanted[1].startswith("https:") else _no_authorities  # type: ignore[method-assign]
            await api._create_session()
            assert api._session is not None, "it has just been made"
            use_asyncio(api._session)
            self._api = api
        return self._api, wanted[1]

    async def aclose(self) -> None:
        """Close the connection.  The next request opens another."""
        api, self._api = self._api, None
        self._files.close()
        if api is not None and api._session is not None:  # nothing else closes it
            with contextlib.suppress(Exception):  # the session is abandoned, so its errors don't matter
                await api._session.aclose()


async def _head(entering: Awaitable[httpx.Response], host: str, seconds: float) -> httpx.Response:
    """Return the answer when its head is complete.

    The time limit for the next bytes doesn't end a head that trickles, nor interim answers without end (100 Continue).

    Raises:
        TimeoutError: it takes longer than these seconds.
    """
    try:
        async with asyncio.timeout(seconds):
            return await entering
    except TimeoutError as error:
        raise TimeoutError(f"no answer from {host} has begun within {seconds:g} s") from error


async def bounded_content(response: httpx.Response, most: int, seconds: float) -> bytes:
    """Return the content of an answer.  Of a longer content, only the beginning is returned, at least `most` bytes.

    Raises:
        TimeoutError: it takes longer than these seconds.
    """
    body = bytearray()
    async with asyncio.timeout(seconds), aclosing(pieces(response)) as content:
        async for piece in content:
            body += piece
            if len(body) > most:
                break
    return bytes(body)


def cause_of(error: BaseException | None) -> BaseException | None:
    """Return the error that made a request fail: kr8s hides the time-out of a silent server in its own error."""
    return error.__cause__ if isinstance(error, kr8s.APITimeoutError) else error


def now() -> float:
    """Return the event loop's time, in seconds."""
    return asyncio.get_running_loop().time()


def keep_alive(connection: socket.socket | None) -> None:
    """Have the kernel probe a connection on which nothing comes, and end it without an answer."""
    if connection is not None:
        with contextlib.suppress(OSError):  # the connection has ended, which its next use shows
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


async def _public_authorities() -> ssl.SSLContext:
    """Return the context with httpx's own authorities, which all connections share: reading them takes 80 ms."""
    return _default_context()


async def _no_authorities() -> bool:
    return False  # without TLS nothing is verified


@functools.cache
def _default_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _host(url: str) -> str:
    return httpx.URL(url).netloc.decode()


def _code(status: int) -> str:
    """Return a status for a metric, which must not get a series for each number that a server invents."""
    return str(status) if status in _STATUSES else "other"
