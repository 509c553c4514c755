"""Following the cluster: lists and watches.

api/reflector.py decides what to ask and what the answers mean, api_connection.py has the transport; this module reads
the answers and waits between requests.  Each resource is followed by itself, over a connection of its own, and what
happens to one doesn't affect another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from nftproxy.api.decode import show
from nftproxy.api.pauses import Pause, Times
from nftproxy.api.reflector import LARGEST_LIST, Reflector
from nftproxy.api.resources import Resource, resources
from nftproxy.api.responses import ErrorStatus, read_error
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem, Unavailable
from nftproxy.model.events import Event
from nftproxy.sources.access import Access
from nftproxy.sources.activity import Activity
from nftproxy.sources.api_connection import (
    CONNECTION_ERRORS,
    HEADERS,
    SILENCE,
    Asked,
    Connection,
    Patience,
    bounded_content,
    cause_of,
    error_text,
    now,
)
from nftproxy.sources.credentials import SERVICE_ACCOUNT
from nftproxy.sources.plugins import Plugins

if TYPE_CHECKING:
    import httpx  # api_connection.py imports it, with less beside it

log = logging.getLogger(__name__)

_LONGEST_ERROR = 64 * 1024
"""Bytes of an error answer that are read: nothing of what comes after them would be shown."""
_LARGEST_OBJECT = 3 * 2**20
"""Bytes of an object: what kube-apiserver takes at the most in one request."""

_SAY_AGAIN = 60.0
"""Seconds after which the log has again why nobody answers: attempts follow each other soon."""


class Cluster:
    """A cluster's API: what a service proxy follows of it, and asks of it."""

    def __init__(
        self,
        kubeconfig: str = "",
        api_servers: Sequence[str] = (),
        *,
        times: Times | None = None,
        patience: Patience | None = None,
        account: Path = SERVICE_ACCOUNT,
        report_problems: Callable[[int, Sequence[Problem]], None] = lambda _count, _fresh: None,
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
            report_problems: called with the number of faults that the objects have, whenever it changes, and with
                those of them that are new and in the log.
            report_request: called after each request.

        Raises:
            BadInput: there are no credentials, or they can't be read, or a URL is none.
        """
        self.patience = patience or Patience()
        self._times = times or Times()
        plugins = Plugins(self.patience.plugin, self.patience.plugin_again)
        self._access = Access(kubeconfig, api_servers, account, plugins)
        self._is_answering = asyncio.Event()
        self._said: dict[str, tuple[str, float]] = {}
        self._report_problems = report_problems
        self._report_request = report_request
        self._problems = Counter[str]()
        self._writer = self._connection()
        self.activities: dict[str, Activity] = {}

    def _connection(self) -> Connection:
        return Connection(self._access, self.patience, self._report_request, self.answered)

    @property
    def address(self) -> str:
        """The URL of the server to ask now."""
        return self._access.address

    def sources(self, node_name: str, proxy_name: str) -> dict[str, AsyncIterator[list[Event]]]:
        """Every resource that a service proxy on a node follows, by its plural, for `Agent.run`."""
        return {resource.plural: self.follow(resource) for resource in resources(node_name, proxy_name)}

    async def follow(self, resource: Resource) -> AsyncGenerator[list[Event]]:
        """One resource: first a listing of it, then changes as they come, or again a listing; ends only with the task.

        What changes is passed on as it comes, each piece of the server's answer as a batch.
        """
        reflector = Reflector(resource, self._times)
        activity = self.activities[resource.plural] = Activity(resource.plural)
        async with self._connection() as connection:
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
                headers=HEADERS | {"content-type": media_type},
                timeout=self.patience.connect,
            ) as response:
                return response.status_code, await bounded_content(response, _LARGEST_OBJECT, self.patience.page)
        except CONNECTION_ERRORS as error:
            await self._writer.lost()
            raise Unavailable(error_text(error)) from error

    async def aclose(self) -> None:
        """Close the connection that Events, and what is asked of Nodes, go over."""
        await self._writer.aclose()

    def answered(self) -> None:
        """The server has answered somebody, so nobody waits longer to try again."""
        self._is_answering.set()
        self._said.clear()

    def _note_failure(self, reflector: Reflector, error: Exception) -> None:
        if not isinstance(error, CONNECTION_ERRORS):
            log.error(
                "a defect while following %(resource)s",
                {"resource": reflector.resource.plural},
                exc_info=error,
                extra={"code": Code.DEFECT},
            )
        cause = cause_of(error)
        if isinstance(cause, SILENCE):
            reflector.receive_silence(now())
        else:
            reflector.receive_failure(error_text(cause), now())

    def _complain(self, reflector: Reflector) -> None:
        fresh = reflector.complaints.fresh()
        for problem in fresh:
            log.warning("%s", problem, extra={"code": problem.code})
        if fresh or self._problems[reflector.resource.plural] != reflector.complaints.count:
            self._problems[reflector.resource.plural] = reflector.complaints.count
            self._report_problems(self._problems.total(), fresh)

    def _is_news(self, plural: str, pause: Pause) -> bool:
        """Whether to log a pause: each, except that it is said once a minute only that nobody answers."""
        said, since = self._said.get(plural, ("", 0.0))
        if pause.awaits_server and pause.reason == said and now() - since < _SAY_AGAIN:
            return False
        self._said[plural] = pause.reason, now()
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


async def _converse(connection: Connection, reflector: Reflector, activity: Activity) -> AsyncGenerator[list[Event]]:
    """One request, and all events in its answer."""
    request = reflector.request(now(), random.random())
    activity.asks(is_watch=request.is_watch)
    async with connection.answer_to(request) as response:
        reflector.receive_answer(now())
        if response.status_code != 200:
            if events := reflector.receive_error(await _error_status(response, connection.patience.page), now()):
                yield events
        elif request.is_watch:
            async with aclosing(_watched(response, reflector, activity)) as batches:
                async for events in batches:
                    yield events
        elif (body := await _body(response, reflector, connection.patience.page)) is not None:
            for events in reflector.receive_list(body, now()):
                activity.hears(has_events=bool(events))
                if events:
                    yield events
                await asyncio.sleep(0)


async def _error_status(response: httpx.Response, seconds: float) -> ErrorStatus:
    """What an answer says that isn't what was asked for; a redirection leads nowhere."""
    body = await bounded_content(response, _LONGEST_ERROR, seconds)
    code, target = response.status_code, response.headers.get("location", "")
    if response.is_redirect:
        return ErrorStatus(code, f"{code}: it redirects to {show(target)}, and no redirection is followed")
    return read_error(body, code, response.headers.get("retry-after", ""))


async def _body(response: httpx.Response, reflector: Reflector, seconds: float) -> bytearray | None:
    """The whole of a list, or None if it has no end."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > reflector.room:
                    reflector.receive_endless_list(f"{LARGEST_LIST} bytes", now())
                    return None
    except TimeoutError:
        reflector.receive_endless_list(f"{seconds:.0f} s", now())
        return None
    return body


async def _watched(response: httpx.Response, reflector: Reflector, activity: Activity) -> AsyncGenerator[list[Event]]:
    async for data in response.aiter_bytes():
        events = reflector.receive_data(data, now())
        activity.hears(has_events=bool(events))
        if events:
            yield events
        if not reflector.is_open:
            return
    reflector.receive_end(now())
