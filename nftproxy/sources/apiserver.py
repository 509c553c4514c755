"""Following the cluster: lists and watches over kr8s, which has the transport and the credentials.

reflector.py decides what to ask and what the answers mean; this module has everything that waits: sockets, pauses,
files.  Each resource is followed by itself, over a connection of its own, and what happens to one doesn't affect
another.

Of kr8s only `Api.call_api` is used, with `raise_for_status=False`: else kr8s answers a 401 or 403 by closing the
session with all its streams, and asks three times more at once.  An `Api` is never awaited, as that asks for the
server's version, fails if there is no server yet, and warns of versions that it doesn't know.  Credentials are handed
to it as a kubeconfig that we have read: kr8s doesn't know `tokenFile`, keeps a newline that ends a token, and leaves
keys behind in temporary files.  So it writes no file at all, and the root file system may be read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import kr8s
import msgspec
from kr8s.asyncio import Api

from nftproxy import __version__
from nftproxy.api.decode import show
from nftproxy.api.pauses import Pause, Times
from nftproxy.api.reflector import LARGEST_LIST, Reflector, Request
from nftproxy.api.resources import Resource, resources
from nftproxy.api.responses import ErrorStatus, read_error
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Unavailable
from nftproxy.model.events import Event
from nftproxy.sources.activity import Activity
from nftproxy.sources.credentials import SERVICE_ACCOUNT, Credentials, kubeconfig_of, other_address, read_credentials
from nftproxy.sources.plugins import Plugins
from nftproxy.sources.streams import gathered

log = logging.getLogger(__name__)

_HEADERS = {"accept": "application/json", "user-agent": f"nftproxy/{__version__}"}
_WATCH_HEADERS = _HEADERS | {"accept-encoding": "identity"}  # compression could hold an event back

_EXPECTED = (httpx.HTTPError, kr8s.APITimeoutError, OSError)
"""What is raised when a connection fails; anything else is an oversight, here or in a library."""

_LONGEST_ERROR = 64 * 1024
"""Bytes of an error answer that are read: nothing of what comes after them would be shown."""
_LARGEST_OBJECT = 3 * 2**20
"""Bytes of an object: what kube-apiserver takes at the most in one request."""

_STATUSES = frozenset(HTTPStatus)

_SAY_AGAIN = 60.0
"""Seconds after which the log has again why nobody answers: attempts follow each other soon."""


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


class Cluster:
    """A cluster's API: who we are to it, and the addresses that it may be reached at.

    A cold node can't reach the API by its ClusterIP, since that is for this very proxy to serve; so there may be more
    addresses.  One is used until it fails, then the next, for all resources alike.
    """

    def __init__(
        self,
        kubeconfig: str = "",
        api_servers: Sequence[str] = (),
        *,
        times: Times | None = None,
        patience: Patience | None = None,
        account: Path = SERVICE_ACCOUNT,
        report_problems: Callable[[int], None] = lambda _count: None,
        report_request: Callable[[Asked], None] = lambda _asked: None,
    ) -> None:
        """Find out how to reach the API; nothing is asked yet.

        Args:
            kubeconfig: the path of one; "" for the service account of a pod.
            api_servers: URLs to try beside the one in the kubeconfig or the environment.  Their certificates must be
                from the same authority, for the host in the URL or the kubeconfig's tls-server-name.
            times: how long the reflectors take.
            patience: how long to wait for the server.
            account: where a pod's service account is.
            report_problems: called with the number of faults that the objects have, whenever it changes.
            report_request: called after each request.

        Raises:
            BadInput: there are no credentials, or they can't be read, or a URL is none.
        """
        self.patience = patience or Patience()
        self._times = times or Times()
        self._read = functools.partial(read_credentials, kubeconfig, account)
        self._credentials = self._read()
        self._fault = ""
        self._plugins = Plugins(self.patience.plugin, self.patience.plugin_again)
        self._others = [other_address(text, self._credentials.server) for text in api_servers]
        self._failed = 0
        self._is_answering = asyncio.Event()
        self._said: dict[str, tuple[str, float]] = {}
        self._report_problems = report_problems
        self.report_request = report_request
        self._problems = Counter[str]()
        self._writer = _Connection(self)
        self.activities: dict[str, Activity] = {}

    def sources(self, node_name: str, proxy_name: str) -> dict[str, AsyncIterator[list[Event]]]:
        """Every resource that a service proxy on a node follows, by its plural, for `Agent.run`."""
        return {resource.plural: self.follow(resource) for resource in resources(node_name, proxy_name)}

    async def follow(self, resource: Resource) -> AsyncGenerator[list[Event]]:
        """One resource: first a listing of it, then changes as they come, or again a listing; ends only with the task.

        What has come together is one batch.
        """
        reflector = Reflector(resource, self._times)
        activity = self.activities[resource.plural] = Activity(resource.plural)
        async with _Connection(self) as connection:
            while True:
                try:
                    async with aclosing(_converse(connection, reflector, activity)) as batches:
                        async for events in batches:
                            self._complain(reflector)
                            yield events
                except Exception as error:  # noqa: BLE001  # whatever it is, the others go on, and this one tries again
                    await connection.lost()
                    self._note_failure(reflector, error)
                self._complain(reflector)
                activity.pauses(reflector.pause.reason)
                await self._pause(reflector)

    async def post(self, namespace: str, body: bytes, name: str = "") -> ErrorStatus | None:
        """Create an Event (events.k8s.io/v1) in a namespace, or with a name change that one by a merge patch.

        All go over one connection, which stays open.

        Returns:
            What the API says if it doesn't take it, and won't.

        Raises:
            Unavailable: the API can't be reached, or is not able to take it now.
        """
        url = f"namespaces/{namespace}/events" + (f"/{name}" if name else "")
        status, answer = await self.ask("PATCH" if name else "POST", "events.k8s.io/v1", url, body)
        if status >= 500 or status in (401, 429):
            raise Unavailable(f"the API answered {status}")
        return read_error(answer, status) if status >= 300 else None

    async def read_node(self, name: str) -> bytes:
        """The JSON of a Node.

        Raises:
            Unavailable: the API can't be reached, or doesn't give it.
        """
        return await self._expect("GET", f"nodes/{quote(name, safe='')}", b"")

    async def patch_node(self, name: str, patch: bytes) -> None:
        """Change a Node by a JSON merge patch.

        Raises:
            Unavailable: the API can't be reached, or denies it.
        """
        await self._expect("PATCH", f"nodes/{quote(name, safe='')}", patch)

    async def _expect(self, method: str, url: str, body: bytes) -> bytes:
        """What the API answers, if it is what was asked for."""
        status, answer = await self.ask(method, "v1", url, body)
        if status >= 300:
            raise Unavailable(f"the API denies it: {read_error(answer, status).message}")
        return answer

    async def ask(self, method: str, version: str, url: str, body: bytes = b"", **params: str) -> tuple[int, bytes]:
        """The status and content of an answer, over the connection that all these requests share.

        Raises:
            Unavailable: the API can't be reached, or its answer has no end.
        """
        media_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            async with self._writer.answer(
                method=method,
                version=version,
                url=url,
                content=body,
                params=params,
                headers=_HEADERS | {"content-type": media_type},
                timeout=self.patience.connect,
            ) as response:
                return response.status_code, await _bounded(response, _LARGEST_OBJECT, self.patience.page)
        except _EXPECTED as error:
            await self._writer.lost()
            raise Unavailable(_words(error)) from error

    async def aclose(self) -> None:
        """Close the connection that Events, and what is asked of Nodes, go over."""
        await self._writer.aclose()

    def credentials(self) -> Credentials:
        """The credentials as the files have them now, or if these can't be read, as they last were."""
        try:
            self._credentials, self._fault = self._read(), ""
        except BadInput as error:
            if self._fault != str(error):
                log.warning(
                    "keeping the current credentials: %(reason)s",
                    {"reason": error},
                    extra={"code": Code.CREDENTIALS_KEPT},
                )
            self._fault = str(error)
        return self._credentials

    async def identity(self) -> Credentials:
        """The credentials with what the plugin gives, if there is one.

        Raises:
            ConnectionError: the plugin fails.
        """
        credentials = self.credentials()
        if credentials.plugin is None:
            return credentials
        given = await self._plugins.ask(credentials.plugin, credentials.server, credentials.authority)
        return msgspec.structs.replace(
            credentials, plugin=None, token=given.token, certificate=given.certificate, key=given.key
        )

    def denied(self, credentials: Credentials) -> None:
        """The API doesn't know who has these credentials."""
        if self._plugins.gave(credentials.token, credentials.certificate):
            self._plugins.forget()

    @property
    def address(self) -> str:
        """The URL to use now."""
        addresses = [self._credentials.server, *self._others]
        return addresses[self._failed % len(addresses)]

    def failed(self, address: str) -> None:
        """An address doesn't work, so another one is next; each resource that used it says so, and it counts once."""
        if address == self.address:
            self._failed += 1

    def answered(self) -> None:
        """The server has answered somebody, so nobody waits longer to try again."""
        self._is_answering.set()
        self._said.clear()

    def _note_failure(self, reflector: Reflector, error: Exception) -> None:
        if not isinstance(error, _EXPECTED):
            log.error(
                "a defect while following %(resource)s",
                {"resource": reflector.resource.plural},
                exc_info=error,
                extra={"code": Code.DEFECT},
            )
        cause = error.__cause__ if isinstance(error, kr8s.APITimeoutError) else error
        if isinstance(cause, httpx.ReadTimeout):
            reflector.receive_silence(_now())
        else:
            reflector.receive_failure(_words(cause), _now())

    def _complain(self, reflector: Reflector) -> None:
        for problem in reflector.complaints.fresh():
            log.warning("%s", problem, extra={"code": problem.code})
        if self._problems[reflector.resource.plural] != reflector.complaints.count:
            self._problems[reflector.resource.plural] = reflector.complaints.count
            self._report_problems(self._problems.total())

    def _is_news(self, plural: str, pause: Pause) -> bool:
        """Whether to log a pause: each, except that it is said once a minute only that nobody answers."""
        said, since = self._said.get(plural, ("", 0.0))
        if pause.awaits_server and pause.reason == said and _now() - since < _SAY_AGAIN:
            return False
        self._said[plural] = pause.reason, _now()
        return True

    async def _pause(self, reflector: Reflector) -> None:
        pause = reflector.pause
        seconds = pause.seconds(random.random())
        if pause.reason and self._is_news(reflector.resource.plural, pause):
            level = logging.WARNING if pause.is_fault else logging.INFO
            what = {"resource": reflector.resource.plural, "reason": pause.reason, "seconds": seconds}
            log.log(
                level, "%(resource)s: %(reason)s; trying again in %(seconds).1f s", what, extra={"code": pause.code}
            )
        if not pause.awaits_server:
            await asyncio.sleep(seconds)
            return
        self._is_answering.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_answering.wait(), seconds)


def _words(error: BaseException | None) -> str:
    """An error in words: some of httpx have none of their own, but a cause that has."""
    words = str(error)
    while not words and error is not None and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__
        words = str(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _code(status: int) -> str:
    """A status for a metric, which must not get a series for each number that a server thinks of."""
    return str(status) if status in _STATUSES else "other"


def _now() -> float:
    """The loop's own time, in seconds."""
    return asyncio.get_running_loop().time()


async def _converse(connection: _Connection, reflector: Reflector, activity: Activity) -> AsyncGenerator[list[Event]]:
    """One request, and all events in its answer."""
    request = reflector.request(_now(), random.random())
    activity.asks(is_watch=request.is_watch)
    async with connection.answer_to(request) as response:
        reflector.receive_answer(_now())
        if response.status_code != 200:
            if events := reflector.receive_error(await _error_status(response, connection.patience.page), _now()):
                yield events
        elif request.is_watch:
            async with aclosing(_watched(response, reflector, activity)) as batches:
                async for events in batches:
                    yield events
        elif (body := await _body(response, reflector, connection.patience.page)) is not None:
            for events in reflector.receive_list(body, _now()):
                activity.hears(has_events=bool(events))
                if events:
                    yield events
                await asyncio.sleep(0)


async def _error_status(response: httpx.Response, seconds: float) -> ErrorStatus:
    """What an answer says that isn't what was asked for; a redirection leads nowhere."""
    body = await _bounded(response, _LONGEST_ERROR, seconds)
    code, target = response.status_code, response.headers.get("location", "")
    if response.is_redirect:
        return ErrorStatus(code, f"{code}: it redirects to {show(target)}, and no redirection is followed")
    return read_error(body, code, response.headers.get("retry-after", ""))


async def _bounded(response: httpx.Response, most: int, seconds: float) -> bytes:
    """The content of an answer, or where it is longer the first bytes of it, `most` at the least."""
    body = bytearray()
    async with asyncio.timeout(seconds):
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > most:
                break
    return bytes(body)


async def _body(response: httpx.Response, reflector: Reflector, seconds: float) -> bytearray | None:
    """The whole of a list, or None if it has no end."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > reflector.room:
                    reflector.receive_endless_list(f"{LARGEST_LIST} bytes", _now())
                    return None
    except TimeoutError:
        reflector.receive_endless_list(f"{seconds:.0f} s", _now())
        return None
    return body


async def _watched(response: httpx.Response, reflector: Reflector, activity: Activity) -> AsyncGenerator[list[Event]]:
    async with aclosing(gathered(response.aiter_bytes())) as pieces:
        async for data in pieces:
            events = reflector.receive_data(data, _now())
            activity.hears(has_events=bool(events))
            if events:
                yield events
            if not reflector.is_open:
                return
    reflector.receive_end(_now())


class _Connection:
    """One resource's way to the API: a `kr8s.Api` that is replaced when credentials or addresses are."""

    def __init__(self, cluster: Cluster) -> None:
        self.patience = cluster.patience
        self._cluster = cluster
        self._api: Api | None = None
        self._is_for: tuple[Credentials, str] | None = None
        self._files = contextlib.ExitStack()

    async def __aenter__(self) -> _Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def lost(self) -> None:
        """Have a new one next time, from what files and names say by then, and perhaps to another address."""
        if self._is_for:
            self._cluster.failed(self._is_for[1])
        await self.aclose()

    @asynccontextmanager
    async def answer_to(self, request: Request) -> AsyncIterator[httpx.Response]:
        """Make a request; its body is yet to be read."""
        read = self.patience.silence if request.is_watch else self.patience.answer
        async with self.answer(
            version=request.api_version,
            url=request.plural,
            params=request.params,
            headers=_WATCH_HEADERS if request.is_watch else _HEADERS,
            timeout=httpx.Timeout(self.patience.connect, read=read),
        ) as response:
            yield response

    @asynccontextmanager
    async def answer(self, **request: Any) -> AsyncIterator[httpx.Response]:
        """Make any request, which goes to this address and no other, wherever the answer points."""
        api, address = await self.current()
        begin, code, host = _now(), "<error>", httpx.URL(address).netloc.decode()
        call = api.call_api(stream=True, raise_for_status=False, follow_redirects=False, **request)
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(call)
                code = _code(response.status_code)
            finally:
                self._cluster.report_request(Asked(code, request.get("method", "GET"), host, _now() - begin))
            self._cluster.answered()
            yield response
        if response.status_code >= 500:
            await self.lost()
        elif response.status_code == 401:
            await self._denied()

    async def _denied(self) -> None:
        if self._is_for:
            self._cluster.denied(self._is_for[0])
        await self.aclose()

    async def current(self) -> tuple[Api, str]:
        """The client for what files and names say now, and the address that it asks."""
        wanted = await self._cluster.identity(), self._cluster.address
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
