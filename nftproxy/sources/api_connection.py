"""A connection to the API, for a resource's lists and watches, or for single requests (cluster_api.py).

Lists and watches go by httpx alone: kr8s offers no streams of bytes, in which a reflector finds the events itself
(docs/decisions/kr8s.md).  The credentials are ours to read, so no file is written, and the root file system may be
read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from nftproxy.api.decode import show
from nftproxy.api.reflector import ApiRequest
from nftproxy.api.responses import ErrorStatus, read_error
from nftproxy.model.errors import BadInput
from nftproxy.sources.access import Access
from nftproxy.sources.credentials import Credentials
from nftproxy.sources.http_client import http_client, pieces
from nftproxy.sources.proxies import Proxy
from nftproxy.version import __version__

HEADERS = {"accept": "application/json", "accept-encoding": "gzip", "user-agent": f"nftproxy/{__version__}"}
_WATCH_HEADERS = HEADERS | {"accept-encoding": "identity"}  # compression could hold an event back

CONNECTION_ERRORS = (httpx.HTTPError, OSError)
"""The exceptions of a connection that fails.  Any other exception is a defect, here or in a library."""
NO_ANSWER = httpx.ReadTimeout
"""The exception of a server that sends nothing more."""

KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
"""Seconds and probes until a connection whose packets are dropped has ended: 30 s.  client-go takes 45 s with pings of
HTTP/2.  Bookmarks come each minute, so without probes it would take `silence`."""

_STATUSES = frozenset(HTTPStatus)


class Timeouts(msgspec.Struct, frozen=True):
    """How long to wait, in seconds."""

    connect: float = 5.0
    """For a connection, once each for the host's name, for TCP and for TLS.  A proxy has the first two once more."""
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
    """A client of the API that is replaced when credentials or addresses change."""

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
        self._client: httpx.AsyncClient | None = None
        self._is_for: tuple[Credentials, str, Proxy | None] | None = None
        self._failed = 0
        """Requests in a row without a useful answer.  One of several addresses of a name may take connections, and then
        hang or answer 503, so that each such request goes to the next."""
        self.host = ""
        """The server of the last request: its name or address, with its port, and the proxy on the way."""

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def answer_to(self, request: ApiRequest) -> AsyncIterator[httpx.Response]:
        """Make a reflector's request.  The body of the answer is left to be read."""
        read = self.patience.silence if request.is_watch else self.patience.answer
        async with self.answer(
            "GET",
            api_path(request.api_version, request.plural),
            read,
            params=request.params,
            headers=_WATCH_HEADERS if request.is_watch else HEADERS,
        ) as response:
            yield response

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        read: float,
        *,
        headers: Mapping[str, str] = HEADERS,
        **kwargs: Any,
    ) -> AsyncIterator[httpx.Response]:
        """Make any request.  It goes to the present address, and no redirection is followed.

        `read` limits the seconds until the next bytes come, and until the head of the answer is complete.  `kwargs` are
        those of `httpx.AsyncClient.build_request`: params, content, ...
        """
        self.host = _host(self._access.address)
        client, address = await self.client()
        begin, code, host = now(), "<error>", _host(address)
        self._failed += 1
        timeout = httpx.Timeout(self.patience.connect, read=read)
        request = client.build_request(method, path, headers=headers, timeout=timeout, **kwargs)
        try:
            response = await _head(client.send(request, stream=True), self.host, 3 * self.patience.connect + read)
            code = _code(response.status_code)
        finally:
            self._report_request(RequestOutcome(code, method, host, now() - begin))
        async with aclosing(response):
            if response.status_code < 500:
                self._failed = 0
            self._note_answer(response)
            yield response
        if response.status_code >= 500:
            await self.fail_over()
        elif response.status_code == 401:
            await self._discard()

    def _note_answer(self, response: httpx.Response) -> None:
        self._report_answer()
        stream = response.extensions["network_stream"]
        if peer := stream.get_extra_info("server_addr"):
            self._report_peer(*peer[:2])
        keep_alive(stream.get_extra_info("socket"))

    @property
    def credentials(self) -> Credentials | None:
        """The credentials of the last request, with those that a plugin has printed, None before the first request."""
        return self._is_for[0] if self._is_for else None

    def error_status(self, body: bytes, code: int, retry_after: str = "") -> ErrorStatus:
        """Parse the last request's answer, an error.  A 401 names the credentials' file with its age, or the plugin."""
        status = read_error(body, code, retry_after)
        origin = _origin(self.credentials) if status.code == 401 and self.credentials else ""
        return status._replace(message=f"{status.message}: {origin}") if origin else status

    async def fail_over(self) -> None:
        """Close the connection.  The next request uses fresh credentials and names, and the next address."""
        if self._is_for:
            self._access.fail_over(self._is_for[1])
        await self.aclose()

    async def _discard(self) -> None:
        if self._is_for:
            self._access.discard(self._is_for[0])
        await self.aclose()

    async def client(self) -> tuple[httpx.AsyncClient, str]:
        """Return the client for the present credentials and address, and this address.

        Raises:
            ConnectionError: there are no valid credentials.
        """
        credentials, address = await self._access.credentials(), self._access.address
        try:
            proxy = self._access.proxy(address)
        except BadInput as error:
            raise ConnectionError(str(error)) from error
        if proxy:
            self.host = f"{_host(address)} through {proxy}"
        wanted = credentials, address, proxy
        if self._client is None or wanted != self._is_for:
            await self.aclose()
            self._is_for = wanted
            self._client = http_client(*wanted, self._failed)
        return self._client, address

    async def aclose(self) -> None:
        """Close the connection.  The next request opens another."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # the client is abandoned, so its errors don't matter
                await client.aclose()


def _origin(credentials: Credentials) -> str:
    """Return in words which plugin has printed the credentials, or when their file was written, "" if it is gone."""
    if credentials.program:
        return f"by the credential plugin {show(credentials.program)}"
    if not credentials.file:
        return "no credentials are sent without TLS"
    with contextlib.suppress(OSError):
        written = datetime.datetime.fromtimestamp(Path(credentials.file).stat().st_mtime, datetime.UTC)
        hours = (datetime.datetime.now(datetime.UTC) - written) // datetime.timedelta(hours=1)
        # Coarse, so that resources which are denied some seconds apart have the same words.
        age = "less than an hour" if hours < 1 else f"{hours} h" if hours < 48 else f"{hours // 24} days"
        return f"{credentials.file} was written at {written:%Y-%m-%d %H:%M} UTC, {age} ago"
    return ""


def api_path(version: str, plural: str, namespace: str = "") -> str:
    """Return the path of a resource, given its API version ("v1", "discovery.k8s.io/v1")."""
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"


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
    """Return the content of an answer.  If it is longer, only its beginning is returned, at least `most` bytes.

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


def _host(url: str) -> str:
    return httpx.URL(url).netloc.decode()


def _code(status: int) -> str:
    """Return a status for a metric, which must not get a series for each number that a server invents."""
    return str(status) if status in _STATUSES else "other"
