"""The part of counts in the agent: it reads the kernel's counts at each scrape."""

from __future__ import annotations

from nftproxy.agent.agent_part import AgentContext, AgentPart
from nftproxy.extensions.counts.agent.count_reader import COUNTED_SETS, RESTRICTED_SETS, CountReader
from nftproxy.extensions.counts.agent.service_counts import ServiceCounts
from nftproxy.extensions.counts.counted_fronts import CountedFronts
from nftproxy.extensions.counts.fields import SERVICE_COUNTS


class CountsPart(AgentPart):
    """Counts for each Service, as metrics."""

    follows = "counts"

    def __init__(self, context: AgentContext) -> None:
        pipeline = context.pipeline
        sets = COUNTED_SETS if pipeline.settings.config[SERVICE_COUNTS] else RESTRICTED_SETS
        self._counts = ServiceCounts(pipeline.view(CountedFronts), pipeline.generations, CountReader(sets))

    async def start(self) -> None:
        """Read the counts that an earlier agent has left, so that only later connections count."""
        await self._counts.set_baseline()

    async def exposition(self) -> bytes:
        """The counters of all Service ports."""
        return await self._counts.exposition()

    def close(self) -> None:
        """Close the reader."""
        self._counts.close()
