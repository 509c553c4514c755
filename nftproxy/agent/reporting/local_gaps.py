"""Counts Service ports with policy Local that have no local endpoint, for metrics, beside the event loop.

A tenant decides how many endpoints such Services have, and all of them together may have hundreds of thousands.  So a
thread looks at the endpoints.  The event loop collects the Services, a few at a time.  The next count waits `REST`
times as long as the last took, and until then metrics have the last counts.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.model.addresses import Family
from nftproxy.pipeline import Pipeline
from nftproxy.policy.health_checks import LocalDemand, local_demand, without_local_endpoints

AT_ONCE = 256
"""Services without policy Local that are looked at until other tasks run: less than a millisecond."""

BATCH = 4096
"""Ports of EndpointSlices that a thread looks at, at a time, if the last Service has no more."""

REST = 9.0
"""Times as long as a count took, until the next: a tenth of a processor."""

METRIC = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"


class LocalGaps:
    """The counts of ports without a local endpoint.  `clock` returns seconds."""

    def __init__(self, pipeline: Pipeline, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipeline = pipeline
        self._metrics = metrics
        self._clock = clock
        self._due = float("-inf")

    async def exposition(self) -> bytes:
        """Set the counts in the agent's metrics, if the next count is due.  There is no text to add."""
        began = self._clock()
        if began >= self._due:
            for family in self._pipeline.generations:
                counts = await self._count(family)
                for policy in ("internal", "external"):
                    self._metrics.set(METRIC, counts[policy], family, policy)
            now = self._clock()
            self._due = now + REST * (now - began)
        return b""

    async def _count(self, family: Family) -> Counter[str]:
        """Count by policy.  No part of a demand changes, so a thread may read it."""
        state, counts, demands, size = self._pipeline.state, Counter[str](), list[LocalDemand](), 0
        for number, key in enumerate(list(state.services), 1):
            service = state.services.get(key)  # it may have gone meanwhile
            if demand := service and local_demand(state, service, family):
                demands.append(demand)
                size += 1 + sum(map(len, demand.endpoints.by_port.values()))
            if size >= BATCH:
                counts += await _looked_at(demands)
                demands, size = [], 0
            elif demand or not number % AT_ONCE:
                await asyncio.sleep(0)
        return counts + await _looked_at(demands)


async def _looked_at(demands: Sequence[LocalDemand]) -> Counter[str]:
    return Counter(await asyncio.to_thread(without_local_endpoints, demands) if demands else ())
