"""What `nftproxy run` runs: the agent, and everything beside the rules that follows the cluster's state."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import platform
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from pathlib import Path

from nftproxy import __version__
from nftproxy.agent.coding import coding
from nftproxy.agent.control import Control
from nftproxy.agent.counts import ServiceCounts
from nftproxy.agent.ending import SIGNALS, asked_to_end, ends_in_any_case
from nftproxy.agent.forwarder import CannotForward, Forwarder
from nftproxy.agent.health import Health
from nftproxy.agent.loop import Agent
from nftproxy.agent.metrics import FamilyFigures, Figures, Metrics
from nftproxy.agent.neighbours import in_words, until_alone, watch_other_proxies
from nftproxy.agent.questions import Knowledge, questions
from nftproxy.agent.recorder import (
    Events,
    Post,
    of_annotations,
    of_configuration,
    of_conflict,
    of_excess,
    of_forwarder,
    of_listener,
    of_refusal,
    of_silence,
    of_start,
    of_startup_taint,
)
from nftproxy.agent.reload import until_changed
from nftproxy.agent.servers import CannotListen, Servers
from nftproxy.agent.silence import Change, SilenceWatch
from nftproxy.agent.startup_taint import Nodes, StartupTaint
from nftproxy.agent.vitals import Vitals
from nftproxy.api.kinds import kinds_for
from nftproxy.api.services import PROXY_NAME
from nftproxy.kernel import memory, sysctl
from nftproxy.kernel.agent_lock import AgentLock
from nftproxy.kernel.conntrack import Conntrack
from nftproxy.kernel.counts import COUNTED_SETS, SCREENED_SETS, CountReader
from nftproxy.kernel.drift import Custody
from nftproxy.kernel.libnftables import AsyncKernel, Kernel
from nftproxy.kernel.notifications import Notifications
from nftproxy.kernel.other_proxies import Traces
from nftproxy.kernel.unanswered import UnansweredReader
from nftproxy.model.addresses import Family, family_of
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem, Unavailable
from nftproxy.model.events import Event
from nftproxy.model.objects import ObjectKey
from nftproxy.model.settings import Config
from nftproxy.pipeline import Pipeline
from nftproxy.policy.flows import Sweeps
from nftproxy.policy.fronts import Lost
from nftproxy.policy.health_checks import health_check_addresses, without_local_endpoints
from nftproxy.sources import plugins
from nftproxy.sources.activity import Activity
from nftproxy.sources.apiserver import Cluster
from nftproxy.sources.config_file import ConfigFile
from nftproxy.sources.credentials import read_credentials
from nftproxy.sources.directory import Directory
from nftproxy.sources.interfaces import follow_addresses

log = logging.getLogger(__name__)

Sources = Mapping[str, AsyncIterator[Sequence[Event]]]

MOST_SWEEPS = 50_000
"""UDP fronts of a family whose rules don't follow that are remembered for when they do."""


class Daemon:
    """Everything that one process of the proxy does, put together; made inside the event loop."""

    def __init__(
        self,
        pipeline: Pipeline,
        source: Callable[[], str],
        activities: Callable[[], Iterable[Activity]] = lambda: (),
    ) -> None:
        """Nothing happens yet.

        Args:
            pipeline: what is to be kept in the kernel.
            source: what is followed, as `nftproxy status` names it.
            activities: what is being done about each resource.
        """
        config = pipeline.settings.config
        node = pipeline.state.node.name
        self._pipeline = pipeline
        self._kernel = AsyncKernel()
        self._events = Events(node)
        started, libnftables = time.time(), Kernel().version()
        self.metrics = Metrics(pipeline.generations, lambda: figures_of(pipeline, _count_clients), started=started)
        self.metrics.built(__version__, libnftables, platform.release())
        self._conntrack = Conntrack(self.metrics.reconciled)
        self._vitals = vitals = Vitals(Health(config.sync_period, pipeline.generations), self.metrics)
        reader = CountReader(COUNTED_SETS if config.service_counts else SCREENED_SETS)
        self._counts = ServiceCounts(pipeline.counted, pipeline.generations, reader)
        self._servers = Servers(
            config, lambda: pipeline.state.node, vitals, self._tell_failure, count=self._counts.text
        )
        has_localhost = bool(config.node_port_addresses.localhost)
        self._forwarder = Forwarder(self.metrics, self._tell_unforwarded) if has_localhost else None
        self._silence = SilenceWatch(
            pipeline.state, pipeline.generations, UnansweredReader(), self.metrics, self._tell_silence
        )
        self._notifications = Notifications()
        self._agent = Agent(
            pipeline,
            self._kernel,
            vitals,
            Custody(self._notifications),
            self._follow_rules,
            sync_period=config.sync_period,
            min_sync_period=config.min_sync_period,
        )
        self._startup_taint = StartupTaint(config.startup_taint, node, self._tell_taint)
        known = Knowledge(pipeline, vitals, started, libnftables, source, activities, lambda: self._other_proxies)
        self._control = Control(config.agent_socket, questions(known))
        self._other_proxies: Traces = {}
        self._has_settled = False
        self._excessive: set[ObjectKey] = set()
        self._sweeps: Sweeps = {}

    async def run(
        self, sources: Sources, post: Post, reason_to_restart: Awaitable[None], nodes: Nodes | None = None
    ) -> bool:
        """Follow the sources, by name, until SIGTERM, SIGINT or a reason to restart; the rules stay.

        While there is another agent in this network namespace this waits for it to end, and does nothing else.
        `post` sends an Event; from `nodes` the startup taint is removed.  The result says whether to start anew.
        """
        waiting = asyncio.ensure_future(until_alone())
        restarting = asyncio.ensure_future(reason_to_restart)

        def stop(*_: object) -> None:
            waiting.cancel()
            self._agent.stop()

        def end() -> None:
            asked_to_end.set()
            stop()

        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, end)
        restarting.add_done_callback(stop)
        lock: AgentLock | None = None
        with ends_in_any_case(at_last=plugins.kill_all):
            try:
                await asyncio.wait([waiting])
                if not waiting.cancelled():
                    lock = waiting.result()
                    await self._work(lock, sources, post, nodes)
                if restarting.done():
                    await restarting  # which raises what went wrong in it
                    return True
                return False
            finally:
                restarting.cancel()
                self._notifications.close()
                self._conntrack.close()
                self._counts.close()
                self._kernel.close()
                if lock:
                    lock.close()

    async def _work(self, lock: AgentLock | None, sources: Sources, post: Post, nodes: Nodes | None) -> None:
        """What there is to do for the only agent of this network namespace, until it is stopped."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._notifications, self._agent.noticed)
        if lock:
            loop.add_reader(lock, lock.answer)
        self._events.report([of_start(self._pipeline.state.node.name)])
        beside = [asyncio.create_task(each) for each in (self._events.run(post), *self._beside(nodes))]
        try:
            with contextlib.suppress(Unavailable):  # the first load says so, and goes on trying
                await self._kernel.prepare()
            await self._counts.begin()
            async with self._control, self._servers:  # health is answered before there are rules
                await self._agent.run({**sources, "connections without an answer": self._silence.follow()})
        finally:
            for task in beside:
                task.cancel()
            if self._forwarder:
                await self._forwarder.close()
            loop.remove_reader(self._notifications)
            if lock:
                loop.remove_reader(lock)

    def _beside(self, nodes: Nodes | None) -> Iterator[Coroutine[None, None, None]]:
        """What there is to do beside the rules, by the configuration."""
        config = self._pipeline.settings.config
        if config.is_canary:
            text = "serving just the Services with the label %(label)s, beside another proxy that serves the others"
            log.info(text, {"label": f"{PROXY_NAME}={config.service_proxy_name}"})
        else:
            yield watch_other_proxies(self._tell_of_proxies)
        if config.startup_taint and nodes is not None:
            yield self._startup_taint.remove(nodes)

    async def _follow_rules(self, families: Collection[Family]) -> None:
        """After the kernel, in the families that it follows in: conntrack, health-check node ports, and Events."""
        state, config = self._pipeline.state, self._pipeline.settings.config
        if not self._has_settled:
            self._has_settled = True
            sysctl.set_up(config)  # conntrack's settings exist only once rules have made the kernel load it
            memory.keep_all()
        if set(families) == self._pipeline.generations.keys():
            self._startup_taint.loaded()
        if sweeps := self._sweeps_of(families):
            self._conntrack.begin(sweeps)
        checks = self._pipeline.health_checks.by_port
        await self._servers.follow(checks, health_check_addresses(state, config) if checks else ())
        if self._forwarder:
            self._forwarder.follow(self._pipeline.localhost_ports.by_port)
        self._silence.follow_rules()
        self._tell_losses(self._pipeline.take_losses())
        for family, withheld in self._pipeline.withheld.items():
            self._events.report(of_refusal(family, service, why) for service, why in withheld.items())
        self._tell_excess(self._pipeline.state.excessive)

    def _sweeps_of(self, families: Collection[Family]) -> Sweeps:
        """The UDP flows to delete now; those of a family whose rules don't follow wait, the latest of them."""
        due = self._sweeps | self._pipeline.flows.take()
        waiting = {front: usable for front, usable in due.items() if family_of(front.address) not in families}
        self._sweeps = dict(list(waiting.items())[-MOST_SWEEPS:])
        return {front: usable for front, usable in due.items() if front not in waiting}

    async def reconfigured(self, file: ConfigFile, check: Callable[[Config], None] = lambda _: None) -> None:
        """Return when the configuration has changed to another good one; `check` raises BadInput for one that isn't."""
        await until_changed(file, self._pipeline.settings.config, check, self._tell_of_configuration)

    def _tell_of_configuration(self, fault: str) -> None:
        self.metrics.configured(is_good=not fault)
        self._vitals.health.warn(Code.CONFIGURATION_NOT_APPLIED, *filter(None, [fault]))
        self._events.report([of_configuration(self._pipeline.state.node.name, fault)] if fault else [])

    def _tell_excess(self, excessive: Mapping[ObjectKey, str]) -> None:
        """Log and report the Services that exceed a limit, each when it begins to."""
        for service in excessive.keys() - self._excessive:
            why = excessive[service]
            what = {"service": service, "reason": why}
            log.warning(
                "Service %(service)s is quarantined: %(reason)s; it is served again once it is within the limit",
                what,
                extra={"code": Code.LIMIT_EXCEEDED},
            )
        for service in self._excessive - excessive.keys():
            log.info("Service %(service)s exceeds no limit any more", {"service": service})
        self._excessive = set(excessive)
        self._events.report(of_excess(service, why) for service, why in excessive.items())

    def tell_problems(self, count: int, fresh: Iterable[Problem]) -> None:
        """Show how many faults the objects have, and report what Services ask for by annotations and don't get."""
        self.metrics.skipped(count)
        self._events.report(of_annotations(fresh))

    def _tell_losses(self, losses: Sequence[Lost]) -> None:
        """Log and report what Services don't get: one line for each Service, however much it loses."""
        for service, lost in itertools.groupby(losses, key=lambda each: each.service):
            first, *others = lost
            more = f" (and {len(others)} more addresses and ports)" if others else ""
            why = first.why(self._pipeline.state.claims)
            log.warning(
                "Service %(service)s does not get %(what)s, and is served without it: %(why)s%(more)s",
                {"service": service, "what": first.what, "why": why, "more": more},
                extra={"code": first.denial.code},
            )
        self._events.report(map(of_conflict, losses))

    def _tell_of_proxies(self, traces: Traces) -> None:
        self._other_proxies = traces
        self.metrics.neighbours(traces)
        self._vitals.health.warn(Code.OTHER_PROXY, *(in_words(proxy, each) for proxy, each in traces.items()))

    def _tell_taint(self, why: str) -> None:
        self._events.report([of_startup_taint(self._pipeline.state.node.name, why)])

    def _tell_failure(self, failure: CannotListen) -> None:
        self._events.report([of_listener(failure, self._pipeline.state.node.name)])

    def _tell_silence(self, change: Change) -> None:
        node = self._pipeline.state.node.name
        self._events.report(of_silence(each, change.place, node) for each in change.services if change.is_silent)

    def _tell_unforwarded(self, failure: CannotForward) -> None:
        self._events.report([of_forwarder(failure, self._pipeline.state.node.name)])


async def follow_directory(pipeline: Pipeline, file: ConfigFile, directory: Path) -> bool:
    """Run with the manifests of a directory, and say whether to start anew; Events have nowhere to go but the log."""
    daemon = Daemon(pipeline, lambda: str(directory))
    kinds = kinds_for(pipeline.settings.config.service_proxy_name)
    sources = {str(directory): Directory(directory, kinds).follow(), **_own_sources(pipeline)}
    if taint := pipeline.settings.config.startup_taint:
        text = "the taint %(key)s stays on the Node: there is no API to remove it from"
        log.warning(text, {"key": taint}, extra={"code": Code.STARTUP_TAINT_STAYS})
    return await daemon.run(sources, _log_event, daemon.reconfigured(file))


async def follow_cluster(pipeline: Pipeline, file: ConfigFile, api_servers: Sequence[str]) -> bool:
    """Run with what the API server says, and say whether to start anew.

    Raises:
        BadInput: there are no credentials, or they can't be read, or an address is no URL.
    """
    config = pipeline.settings.config
    cluster = Cluster(
        config.kubeconfig,
        api_servers,
        report_problems=lambda count, fresh: daemon.tell_problems(count, fresh),
        report_request=lambda *request: daemon.metrics.requested(*request),
    )
    daemon = Daemon(pipeline, lambda: cluster.address, cluster.activities.values)
    sources = {**cluster.sources(pipeline.state.node.name, config.service_proxy_name), **_own_sources(pipeline)}

    def check(config: Config) -> None:
        read_credentials(config.kubeconfig)

    async with aclosing(cluster):
        return await daemon.run(sources, cluster.post, daemon.reconfigured(file, check), cluster)


def _own_sources(pipeline: Pipeline) -> Sources:
    """What of this machine itself the rules depend on."""
    is_needed = bool(pipeline.settings.config.node_port_addresses.networks)
    return {"this machine's addresses": follow_addresses()} if is_needed else {}


def figures_of(pipeline: Pipeline, count_clients: Callable[[Family], Mapping[str, int]]) -> Figures:
    """What metrics show of a pipeline, and of how many clients each map of a family remembers."""
    families = {
        family: FamilyFigures(
            generation.element_count(), count_clients(family), without_local_endpoints(pipeline.state, family)
        )
        for family, generation in pipeline.generations.items()
    }
    conflicts = sum(map(len, pipeline.losses.values()))
    return Figures(families, conflicts, len(pipeline.quarantined), coding.logged())


def _count_clients(family: Family) -> dict[str, int]:
    try:
        return Kernel().client_counts(family)
    except Unavailable:
        return {}  # metrics are asked for also while nothing else works


async def _log_event(_namespace: str, body: bytes, _name: str = "") -> None:
    """Where Events go that no API takes."""
    log.debug("Event: %(event)s", {"event": body.decode()})
