"""Everything beside the rules that follows the cluster's state, each time after the kernel holds the rules.

In this order: the settings and sweeps of connection tracking, health-check node ports, node ports at localhost, and the
report of faults.
"""

from __future__ import annotations

from collections.abc import Collection

from nftproxy.agent.http.listeners import Listeners
from nftproxy.agent.lifecycle.startup_taint import StartupTaint
from nftproxy.agent.localhost.forwarder import LocalhostForwarder
from nftproxy.agent.reporting.fault_reporter import FaultReporter
from nftproxy.agent.silence_watch import SilenceWatch
from nftproxy.agent.sync.loading import now
from nftproxy.kernel import sysctl
from nftproxy.kernel.conntrack.sweeps import SweepQueue
from nftproxy.kernel.process_resources import freeze_objects
from nftproxy.model.addresses import Family, family_of
from nftproxy.pipeline import Pipeline
from nftproxy.policy.flows import Sweeps
from nftproxy.policy.health_checks import health_check_addresses

MOST_SWEEPS = 50_000
"""Limit of fronts whose sweep waits until the kernel holds their family's rules.  The oldest are dropped."""


class Followers:
    """The parts of the agent that act once the kernel holds the rules: sweeps of conntrack, listeners, Events.

    `forwarder` is None unless the configuration enables localhost.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        conntrack: SweepQueue,
        listeners: Listeners,
        forwarder: LocalhostForwarder | None,
        silence_watch: SilenceWatch,
        startup_taint: StartupTaint,
        faults: FaultReporter,
    ) -> None:
        self._pipeline = pipeline
        self._conntrack = conntrack
        self._listeners = listeners
        self._forwarder = forwarder
        self._silence_watch = silence_watch
        self._startup_taint = startup_taint
        self._faults = faults
        self._is_first = True
        self._sweeps: Sweeps = {}

    async def catch_up(self, families: Collection[Family]) -> float:
        """Bring all parts up to the pipeline's state, whose rules the kernel holds in these families.

        Return the time (`now`) at which to call this again, even if nothing changes.
        """
        state, config = self._pipeline.state, self._pipeline.settings.config
        if self._is_first:
            self._is_first = False
            sysctl.set_up(config)  # conntrack's settings exist only once rules have made the kernel load it
            freeze_objects()
        if set(families) == self._pipeline.generations.keys():
            self._startup_taint.rules_loaded()
        if sweeps := self._sweeps_of(families):
            self._conntrack.schedule(sweeps)
        checks = self._pipeline.health_checks.by_port
        await self._listeners.serve_checks(checks, health_check_addresses(state, config) if checks else ())
        if self._forwarder:
            self._forwarder.serve(self._pipeline.localhost_ports.by_port)
        self._silence_watch.rules_loaded()
        self._faults.report_services()
        return self._pipeline.gone_addresses.next_look

    def _sweeps_of(self, families: Collection[Family]) -> Sweeps:
        """Return the sweeps of these families.  Sweeps of other families wait."""
        gone = self._pipeline.gone_addresses.look(self._pipeline.state, now())
        due = self._sweeps | self._pipeline.flows.pop_due() | gone
        waiting = {front: usable for front, usable in due.items() if family_of(front.address) not in families}
        self._sweeps = dict(list(waiting.items())[-MOST_SWEEPS:])
        return {front: usable for front, usable in due.items() if front not in waiting}
