"""The way from a request to its answer: routing, faults, authorization, and the work itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from nftproxy_conformance.apiserver import reviews
from nftproxy_conformance.apiserver.access import Access
from nftproxy_conformance.apiserver.discovery import NOT_FOUND, discovery_body, is_of_known_group
from nftproxy_conformance.apiserver.exchange import Exchange, record_of
from nftproxy_conformance.apiserver.faults import Faults, Parting, Respond, Slow, Stale
from nftproxy_conformance.apiserver.formats import formatted, negotiated
from nftproxy_conformance.apiserver.journal import Journal
from nftproxy_conformance.apiserver.lists import list_body
from nftproxy_conformance.apiserver.options import Options, is_watch, parse_options
from nftproxy_conformance.apiserver.pod_exec import ExecRequest, ExecResult, RunInPod, run_in_pod
from nftproxy_conformance.apiserver.resources import RESOURCES, Target, target_of
from nftproxy_conformance.apiserver.settings import Settings
from nftproxy_conformance.apiserver.status import ApiError, unknown_resource
from nftproxy_conformance.apiserver.store import Change, Store
from nftproxy_conformance.apiserver.versions import Feature, has, is_served
from nftproxy_conformance.apiserver.watches import Watch, is_sent_in_stream
from nftproxy_conformance.apiserver.writes import WRITES, Write, read

VERBS = {
    ("GET", False): "list",
    ("GET", True): "get",
    ("POST", False): "create",
    ("PUT", True): "update",
    ("PATCH", True): "patch",
    ("DELETE", True): "delete",
}
"""The verb of a method, for a collection or an object."""


class Handler:
    """Answers every request.

    Args:
        store: the objects.
        access: authentication and authorization.
        settings: the server's settings.
        journal: the record of all requests.
        faults: the faults to apply.
        watches: the running watches, which the handler updates.
    """

    def __init__(
        self,
        store: Store,
        access: Access,
        settings: Settings,
        journal: Journal,
        faults: Faults,
        watches: dict[Watch, None],
    ) -> None:
        self._store = store
        self._access = access
        self._settings = settings
        self._journal = journal
        self._faults = faults
        self._watches = watches
        self.run_in_pod: RunInPod = _nothing

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        """Answer a request.  The call is cancelled when the connection is lost."""
        request = record_of(raw)
        target = self._target_of(request.path)
        if target is None:
            request.verb, request.resource = "get", request.path
        else:
            verb = VERBS.get((request.method, bool(target.name)), "")
            request.verb = "watch" if verb == "list" and is_watch(request.query) else verb
            request.resource, request.namespace, request.name = target.rbac_resource, target.namespace, target.name
        self._journal.add(request)
        try:
            return await self._answer(Exchange(raw, request, self._journal, self._settings), target)
        finally:
            self._journal.finish(request)

    def _target_of(self, path: str) -> Target | None:
        target = target_of(path)
        return target if target and is_served(target.resource, self._settings.version) else None

    async def _answer(self, exchange: Exchange, target: Target | None) -> web.StreamResponse:
        """Answer, refuse, or apply a fault."""
        try:
            response = await self._faulty(exchange)
            return await self._right(exchange, target) if response is None else response
        except ApiError as error:
            return await exchange.refuse(error)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001  # raised when the server is closed
            self._journal.failures.append(error)
            return await exchange.refuse(ApiError(500, f"this is a bug of the test server: {error!r}"))

    async def _faulty(self, exchange: Exchange) -> web.StreamResponse | None:
        """Apply faults that come before the answer, and return an answer that replaces the right answer."""
        exchange.actions.extend(self._faults.of_answer(exchange.request))
        for action in exchange.actions:
            if isinstance(action, Slow):
                await asyncio.sleep(action.before)
            elif isinstance(action, Respond):
                if action.body is None:
                    raise action.error
                headers = {} if action.retry_after is None else {"Retry-After": str(action.retry_after)}
                headers |= {"Location": action.location} if action.location else {}
                return await exchange.answer(action.code, action.body, **headers | {"Content-Type": "text/plain"})
        return None

    async def _right(self, exchange: Exchange, target: Target | None) -> web.StreamResponse:
        """Answer as a server without faults does."""
        request = exchange.request
        authorization = request.headers.get("authorization", "")
        request.user = self._access.user(authorization, exchange.certificate_name)
        exchange.form = negotiated(request.headers.get("accept", ""))
        if request.path == "/metrics":
            return await exchange.answer(200, self._journal.metrics(), **{"Content-Type": "text/plain"})
        if request.path == reviews.PATH and request.method == "POST":
            reviews.check_may_ask(self._access, request.user)
            return await exchange.answer(201, reviews.answer(self._access, await exchange.body()))
        if target is None:
            return await self._discover(exchange)
        if not request.verb:
            raise ApiError(405, "the server does not allow this method on the requested resource")
        if request.verb in {"list", "watch"}:
            return await self._many(exchange, target)
        self._access.check(request.user, target, request.verb, target.name)
        if target.subresource in target.resource.connects:
            return await self._exec(exchange, target)
        if request.verb == "get":
            return await exchange.answer(200, formatted(read(self._store, target), exchange.form, target.resource))
        body = await exchange.body()
        write = Write(self._store, self._settings, target, exchange.manager, exchange.content_type, body)
        answer = WRITES[request.verb](write)
        headers = {"Warning": f'299 - "{answer.warning}"'} if answer.warning else {}
        return await exchange.answer(answer.code, answer.body, **headers)

    async def _discover(self, exchange: Exchange) -> web.StreamResponse:
        request = exchange.request
        self._access.check_path(request.user, request.path)
        body = discovery_body(request.path, self._settings.version)
        if body is not None:
            return await exchange.answer(200, body)
        if is_of_known_group(request.path):
            raise unknown_resource()
        return await exchange.answer(404, NOT_FOUND, **{"Content-Type": "text/plain; charset=utf-8"})

    async def _many(self, exchange: Exchange, target: Target) -> web.StreamResponse:
        request = exchange.request
        options = parse_options(target, request.query, self._settings.version)
        self._access.check(request.user, target, request.verb, options.selection.name)
        if options.is_watch:
            return await self._watch(exchange, target, options)
        stale = next((action.revision for action in exchange.actions if isinstance(action, Stale)), None)
        if stale is None and not options.continue_token:
            await self._wait_for_future(options.resource_version or 0)
        body = list_body(self._store, target, options, stale)
        return await exchange.answer(200, formatted(body, exchange.form, target.resource))

    async def _exec(self, exchange: Exchange, target: Target) -> web.StreamResponse:
        """Run a command in a pod.  Only WebSockets are served, which real servers serve beside SPDY."""
        if has(self._settings.version, Feature.EXEC_CHECKS_CREATE):
            self._access.check(exchange.request.user, target, "create", target.name)
        read(self._store, target._replace(subresource=""))  # raises if there is no such pod
        if not exchange.wants_websocket:
            raise ApiError(400, "Upgrade request required")
        return await run_in_pod(exchange.raw, target.namespace, target.name, self.run_in_pod)

    async def _wait_for_future(self, revision: int) -> None:
        """Wait a short time for a future version."""
        if revision <= self._store.revision:
            return
        come = asyncio.Event()

        def notify(change: Change) -> None:
            if change.revision >= revision:
                come.set()

        for resource in RESOURCES:
            self._store.subscribe(resource, notify)
        try:
            await asyncio.wait_for(come.wait(), self._settings.future_wait / self._settings.pace)
        except TimeoutError:
            pass  # the list reports it
        finally:
            for resource in RESOURCES:
                self._store.unsubscribe(resource, notify)

    async def _watch(self, exchange: Exchange, target: Target, options: Options) -> web.StreamResponse:
        try:
            watch = Watch(self._store, target.resource, options, self._settings, exchange.request)
        except ApiError as error:
            if not is_sent_in_stream(error, self._settings):
                raise
            return await exchange.stream(_only(error.event))
        watch.open()
        self._watches[watch] = None
        self._faults.of_stream(watch)
        try:
            response = await exchange.stream(watch.chunks())
            if watch.parting is not None and watch.parting is not Parting.END:
                await exchange.part(watch.parting)
            return response
        finally:
            del self._watches[watch]
            watch.close()
            self._journal.notify()


async def _nothing(_request: ExecRequest) -> ExecResult:
    return ExecResult()


async def _only(line: bytes) -> AsyncIterator[bytes]:
    yield line
