"""The values that metrics look up at each scrape, as keeping them up to date would cost too much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from nftproxy.kernel.libnftables import Kernel
from nftproxy.logs import code_filter
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.pipeline import Pipeline
from nftproxy.policy.health_checks import without_local_endpoints


class FamilySnapshot(NamedTuple):
    """The figures of a family.

    `clients` are the counts of clients that session affinity remembers, by map.  `without_local_endpoints` are the
    counts of Service ports, by traffic policy.
    """

    elements: int
    clients: Mapping[str, int]
    without_local_endpoints: Mapping[str, int]


class MetricsSnapshot(NamedTuple):
    """The figures of an agent at a moment.  `warnings` are the counts of logged warnings, by code."""

    families: Mapping[Family, FamilySnapshot] = MappingProxyType({})
    conflicts: int = 0
    quarantined: int = 0
    warnings: Mapping[str, int] = MappingProxyType({})


def _count_clients(family: Family) -> dict[str, int]:
    try:
        return Kernel().client_counts(family)
    except Unavailable:
        return {}  # metrics are scraped also while nothing else works


def snapshot(
    pipeline: Pipeline, count_clients: Callable[[Family], Mapping[str, int]] = _count_clients
) -> MetricsSnapshot:
    """Return the figures of a pipeline, of the warnings logged, and of the clients that a family's maps remember."""
    families = {
        family: FamilySnapshot(
            generation.element_count(), count_clients(family), without_local_endpoints(pipeline.state, family)
        )
        for family, generation in pipeline.generations.items()
    }
    conflicts = sum(map(len, pipeline.losses.values()))
    return MetricsSnapshot(families, conflicts, len(pipeline.quarantined), code_filter.counts())
