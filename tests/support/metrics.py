"""The metrics of an agent with all extensions."""

from __future__ import annotations

from nftproxy.agent.reporting import metrics
from nftproxy.agent.reporting.metrics import HISTOGRAMS, Metrics
from nftproxy.installed import agent_extensions

ADDED = agent_extensions().metrics
COUNTERS = (*metrics.COUNTERS, *(row for each in ADDED for row in each.counters))
GAUGES = (*metrics.GAUGES, *(row for each in ADDED for row in each.gauges))
__all__ = ["ADDED", "COUNTERS", "GAUGES", "HISTOGRAMS", "all_metrics"]


def all_metrics() -> Metrics:
    """Metrics with the rows of all extensions."""
    return Metrics(added=ADDED)
