"""The part of failover in the agent: the watch for silent endpoints, and sweeps for addresses that are gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from nftproxy.agent.agent_part import AgentContext, AgentPart
from nftproxy.agent.sync.loading import now
from nftproxy.extensions.failover.agent.silence_watch import SilenceWatch
from nftproxy.extensions.failover.agent.unanswered import UnansweredReader
from nftproxy.extensions.failover.gone_addresses import GoneAddresses
from nftproxy.extensions.failover.watched import silent_places
from nftproxy.model.events import Event
from nftproxy.policy.flows import Sweeps


class FailoverPart(AgentPart):
    """The watch for silent endpoints, and the sweeps for addresses that are gone."""

    follows = "failover"

    def __init__(self, context: AgentContext) -> None:
        pipeline = context.pipeline
        self._state, self._gone = pipeline.state, pipeline.view(GoneAddresses)
        self._watch = SilenceWatch(
            pipeline.state,
            pipeline.generations,
            UnansweredReader(),
            context.metrics,
            context.report,
            report_ongoing=context.faults.report_ongoing,
        )

    def sources(self) -> Mapping[str, AsyncGenerator[Sequence[Event]]]:
        """Return the source of the endpoints that don't answer this node, by a name for the log."""
        return {"connections without an answer": self._watch.events()}

    def status(self) -> Mapping[str, Sequence[str]]:
        """The endpoints that don't answer this node, of Services that leave such endpoints out."""
        return {"Silent endpoints": [str(place) for place in silent_places(self._state).places]}

    def rules_loaded(self) -> None:
        """Note that the kernel holds the rules."""
        self._watch.rules_loaded()

    def sweeps(self) -> Sweeps:
        """The fronts of TCP connections to addresses that are gone."""
        return self._gone.look(self._state, now())

    def next_look(self) -> float:
        """The time at which to look for addresses that are gone."""
        return self._gone.next_look
