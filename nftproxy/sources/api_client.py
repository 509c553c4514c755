"""The client of a cluster's API: lists and watches, Events, Nodes.

api/reflector.py chooses the requests and reads the answers, and api_connection.py has the transport.  This module
passes bytes between the two, waits between requests, and records the activity of each resource for `nftproxy status`.
Each resource has its own connection, so that a failure affects no other resource.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from nftproxy.api.decode import show
from nftproxy.api.pauses import Pause, ReflectorTimes
from nftproxy.api.reflector import Reflector
from nftproxy.api.resources import Resource, resources
from nftproxy.api.responses import ErrorStatus, read_error
from nftproxy.logs import warn, warn_of
from nftproxy.model.annotations import Option
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem, Unavailable
from nftproxy.model.events import Event
from nftproxy.sources.access import Access
from nftproxy.sources.api_connection import (
    CONNECTION_ERRORS,
    NO_ANSWER,
    Connection,
    RequestOutcome,
    Timeouts,
    bounded_content,
    now,
)
from nftproxy.sources.cluster_api import ApiDenies, ClusterApi, Node, NotFoundError, ServerError
from nftproxy.sources.credentials import SERVICE_ACCOUNT, Credentials, read_credentials
from nftproxy.sources.failure_texts import failure_text
from nftproxy.sources.http_client import pieces
from nftproxy.sources.plugins import PluginRunner
from nftproxy.sources.server_addresses import ServerAddresses

if TYPE_CHECKING:
    import httpx


class ResourceActivity(msgspec.Struct):
    """The present request or pause of a resource.  Times are by `time.monotonic`, None before the first."""

    resource: str
    what: str = "starting"  # then listing, watching or pausing
    since: float = msgspec.field(default_factory=time.monotonic)  # when the request or pause began
    last_event: float | None = None
    last_heard: float | None = None
    """The server's last word: data, a listing, or the acceptance of a watch."""
    problem: str = ""  # the reason of the last pause, "" if nothing is wrong
    failing_since: float | None = None
    """The first failure after the server's last word, None if no request has failed since."""
    unusable_since: float | None = None
    """When the first listing came that can't be used, None if the last listing could be used."""
    is_absent: bool = False  # the cluster has no such kind, or doesn't need to let us list it

    def begin_request(self, *, is_watch: bool) -> None:
        """Record that a request was made."""
        self.what, self.since = "watching" if is_watch else "listing", time.monotonic()
        if is_watch:
            self.unusable_since = None

    def record_word(self, *, has_events: bool = False) -> None:
        """Record that the server has said something useful.  Bookmarks are no events."""
        self.last_heard, self.problem, self.failing_since = time.monotonic(), "", None
        if has_events:
            self.last_event = self.last_heard

    def record_unusable_listing(self) -> None:
        """Record that the server has answered with a listing that can't be used."""
        if self.unusable_since is None:
            self.unusable_since = time.monotonic()

    def begin_pause(self, problem: str, *, is_fault: bool, is_absent: bool) -> None:
        """Record that the next request comes later, and why."""
        self.what, self.since = "pausing", time.monotonic()
        self.problem, self.is_absent = problem, is_absent
        if problem and is_fault and self.failing_since is None:
            self.failing_since = self.since


log = logging.getLogger(__name__)

_LONGEST_ERROR = 64 * 1024
"""Bytes of an error answer that are read: nothing after them would be shown."""

NONSENSE = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
"""The exceptions that kr8s raises for an answer that isn't an object of the kind."""

_SAY_AGAIN = 60.0
"""Seconds before the log says again that the server doesn't answer or denies a request, or that a connection broke
under an answer, with the reason of then.  Of a cut the log names a single resource, as its cause cuts all of them."""

LOOK = 2.0
"""Seconds between two looks for other credentials while the server denies a request."""

_EVENTS = "events.k8s.io/v1"
_MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}


class ApiClient:
    """The client of a cluster's API."""

    def __init__(
        self,
        kubeconfig: str = "",
        api_servers: Sequence[str] = (),
        *,
        times: ReflectorTimes | None = None,
        patience: Timeouts | None = None,
        account: Path = SERVICE_ACCOUNT,
        report_problems: Callable[[int, Sequence[Problem]], None] = lambda _count, _fresh: None,
        report_request: Callable[[RequestOutcome], None] = lambda _asked: None,
    ) -> None:
        """Find the credentials and addresses.  No request is made yet.

        Args:
            kubeconfig: its path, "" for the service account of a pod.
            api_servers: URLs to try beside the URL in the kubeconfig or the environment.  Their certificates must be
                from the same authority, for the host in the URL or the kubeconfig's tls-server-name.
            times: the durations of reflectors.
            patience: how long to wait for the server.
            account: the directory of a pod's service account.
            report_problems: called with the number of present faults in objects, when it changes, and with the new
                faults, which are also logged.
            report_request: called after each request.

        Raises:
            BadInput: there are no credentials, or they can't be read, or a URL is invalid.
        """
        self.patience = patience or Timeouts()
        self._times = times or ReflectorTimes()
        plugins = PluginRunner(self.patience.plugin, self.patience.plugin_again)
        self._access = Access(lambda: read_credentials(kubeconfig, account), plugins, api_servers)
        self._server_addresses = ServerAddresses(self._access.addresses)
        self._server_answered = asyncio.Event()
        self._away_since: float | None = None
        self._said = 0.0  # when the log last said that the server is away
        self._cut = float("-inf")  # when the log last said that a connection broke under an answer
        self._denials: dict[str, float] = {}
        """When the log last said each denial of the last minute, by its words, until a request succeeds."""
        self._report_problems = report_problems
        self._report_request = report_request
        self._problems = Counter[str]()
        self.api = ClusterApi(self._connection, self.patience.connect)
        """kr8s' API, for single requests inside `asking`."""
        self.activities: dict[str, ResourceActivity] = {}

    def _connection(self) -> Connection:
        return Connection(
            self._access, self.patience, self._report_request, self.end_pauses, self._server_addresses.add_peer
        )

    @property
    def address(self) -> str:
        """The URL of the present server."""
        return self._access.address

    def credentials_fault(self) -> str:
        """Return why the credentials can't be read at present, "" if they can.  This blocks."""
        return self._access.fault()

    @property
    def way(self) -> str:
        """The URL of the present server, and the proxy on the way."""
        return self._access.way

    def sources(
        self, node_name: str, proxy_name: str, options: Iterable[Option[Any]] = ()
    ) -> dict[str, AsyncGenerator[list[Event]]]:
        """Every resource that a service proxy on a node follows, by its plural, and where the API server is."""
        followed = {each.plural: self.list_and_watch(each) for each in resources(node_name, proxy_name, options)}
        return {**followed, "the API server's addresses": self._server_addresses.events()}

    async def list_and_watch(self, resource: Resource) -> AsyncGenerator[list[Event]]:
        """Yield a listing of a resource, then changes as they come, or another listing.  It ends only with the task.

        Each piece of the server's answer becomes a batch of events at once.
        """
        reflector = Reflector(resource, self._times)
        activity = self.activities[resource.plural] = ResourceActivity(resource.plural)
        async with self._connection() as connection:
            while True:
                try:
                    async with aclosing(_converse(connection, reflector, activity)) as batches:
                        async for events in batches:
                            self._report_new_problems(reflector)
                            yield events
                            del events  # a listing is large, and the next event may be long in coming
                except Exception as error:  # noqa: BLE001  # for any error, other resources go on, and this one retries
                    self._handle_failure(connection.host, reflector, error)
                    await connection.fail_over()
                self._report_new_problems(reflector)
                pause = reflector.pause
                activity.begin_pause(pause.reason, is_fault=pause.is_fault, is_absent=reflector.is_absent)
                await self._pause(reflector, connection.credentials)

    async def send_event(self, namespace: str, body: Mapping[str, Any], name: str = "") -> ErrorStatus | None:
        """Create an Event (events.k8s.io/v1) in a namespace, or with a name, change that Event by a merge patch.

        All Events use the same connection, which stays open.

        Returns:
            The API's error, if it denies the Event for good.

        Raises:
            Unavailable: the API can't be reached, or can't take the Event now.
        """
        # An object of kr8s would cost each agent 1.9 MB for the class Box, as each begins with an Event.
        if name:
            method, url, headers, content = "PATCH", f"events/{quote(name, safe='')}", _MERGE_PATCH, body
        else:
            metadata = {**body.get("metadata", {}), "namespace": namespace}
            method, url, headers, content = "POST", "events", {}, {**body, "metadata": metadata}
        sending = self.api.call_api(
            method, _EVENTS, namespace=namespace, url=url, headers=headers, content=msgspec.json.encode(content)
        )
        try:
            async with self.asking(), sending:
                pass
        except ApiDenies as error:
            if error.status >= 500 or error.status in (401, 429):
                raise Unavailable(f"the API answered {error.status}") from error
            return error.answer
        return None

    async def read_node(self, name: str) -> Mapping[str, Any]:
        """Return a Node, decoded from JSON.

        Raises:
            Unavailable: the API can't be reached, or denies it.
        """
        node = Node(quote(name, safe=""), api=self.api)
        async with self.asking():
            await node.refresh()
        return node.raw

    async def patch_node(self, name: str, patch: Mapping[str, Any]) -> None:
        """Change a Node by a JSON merge patch.

        Raises:
            Unavailable: the API can't be reached, or denies it.
        """
        async with self.asking():
            await Node(quote(name, safe=""), api=self.api).patch(patch)

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Turn the errors of kr8s and httpx into ours, for the single requests in this context.

        Raises:
            ApiDenies: the API has answered with an error.
            Unavailable: the API can't be reached, or its answer has no end or makes no sense.
        """
        try:
            yield
        except ServerError as error:
            raise ApiDenies(_status_of(error)) from error
        except NotFoundError as error:  # its cause is the API's answer
            raise ApiDenies(_status_of(error.__cause__)) from error
        except NONSENSE as error:  # kr8s has read an answer that isn't what it was asked for
            raise Unavailable(f"unexpected answer: {type(error).__name__}: {error}") from error
        except Exception as error:  # after any error the callers retry, and their tasks go on
            _log_defect(error, "a defect while making a request")
            text = failure_text(error, self.api.host, self.patience)
            await self.api.fail_over()
            raise Unavailable(text) from error

    async def aclose(self) -> None:
        """Close the connection for Events and other single requests."""
        await self.api.aclose()

    def end_pauses(self) -> None:
        """End all pauses that wait for the server: it has answered a request."""
        self._server_answered.set()
        if self._away_since is not None:
            log.info("the API server answers again, after %(seconds).1f s", {"seconds": now() - self._away_since})
            self._away_since = None

    def _handle_failure(self, host: str, reflector: Reflector, error: Exception) -> None:
        _log_defect(error, "a defect while watching %(resource)s", resource=reflector.resource.plural)
        text = failure_text(error, host, self.patience, is_watch=reflector.is_watching)
        if isinstance(error, NO_ANSWER):
            reflector.receive_silence(text, now())
        else:
            reflector.receive_failure(text, now())

    def _report_new_problems(self, reflector: Reflector) -> None:
        if reflector.problems.is_idle:  # as with nearly every event
            return
        fresh = reflector.problems.pop_new(now())
        for problem in fresh:
            warn_of(problem)
        if fresh or self._problems[reflector.resource.plural] != reflector.problems.count:
            self._problems[reflector.resource.plural] = reflector.problems.count
            self._report_problems(self._problems.total(), fresh)

    def _is_news(self, pause: Pause) -> bool:
        """Whether to log a pause.

        An outage is a line for all resources, and another each minute, and so is a denial of the same words.  Any other
        answer that is an error is logged each time.  A connection that ends is no outage yet, as balancers cut idle
        connections.  Cuts of young connections are a line for all resources each minute.
        """
        if pause.is_cut:
            if self._away_since is not None or now() - self._cut < _SAY_AGAIN:
                return False
            self._cut = now()
        if pause.code is Code.API_DENIED:
            self._denials = {said: at for said, at in self._denials.items() if now() - at < _SAY_AGAIN}
            if pause.reason in self._denials:
                return False
            self._denials[pause.reason] = now()
        if not pause.awaits_server:
            return True
        if not pause.is_fault or (self._away_since is not None and now() - self._said < _SAY_AGAIN):
            return False
        self._said = now()
        self._away_since = self._said if self._away_since is None else self._away_since
        return True

    async def _pause(self, reflector: Reflector, used: Credentials | None) -> None:
        pause = reflector.pause
        seconds = pause.seconds(random.random())
        if not pause.reason:
            self._denials.clear()
        elif self._is_news(pause):
            level = logging.WARNING if pause.is_fault else logging.INFO
            warn(
                pause.code,
                "%(resource)s: %(reason)s; trying again in %(seconds).1f s",
                level=level,
                resource=reflector.resource.plural,
                reason=pause.reason,
                seconds=seconds,
            )
        if pause.code is Code.API_DENIED:
            await self._await_credentials(used, seconds)
            return
        if not pause.awaits_server:
            await asyncio.sleep(seconds)
            return
        self._server_answered.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._server_answered.wait(), seconds)

    async def _await_credentials(self, denied: Credentials | None, seconds: float) -> None:
        """Wait so many seconds, which may be 30, or until the files have other credentials than the denied ones."""
        end = now() + seconds
        while (rest := end - now()) > 0:
            credentials = self._access.read()
            if credentials.plugin is None and credentials != denied:
                return
            await asyncio.sleep(min(rest, LOOK))


def _status_of(error: BaseException | None) -> ErrorStatus:
    answer = error.response if isinstance(error, ServerError) else None
    if answer is None:
        return ErrorStatus(0, str(error))
    return read_error(answer.content, answer.status_code)._replace(message=str(error))


def _log_defect(error: Exception, text: str, **values: str) -> None:
    """Log an error with its traceback, unless connections raise it."""
    if not isinstance(error, CONNECTION_ERRORS):
        warn(Code.DEFECT, text, level=logging.ERROR, exc_info=error, **values)


async def _converse(
    connection: Connection, reflector: Reflector, activity: ResourceActivity
) -> AsyncGenerator[list[Event]]:
    """Make a request, and yield the events in its answer."""
    request = reflector.request(now(), random.random())
    activity.begin_request(is_watch=request.is_watch)
    async with connection.answer_to(request) as response:
        reflector.receive_answer(now())
        if response.status_code != 200:
            if events := reflector.receive_error(await _error_status(response, connection), now()):
                yield events
        elif request.is_watch:
            activity.record_word()
            async with aclosing(_watched(response, reflector, activity)) as batches:
                async for events in batches:
                    yield events
        else:
            if events := await _listed(response, reflector, connection.patience.page):
                activity.record_word(has_events=True)
                yield events
            if reflector.pause.is_fault and reflector.pause.reason:
                activity.record_unusable_listing()
            elif not reflector.pause.reason:
                activity.record_word()


async def _error_status(response: httpx.Response, connection: Connection) -> ErrorStatus:
    """Read an answer of another status than 200.  No redirection is followed."""
    body = await bounded_content(response, _LONGEST_ERROR, connection.patience.page)
    code, target = response.status_code, response.headers.get("location", "")
    if response.is_redirect:
        return ErrorStatus(code, f"{code}: it redirects to {show(target)}, and no redirection is followed")
    return connection.error_status(body, code, response.headers.get("retry-after", ""))


async def _listed(response: httpx.Response, reflector: Reflector, seconds: float) -> list[Event]:
    """Read a list, in at most these seconds.  After each piece, other tasks get their turn."""
    try:
        async with asyncio.timeout(seconds), aclosing(pieces(response)) as content:
            async for data in content:
                reflector.receive_list_data(data, now())
                if not reflector.is_open:
                    return []
                await asyncio.sleep(0)
    except TimeoutError:
        reflector.receive_endless_list(f"{seconds:.0f} s", now())
        return []
    return reflector.receive_list_end(now())


async def _watched(
    response: httpx.Response, reflector: Reflector, activity: ResourceActivity
) -> AsyncGenerator[list[Event]]:
    clock = asyncio.get_running_loop().time
    async with aclosing(pieces(response)) as content:
        async for data in content:
            events = reflector.receive_data(data, clock())
            activity.record_word(has_events=bool(events))
            if events:
                yield events
            if not reflector.is_open:
                return
    reflector.receive_end(now())
