"""Reports faults that don't stop the rules, in the log, in Events, metrics, and health's warnings."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from typing import TypeVar

from nftproxy.agent.lifecycle.rivals import in_words
from nftproxy.agent.reporting import occurrences
from nftproxy.agent.reporting.event_recorder import EventRecorder
from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.kernel.others.other_proxies import PROXIES, Traces
from nftproxy.kernel.threads import BusyCall
from nftproxy.logs import inform, warn
from nftproxy.model.addresses import FAMILY_NAMES, Address, Family
from nftproxy.model.codes import AnyCode, Code
from nftproxy.model.errors import Problem
from nftproxy.model.fairness import first_in_turn
from nftproxy.model.objects import ObjectKey
from nftproxy.model.texts import first_of
from nftproxy.model.whereabouts import elsewhere
from nftproxy.pipeline import Pipeline
from nftproxy.policy.budget import Shortage
from nftproxy.policy.fronts import LostClaim
from nftproxy.policy.limits import Exceeded

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Hashable)
ReportOngoing = Callable[[AnyCode, Mapping[str, str], str], None]
"""`FaultReporter.report_ongoing`."""

MOST_REPORTED = 100
"""Services beyond a limit or the budget that Events report.  Thousands may be beyond the budget, and each report costs
time after each change.  Namespaces take turns, and `nftproxy list quarantined` names all."""


class FaultReporter:
    """Reports the faults of Services, of the configuration and of the node.

    Attributes:
        other_proxies: the last traces of other service proxies.
    """

    def __init__(self, pipeline: Pipeline, events: EventRecorder, reporter: SyncReporter) -> None:
        self.other_proxies: Traces = {}
        self._pipeline = pipeline
        self._losses = pipeline.losses
        self._node = pipeline.state.node.name
        self._events = events
        self._metrics = reporter.metrics
        self._health = reporter.health
        self._excessive: set[ObjectKey] = set()
        self._holders = _Holders()
        self._ongoing: dict[AnyCode, frozenset[Hashable]] = {}
        self._excess_changes = 0
        self._reported: Sequence[ObjectKey] = ()
        """The Services of `_excessive` that Events report."""

    def report_services(self) -> None:
        """Report the Services that the pipeline serves in part or not at all.  Call this after each commit."""
        if self._losses.judged.services:  # not by a change of endpoints
            judged = self._losses.pop_judged()
            self._report_losses(judged.losses)
            self._report_ended_losses(judged.services)
        for family, withheld in self._pipeline.withheld.items():
            if withheld:  # by no change of a usual cluster
                self._events.report(occurrences.refusal(family, service, why) for service, why in withheld.items())
        self._report_excess()
        self._report_node()

    def _report_node(self) -> None:
        """Report that the cluster has no Node of this name."""
        warnings = {}
        if not self._pipeline.state.has_node:
            warnings[self._node] = (
                f"the cluster has no Node {self._node}: its addresses, zone and pod range are unknown; "
                "set hostnameOverride to the name that `kubectl get nodes` shows"
            )
        elif Code.NODE_UNKNOWN not in self._ongoing:  # as after nearly every change
            return
        self.report_ongoing(Code.NODE_UNKNOWN, warnings, f"the cluster has the Node {self._node} now")

    def report_elsewhere(self, absent: Collection[Address]) -> None:
        """Report the Node's addresses that no interface here has."""
        warnings = {tuple(absent): elsewhere(self._node, absent)} if absent else {}
        self.report_ongoing(Code.NODE_ELSEWHERE, warnings, f"interfaces here have the addresses of {self._node} again")

    def report_local_sources(self, fault: str) -> None:
        """Report why this node can't tell which sources are local, "" if it can."""
        recovery = "this node can tell which sources are local again"
        self.report_ongoing(Code.LOCAL_SOURCES_UNKNOWN, {fault: fault} if fault else {}, recovery)

    def report_node_ports_nowhere(self, warnings: Mapping[Family, str]) -> None:
        """Report the families in which no address of the Node serves node ports, each with the reason."""
        recovery = "the Node has an address for node ports of each family again"
        self.report_ongoing(Code.NODE_PORTS_NOWHERE, warnings, recovery)

    def report_credentials(self, fault: str) -> None:
        """Report why the credentials for the API can't be read, "" if they can."""
        warning = f"the credentials can't be read: the current credentials stay in use, and a restart fails: {fault}"
        self.report_ongoing(
            Code.CREDENTIALS_KEPT, {fault: warning} if fault else {}, "the credentials can be read again"
        )

    def report_unrouted(self, unrouted: Mapping[Address, str]) -> None:
        """Report the endpoints in clusterCIDR that this node has no route to, each with the system's reason."""
        places = [f"{address} ({reason})" for address, reason in unrouted.items()]
        warning = f"nothing routes to {first_of(places)}, which are endpoints in clusterCIDR"
        warnings = {frozenset(unrouted): warning} if unrouted else {}
        self.report_ongoing(Code.PODS_UNROUTED, warnings, "there are routes to all endpoints in clusterCIDR again")

    def report_not_forwarded(self, sysctls: Mapping[Family, str]) -> None:
        """Report the families whose packets the node doesn't forward, each with the sysctl that is 0."""
        warnings = {
            family: f"the node doesn't forward {FAMILY_NAMES[family]}, as /proc/sys/net/{sysctl} is 0: "
            "connections to Services reach pods only from the node itself"
            for family, sysctl in sysctls.items()
        }
        self.report_ongoing(Code.NOT_FORWARDING, warnings, "the node forwards each family that Services have again")

    def report_conntrack_fill(self, fill: str) -> None:
        """Report that connection tracking is nearly full, with entries and limit in words.  "" means that it isn't."""
        warning = f"connection tracking has {fill}: once it is full, the kernel drops new connections"
        self.report_ongoing(Code.CONNTRACK_FULL, {"": warning} if fill else {}, "connection tracking has room again")

    def report_hanging(self, calls: Iterable[BusyCall], seconds: float) -> None:
        """Report the calls of threads that haven't ended for so many seconds."""
        text = "a thread hangs, so faults may go unseen, or changes wait: its call `{}` takes more than {:.0f} s"
        warnings = {call: text.format(call.function, seconds) for call in calls}
        self.report_ongoing(Code.THREAD_HANGS, warnings, "no thread hangs any more")

    def report_cpu_limit(self, fault: str) -> None:
        """Report how often a CPU limit stops the agent, "" if it doesn't."""
        warning = f"the agent follows changes late: {fault}"
        self.report_ongoing(Code.CPU_LIMITED, {"": warning} if fault else {}, "the CPU limit suffices again")

    def report_ongoing(self, code: AnyCode, warnings: Mapping[S, str], recovery: str) -> None:
        """Replace the warnings of a code, by their subjects.  Log each subject that is new, and the end of all."""
        before = self._ongoing.pop(code, frozenset())
        if warnings:
            self._ongoing[code] = frozenset(warnings)
        for subject in [each for each in warnings if each not in before]:
            warn(code, "%(warning)s", warning=warnings[subject])
        if before and not warnings:
            log.info("%(recovery)s", {"recovery": recovery})
        self._health.set_warnings(code, warnings.values())

    def _report_losses(self, losses: Sequence[LostClaim]) -> None:
        """Report lost addresses and ports, with a single log line for each Service."""
        for service, lost in itertools.groupby(losses, key=lambda each: each.service):
            first, *others = lost
            more = f" (and {len(others)} more addresses and ports)" if others else ""
            why = first.why(self._pipeline.state.claims)
            text = "Service %(service)s does not get %(what)s, and is served without it: %(why)s%(more)s"
            code, of = first.denial.code, service.namespace
            warn(code, text, of=of, service=service, what=first.what, why=why, more=more)
        self._events.report(map(occurrences.conflict, losses))

    def _report_ended_losses(self, judged: Set[ObjectKey]) -> None:
        """Log the conflicts that have ended, and those in which the address has passed to another Service."""
        claims, losses = self._pipeline.state.claims, self._losses.by_service
        concerned = judged | self._holders.losers_to(judged)
        lost = {key: losses[key][0] for key in concerned if key in losses}
        now = {key: claims.holder(each.claim, each.denial) for key, each in lost.items()}
        before = self._holders.replace(concerned, now)
        for ended in _by_namespace(before.keys() - now.keys(), {}):
            text = "Service %(service)s gets each of its addresses and ports now, or is gone%(more)s"
            inform(text, of=ended[0].namespace, service=ended[0], more=_more(ended))
        for passed in _by_namespace([key for key in before.keys() & now if before[key] != now[key]], {}):
            key = passed[0]
            text = "%(what)s, which Service %(service)s does not get, has passed from %(before)s to %(now)s%(more)s"
            names = {"before": before[key] or "none", "now": now[key] or "none"}
            inform(text, of=key.namespace, what=lost[key].what, service=key, more=_more(passed), **names)

    def _report_excess(self) -> None:
        """Report the Services that exceed a limit or the budget.  Log when that begins and when it ends."""
        state = self._pipeline.state
        excessive = state.excessive
        if excessive:
            if self._excess_changes != state.excess_changes:
                self._reported = first_in_turn(excessive, lambda each: each.namespace, MOST_REPORTED)
            self._events.report(occurrences.excess(each, excessive[each]) for each in self._reported)
        if self._excess_changes == state.excess_changes:
            return
        self._excess_changes = state.excess_changes
        begun, ended = excessive.keys() - self._excessive, self._excessive - excessive.keys()
        for services in _by_namespace(begun, excessive):
            first, *others = services
            more = f" (and {len(others)} more Services of its namespace)" if others else ""
            text = "Service %(service)s is quarantined: %(reason)s; it is served again once it is within the limit"
            code, why = excessive[first].code, excessive[first].reason
            warn(code, f"{text}%(more)s", of=first.namespace, service=first, reason=why, more=more)
        for services in _by_namespace(ended, {}):
            first, *others = services
            more = f" (and {len(others)} more Services of its namespace)" if others else ""
            text = "Service %(service)s is within all limits again%(more)s"
            inform(text, of=first.namespace, service=first, more=more)
        self._excessive = set(excessive)

    def report_problems(self, count: int, fresh: Iterable[Problem]) -> None:
        """Show how many problems the objects have, and report new ones about Services' annotations."""
        self._metrics.set("nftproxy_skipped_objects", count)
        self._events.report(occurrences.unused_annotations(fresh))

    def report_configuration(self, fault: str) -> None:
        """Report that the configuration has changed, with its fault ("" for none)."""
        faults = [fault] if fault else []
        self._metrics.set("nftproxy_configuration_rejected", len(faults))
        self._health.set_warnings(Code.CONFIGURATION_NOT_APPLIED, faults)
        self._events.report(occurrences.invalid_configuration(self._node, each) for each in faults)

    def report_other_proxies(self, traces: Traces) -> None:
        """Report the traces of other service proxies, which replace those reported before."""
        self.other_proxies = traces
        for proxy in PROXIES:
            self._metrics.set("nftproxy_other_proxies", len(traces.get(proxy, ())), proxy)
        self._health.set_warnings(Code.OTHER_PROXY, itertools.starmap(in_words, traces.items()))

    def report_startup_taint(self, why: str) -> None:
        """Report that the startup taint stays on the Node."""
        self._events.report([occurrences.startup_taint_stays(self._node, why)])


class _Holders:
    """The Services that don't get all that they claim, each with the holder of the first thing that it lacks.

    A change concerns the Services that it judges, and those that lose to them.
    """

    def __init__(self) -> None:
        self._of: dict[ObjectKey, ObjectKey | None] = {}
        self._losers: dict[ObjectKey | None, set[ObjectKey]] = {}

    def losers_to(self, holders: Iterable[ObjectKey]) -> set[ObjectKey]:
        """Return the Services that lose to any of these."""
        return {loser for holder in holders for loser in self._losers.get(holder, ())}

    def replace(
        self, losers: Iterable[ObjectKey], new: Mapping[ObjectKey, ObjectKey | None]
    ) -> Mapping[ObjectKey, ObjectKey | None]:
        """Replace the holders of some losers, and return their holders before."""
        before = {loser: self._of.pop(loser) for loser in losers if loser in self._of}
        for loser, holder in before.items():
            self._losers[holder].discard(loser)
            if not self._losers[holder]:
                del self._losers[holder]
        self._of |= new
        for loser, holder in new.items():
            self._losers.setdefault(holder, set()).add(loser)
        return before


def _more(services: Sequence[ObjectKey]) -> str:
    return f" (and {len(services) - 1} more)" if services[1:] else ""


def _by_namespace(
    services: Collection[ObjectKey], excessive: Mapping[ObjectKey, Exceeded | Shortage]
) -> Iterable[list[ObjectKey]]:
    """Group Services by namespace and code, in the order of their names."""
    found: dict[tuple[str, AnyCode | None], list[ObjectKey]] = {}
    for key in sorted(services):
        found.setdefault((key.namespace, excessive[key].code if key in excessive else None), []).append(key)
    return found.values()
