"""The part of least connections in the agent: it counts the connections of endpoints."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from nftproxy.agent.agent_part import AgentContext, AgentPart
from nftproxy.extensions.least_connections.agent.load_watch import LoadWatch
from nftproxy.extensions.least_connections.balanced_lists import BalancedLists
from nftproxy.kernel.conntrack.connection_counts import established_connections
from nftproxy.model.events import Event


class LeastConnectionsPart(AgentPart):
    """The watch of the connections of endpoints."""

    follows = "least_connections"

    def __init__(self, context: AgentContext) -> None:
        lists, report = context.pipeline.view(BalancedLists), context.faults.report_ongoing
        self._watch = LoadWatch(lists, established_connections, context.metrics, report)

    def sources(self) -> Mapping[str, AsyncGenerator[Sequence[Event]]]:
        """Return the source of new shares for lists with least connections, by a name for the log."""
        return {"connections of endpoints": self._watch.events()}

    def rules_loaded(self) -> None:
        """Note that the kernel holds the rules."""
        self._watch.rules_loaded()
