"""Everything beside the rules that follows the cluster's state, each time after the kernel holds the rules.

In this order: the settings and sweeps of connection tracking, health-check node ports, the parts of
extensions, and the report of faults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from nftproxy.agent.agent_part import NEVER, AgentPart
from nftproxy.agent.http.listeners import Listeners
from nftproxy.agent.lifecycle.startup_taint import StartupTaint
from nftproxy.agent.reporting.fault_reporter import FaultReporter
from nftproxy.kernel import sysctl
from nftproxy.kernel.conntrack.sweeps import SweepQueue
from nftproxy.kernel.process_resources import freeze_objects
from nftproxy.model.addresses import Family, family_of
from nftproxy.pipeline import Pipeline
from nftproxy.policy.flows import Sweeps
from nftproxy.policy.health_checks import health_check_addresses

MOST_SWEEPS = 50_000
"""Limit of fronts whose sweep waits until the kernel holds their family's rules.  The oldest are dropped."""


class PartsOfExtensions:
    """The parts of extensions, and which of them a change of rules concerns."""

    def __init__(self, parts: Sequence[AgentPart] = ()) -> None:
        self._parts = self._followed = parts

    def concerned(self, asked: Collection[str]) -> Sequence[AgentPart]:
        """The parts to call after a change, given the names of the extensions that are asked for.

        These are all parts at first.  Then a part is called while its extension is asked for, once more, and as long as
        it wants another look.
        """
        now = [each for each in self._parts if not each.follows or each.follows in asked]
        called = [each for each in self._parts if each in now or each in self._followed]
        self._followed = [each for each in called if each in now or each.next_look() < NEVER]
        return called


@dataclass
class Followers:
    """The parts of the agent that act once the kernel holds the rules: sweeps of conntrack, listeners, Events."""

    pipeline: Pipeline
    conntrack: SweepQueue
    listeners: Listeners
    startup_taint: StartupTaint | None
    """The startup taint, until the kernel holds the rules of all families."""
    faults: FaultReporter
    parts: PartsOfExtensions = field(default_factory=PartsOfExtensions)
    _is_first: bool = True
    _has_checks: bool = False
    _sweeps: Sweeps = field(default_factory=dict)

    async def catch_up(self, families: Collection[Family]) -> float:
        """Bring all parts up to the pipeline's state, whose rules the kernel holds in these families.

        Return the time (`now`) at which to call this again, even if nothing changes.
        """
        state, config = self.pipeline.state, self.pipeline.settings.config
        if self._is_first:
            self._is_first = False
            sysctl.set_up(config)  # conntrack's settings exist only once rules have made the kernel load it
            freeze_objects()
        if self.startup_taint and set(families) == self.pipeline.generations.keys():
            self.startup_taint.rules_loaded()
            self.startup_taint = None
        parts = self.parts.concerned(self.pipeline.asked)
        if sweeps := self._sweeps_of(families, parts):
            self.conntrack.schedule(sweeps)
        checks = self.pipeline.health_checks.by_port
        if checks or self._has_checks:
            self._has_checks = bool(checks)
            await self.listeners.serve_checks(checks, health_check_addresses(state, config) if checks else ())
        for part in parts:
            part.rules_loaded()
        self.faults.report_services()
        return min((part.next_look() for part in parts), default=NEVER)

    def _sweeps_of(self, families: Collection[Family], parts: Iterable[AgentPart]) -> Sweeps:
        """Return the sweeps of these families.  Sweeps of other families wait."""
        flows = self.pipeline.flows
        due = self._sweeps | (flows.pop_due() if flows.is_due else {})
        for part in parts:
            due |= part.sweeps()
        waiting = {front: usable for front, usable in due.items() if family_of(front.address) not in families}
        self._sweeps = dict(list(waiting.items())[-MOST_SWEEPS:])
        return {front: usable for front, usable in due.items() if front not in waiting}
