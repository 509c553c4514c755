"""A connection to the API over kr8s, which has the transport and the credentials.

Of kr8s only `Api.call_api` is used, with `raise_for_status=False`: else kr8s answers a 401 or 403 by closing the
session with all its streams, and asks three times more at once.  An `Api` is never awaited, as that asks for the
server's version, fails if there is no server yet, and warns of versions that it doesn't know.  Credentials are handed
to it as a kubeconfig that we have read: kr8s doesn't know `tokenFile`, keeps a newline that ends a token, and leaves
keys behind in temporary files.  So it writes no file at all, and the root file system may be read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from nftproxy import __version__
from nftproxy.api.reflector import Request
from nftproxy.sources.access import Access
from nftproxy.sources.credentials import Credentials, kubeconfig_of
from nftproxy.sources.import_later import call_later, import_later, never_import

# For port forwarding, paths in objects, and the names in certificates, none of which is used here: 5 MB.
import_later("httpx_ws", "jsonpath", "cryptography.x509")
call_later("box", "Box")  # kr8s makes its objects of it, and the agent makes none: 1.6 MB
never_import("httpx._main")  # its command line, with pygments where that is installed: 1 MB
import httpx  # noqa: E402
import kr8s  # noqa: E402
from kr8s.asyncio import Api  # noqa: E402

HEADERS = {"accept": "application/json", "user-agent": f"nftproxy/{__version__}"}
_WATCH_HEADERS = HEADERS | {"accept-encoding": "identity"}  # compression could hold an event back

CONNECTION_ERRORS = (httpx.HTTPError, kr8s.APITimeoutError, OSError)
"""What is raised when a connection fails; anything else is an oversight, here or in a library."""
SILENCE = httpx.ReadTimeout
"""What is raised when the server says no more."""

_STATUSES = frozenset(HTTPStatus)


class Patience(msgspec.Struct, frozen=True):
    """How long to wait, in seconds.

    `connect`: for a connection, once for TCP and once for TLS.  `answer`: for the next bytes of a list; kube-apiserver
    takes a minute at the most (--request-timeout).  `page`: for the whole of one list or page, however slowly its bytes
    come.  `silence`: for the next bytes of a watch; a bookmark comes every minute, so a connection that is silent for
    longer is dead.  `plugin`: for a run of a credential plugin, which may ask servers of its own; `plugin_again`: from
    the end of a run to the next one, at the least.
    """

    connect: float = 5.0
    answer: float = 60.0
    page: float = 120.0
    silence: float = 90.0
    plugin: float = 30.0
    plugin_again: float = 5.0


class Asked(NamedTuple):
    """A request to the API, as client-go's metrics have it.

    `code` is the answer's status, "<error>" if none came, "other" for a number that is no status; `method` is HTTP's;
    `host` is the server's, with its port; `seconds` passed until the answer began: that of a watch goes on for minutes.
    """

    code: str
    method: str
    host: str
    seconds: float


class Connection:
    """One way to the API, for one resource: a `kr8s.Api` that is replaced when credentials or addresses are."""

    def __init__(
        self,
        access: Access,
        patience: Patience,
        report_request: Callable[[Asked], None],
        report_answer: Callable[[], None],
    ) -> None:
        """Prepare it; the first request opens it.

        Args:
            access: the credentials and addresses.
            patience: how long to wait for the server.
            report_request: called after each request.
            report_answer: called as each answer begins, whatever it says.
        """
        self._access = access
        self.patience = patience
        self._report_request = report_request
        self._report_answer = report_answer
        self._api: Api | None = None
        self._is_for: tuple[Credentials, str] | None = None
        self._files = contextlib.ExitStack()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def answer_to(self, request: Request) -> AsyncIterator[httpx.Response]:
        """Make a reflector's request; the body of its answer is yet to be read."""
        read = self.patience.silence if request.is_watch else self.patience.answer
        async with self.answer(
            version=request.api_version,
            url=request.plural,
            params=request.params,
            headers=_WATCH_HEADERS if request.is_watch else HEADERS,
            timeout=httpx.Timeout(self.patience.connect, read=read),
        ) as response:
            yield response

    @asynccontextmanager
    async def answer(self, **request: Any) -> AsyncIterator[httpx.Response]:
        """Make any request, which goes to this address and no other, wherever the answer points."""
        api, address = await self._current()
        begin, code, host = now(), "<error>", httpx.URL(address).netloc.decode()
        call = api.call_api(stream=True, raise_for_status=False, follow_redirects=False, **request)
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(call)
                code = _code(response.status_code)
            finally:
                self._report_request(Asked(code, request.get("method", "GET"), host, now() - begin))
            self._report_answer()
            yield response
        if response.status_code >= 500:
            await self.lost()
        elif response.status_code == 401:
            await self._denied()

    async def lost(self) -> None:
        """Open a new one next time, with what files and names say by then, and perhaps to another address."""
        if self._is_for:
            self._access.failed(self._is_for[1])
        await self.aclose()

    async def _denied(self) -> None:
        if self._is_for:
            self._access.denied(self._is_for[0])
        await self.aclose()

    async def _current(self) -> tuple[Api, str]:
        """The client for what files and names say now, and the address that it asks."""
        wanted = await self._access.identity(), self._access.address
        if self._api is None or wanted != self._is_for:
            await self.aclose()
            self._is_for = wanted
            api = Api(bypass_factory=True, kubeconfig=kubeconfig_of(*wanted, self._files), serviceaccount="")
            try:
                await api.auth
            except Exception as error:
                raise ConnectionError(f"no credentials: {error}") from error  # kr8s may fail in any way
            self._api = api
        return self._api, wanted[1]

    async def aclose(self) -> None:
        """Close it; the next request opens another one."""
        api, self._api = self._api, None
        self._files.close()
        if api is not None and api._session is not None:  # nothing else closes it
            with contextlib.suppress(Exception):  # it is of no use any more, however it ends
                await api._session.aclose()


async def bounded_content(response: httpx.Response, most: int, seconds: float) -> bytes:
    """The content of an answer, or where it is longer the first bytes of it, `most` at the least.

    Raises:
        TimeoutError: it takes longer than these seconds.
    """
    body = bytearray()
    async with asyncio.timeout(seconds):
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > most:
                break
    return bytes(body)


def cause_of(error: BaseException) -> BaseException | None:
    """What made a request fail: kr8s hides that a server was silent in an error of its own."""
    return error.__cause__ if isinstance(error, kr8s.APITimeoutError) else error


def error_text(error: BaseException | None) -> str:
    """An error in words: some of httpx have none of their own, but a cause that has."""
    said = str(error)
    while not said and error is not None and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__
        said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def now() -> float:
    """The loop's own time, in seconds."""
    return asyncio.get_running_loop().time()


def _code(status: int) -> str:
    """A status for a metric, which must not get a series for each number that a server thinks of."""
    return str(status) if status in _STATUSES else "other"
