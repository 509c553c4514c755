"""The process of `nftproxy run`: makes the agent's parts, connects them, and runs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from pathlib import Path

from nftproxy.agent.agent_part import NO_EXTENSIONS, AgentContext, AgentExtensions
from nftproxy.agent.followers import Followers, PartsOfExtensions
from nftproxy.agent.http.listeners import Listeners
from nftproxy.agent.http.reserve import Reserve
from nftproxy.agent.lifecycle.background import keep_running
from nftproxy.agent.lifecycle.credentials_watch import watch_credentials
from nftproxy.agent.lifecycle.reload import until_changed
from nftproxy.agent.lifecycle.rivals import until_alone, watch_other_proxies
from nftproxy.agent.lifecycle.shutdown import SIGNALS, asked_to_end, ends_in_any_case
from nftproxy.agent.lifecycle.startup_taint import StartupTaint
from nftproxy.agent.loop import SyncLoop
from nftproxy.agent.node_watch import watch_node
from nftproxy.agent.process_watch import watch_process
from nftproxy.agent.reporting import occurrences
from nftproxy.agent.reporting.event_recorder import EventRecorder, PostEvent
from nftproxy.agent.reporting.fault_reporter import FaultReporter
from nftproxy.agent.reporting.health import Health
from nftproxy.agent.reporting.local_gaps import LocalGaps
from nftproxy.agent.reporting.measurements import measure
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.agent.socket.agent_socket import AgentSocket
from nftproxy.agent.socket.late_handlers import load_handlers
from nftproxy.agent.socket.query_context import QueryContext
from nftproxy.api.kinds import kinds_for
from nftproxy.build import this_build
from nftproxy.config.configz import configuration_digest
from nftproxy.kernel.agent_lock import AgentLock
from nftproxy.kernel.conntrack.sweeps import SweepQueue
from nftproxy.kernel.drift import CommitListener, TableWatch
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.threads import AsyncKernel, NotedThreads
from nftproxy.logs import line_filter, report_dropped, warn
from nftproxy.model.codes import Code
from nftproxy.model.errors import Unavailable
from nftproxy.model.events import Event
from nftproxy.model.fairness import NOTE_EVERY
from nftproxy.model.settings import PROXY_NAME, Config
from nftproxy.pipeline import Pipeline
from nftproxy.sources import plugins
from nftproxy.sources.api_client import ApiClient, ResourceActivity
from nftproxy.sources.config_file import ConfigFile
from nftproxy.sources.directory import Directory
from nftproxy.sources.interfaces import watch_addresses
from nftproxy.version import __version__

log = logging.getLogger(__name__)

Sources = Mapping[str, AsyncGenerator[Sequence[Event]]]


class Daemon:
    """The parts of an agent's process.  Make it inside the event loop."""

    def __init__(
        self,
        pipeline: Pipeline,
        source: Callable[[], str],
        activities: Callable[[], Iterable[ResourceActivity]] = lambda: (),
        extensions: AgentExtensions = NO_EXTENSIONS,
    ) -> None:
        """Make the parts.  None of them starts.

        Args:
            pipeline: the rules that the kernel is to hold.
            source: names the source of the cluster's objects, for `nftproxy status`.
            activities: the activity of each resource of the API.
            extensions: the parts and metrics of extensions.
        """
        config, state = pipeline.settings.config, pipeline.state
        started, libnftables = time.time(), Kernel().version()
        self._pipeline = pipeline
        self._kernel = AsyncKernel()
        self._commits = CommitListener()
        self._events = EventRecorder(state.node.name)

        self.metrics = Metrics(lambda metrics: measure(metrics, pipeline), extensions.metrics)
        build = this_build()
        versions = (__version__, libnftables, platform.release(), build.label)
        self.metrics.set("nftproxy_build_info", 1, *versions, configuration_digest(config))
        self._lock: AgentLock | None = None
        health = Health(config.sync_period, pipeline.generations)
        self._reporter = reporter = SyncReporter(
            health, self.metrics, started=started, activities=activities, find_node=lambda: state.node
        )
        self.faults = FaultReporter(pipeline, self._events, reporter)
        self._reserve = Reserve(show=partial(health.set_warnings, Code.NO_DESCRIPTORS))

        self._startup_taint = StartupTaint(config.startup_taint, state.node.name, self.faults.report_startup_taint)
        self._conntrack = SweepQueue(self.metrics.count_sweep)
        report = self._events.report_fault
        given = AgentContext(pipeline, self._kernel, self.metrics, self.faults, report)
        self._parts = tuple(filter(None, [make(given) for make in extensions.parts]))
        proxies, statuses = (lambda: self.faults.other_proxies), [each.status for each in self._parts]
        context = QueryContext(pipeline, reporter, started, libnftables, build, source, proxies, statuses)
        self._agent_socket = AgentSocket(config.agent_socket, partial(load_handlers, context), self._reserve)
        gaps = LocalGaps(pipeline, self.metrics)
        exposed = [gaps.exposition, *(each.exposition for each in self._parts)]
        note_taken = pipeline.health_checks.note_taken
        self._listeners = Listeners(
            config, reporter, report, exposed=exposed, note_taken=note_taken, reserve=self._reserve
        )
        followers = Followers(
            pipeline, self._conntrack, self._listeners, self._startup_taint, self.faults, PartsOfExtensions(self._parts)
        )
        self._loop = SyncLoop(
            pipeline,
            self._kernel,
            reporter,
            TableWatch(self._commits),
            followers.catch_up,
            sync_period=config.sync_period,
            min_sync_period=config.min_sync_period,
        )

    async def run(
        self, sources: Sources, post: PostEvent, reason_to_restart: Awaitable[None], nodes: ApiClient | None = None
    ) -> bool:
        """Follow the sources, by name, until SIGTERM, SIGINT or a reason to restart.  The rules stay.

        While there is another agent in this network namespace this waits for it to end, and only answers for its health
        and status.  `post` sends an Event.  `nodes` removes the startup taint.  The result says whether to restart.  In
        that case the lock stays for the next program image of this process.
        """
        asyncio.get_running_loop().set_default_executor(NotedThreads("looks"))
        waiting = asyncio.ensure_future(until_alone(self._reporter.health.waits_for_agent))
        restarting = asyncio.ensure_future(reason_to_restart)
        self._stop_for(restarting, waiting)
        with ends_in_any_case(at_last=plugins.kill_all), self._closing() as closing:
            closing.callback(restarting.cancel)
            async with self._listeners, self._agent_socket:  # both answer before there are rules
                await asyncio.wait([waiting])
                if not waiting.cancelled():
                    self._lock = waiting.result()
                    await self._work(sources, post, nodes)
            if not restarting.done():
                return False
            await restarting  # which raises its error
            if self._lock and not asked_to_end.is_set():
                self._lock.keep_over_exec()
            return True

    def _stop_for(self, restarting: asyncio.Future[None], waiting: asyncio.Future[AgentLock | None]) -> None:
        """Let a reason to restart, or a signal, stop the loop, and the wait for another agent."""

        def stop(*_: object) -> None:
            waiting.cancel()
            self._loop.stop()

        def end() -> None:
            asked_to_end.set()
            stop()

        restarting.add_done_callback(stop)
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, end)

    def _closing(self) -> contextlib.ExitStack:
        """Return a context that closes the parts at its end, the lock last, even if a part can't be closed."""
        closing = contextlib.ExitStack()
        closing.callback(self._close_lock)
        for part in self._parts:
            closing.callback(part.close)
        for each in (self._kernel, self._conntrack, self._commits, self._reserve):
            closing.callback(each.close)
        return closing

    def _close_lock(self) -> None:
        if self._lock:
            self._lock.close()

    async def _work(self, sources: Sources, post: PostEvent, nodes: ApiClient | None) -> None:
        """Run all parts, as the only agent of this network namespace, until the loop is stopped."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._commits, self._loop.read_commits)
        self._events.report([occurrences.start(self._pipeline.state.node.name)])
        beside = [asyncio.create_task(keep_running(each)) for each in self._beside(post, nodes)]
        try:
            with contextlib.suppress(Unavailable):  # the first load says so, and goes on trying
                await self._kernel.prepare()
            for part in self._parts:
                await part.start()
            await self._agent_socket.open()
            added = {name: source for part in self._parts for name, source in part.sources().items()}
            # In a task of its own, so that a change resumes the loop alone.
            await asyncio.create_task(self._loop.run({**sources, **added}))
        finally:
            for task in beside:
                task.cancel()
            for part in self._parts:
                await part.end()
            loop.remove_reader(self._commits)

    def _beside(self, post: PostEvent, nodes: ApiClient | None) -> Iterator[Callable[[], Awaitable[None]]]:
        """Yield the background tasks, as far as the configuration enables them."""
        config = self._pipeline.settings.config
        yield partial(self._events.run, post)
        yield report_left_out
        if config.is_canary:
            text = "serving just the Services with the label %(label)s, beside another proxy that serves the rest"
            log.info(text, {"label": f"{PROXY_NAME}={config.service_proxy_name}"})
        else:
            yield partial(watch_other_proxies, self.faults.report_other_proxies)
        for part in self._parts:
            yield from part.background()
        yield partial(watch_node, self._pipeline, self.faults)
        yield partial(watch_process, self.faults)
        if nodes is not None:
            yield partial(watch_credentials, nodes.credentials_fault, self.faults.report_credentials)
        if config.startup_taint and nodes is not None:
            yield partial(self._startup_taint.remove, nodes)

    async def reconfigured(self, file: ConfigFile, check: Callable[[Config], None] = lambda _: None) -> None:
        """Return when the file has another good configuration.  `check` raises BadInput for a bad configuration."""
        await until_changed(file, self._pipeline.settings.config, check, self.faults.report_configuration)


async def report_left_out() -> None:
    """Log the number of lines that the budget left out, or that were dropped, again and again, until cancelled."""
    while True:
        await asyncio.sleep(NOTE_EVERY)
        report_dropped()
        line_filter.report_left_out()


async def run_agent(
    pipeline: Pipeline,
    file: ConfigFile,
    directory: Path | None = None,
    api_servers: Sequence[str] = (),
    extensions: AgentExtensions = NO_EXTENSIONS,
) -> bool:
    """Run with the manifests of a directory, or else with the API server.  Return whether to restart.

    Raises:
        BadInput: as `run_with_cluster`.
    """
    if directory is None:
        return await run_with_cluster(pipeline, file, api_servers, extensions)
    return await run_with_directory(pipeline, file, directory, extensions)


async def run_with_directory(
    pipeline: Pipeline, file: ConfigFile, directory: Path, extensions: AgentExtensions = NO_EXTENSIONS
) -> bool:
    """Run with the manifests of a directory.  Return whether to restart.  Events go to the log only."""
    daemon = Daemon(pipeline, lambda: str(directory), extensions=extensions)
    settings = pipeline.settings
    kinds = kinds_for(settings.config.service_proxy_name, settings.options)
    sources = {str(directory): Directory(directory, kinds).listings(), **_own_sources(pipeline)}
    if taint := pipeline.settings.config.startup_taint:
        text = "the taint %(key)s stays on the Node: without an API server it can't be removed"
        warn(Code.STARTUP_TAINT_STAYS, text, key=taint)
    return await daemon.run(sources, _log_event, daemon.reconfigured(file))


async def run_with_cluster(
    pipeline: Pipeline, file: ConfigFile, api_servers: Sequence[str], extensions: AgentExtensions = NO_EXTENSIONS
) -> bool:
    """Run with the objects of the API server.  Return whether to restart.

    Raises:
        BadInput: there are no credentials, or they can't be read, or an address is no URL.
    """
    settings, config = pipeline.settings, pipeline.settings.config
    cluster = ApiClient(
        config.kubeconfig,
        api_servers,
        report_problems=lambda count, fresh: daemon.faults.report_problems(count, fresh),
        report_request=lambda request: daemon.metrics.count_request(request),
    )
    daemon = Daemon(pipeline, lambda: cluster.way, cluster.activities.values, extensions)
    followed = cluster.sources(pipeline.state.node.name, config.service_proxy_name, settings.options)
    sources = {**followed, **_own_sources(pipeline)}

    def check(config: Config) -> None:
        ApiClient(config.kubeconfig, api_servers)  # as the next process image makes it

    async with aclosing(cluster):
        return await daemon.run(sources, cluster.send_event, daemon.reconfigured(file, check), cluster)


def _own_sources(pipeline: Pipeline) -> Sources:
    """Return the sources on this machine that the rules depend on."""
    is_needed = bool(pipeline.settings.config.node_port_addresses.networks)
    return {"this machine's addresses": watch_addresses()} if is_needed else {}


async def _log_event(_namespace: str, body: Mapping[str, object], _name: str) -> None:
    """Log an Event that can't be sent to an API."""
    log.debug("Event: %(event)s", {"event": dict(body)})
