"""The values that metrics look up at each scrape, as keeping them up to date would cost too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.sysctl import CONNTRACK_ENTRIES, CONNTRACK_LIMIT, FORWARDING, read_all
from nftproxy.logs import code_filter
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.pipeline import SKELETON, Pipeline
from nftproxy.policy.health_checks import without_local_endpoints


class FamilySnapshot(NamedTuple):
    """The figures of a family.

    `clients` are the counts of clients that session affinity remembers, by map.  `without_local_endpoints` are the
    counts of Service ports, by traffic policy.  `forwarding` is the node's sysctl: 1 if it forwards packets.  It is
    None while the family has no Services, and where the kernel has no such setting.
    """

    elements: int
    clients: Mapping[str, int]
    without_local_endpoints: Mapping[str, int]
    forwarding: int | None = None


class MetricsSnapshot(NamedTuple):
    """The figures of an agent at a moment.

    `warnings` are the counts of logged warnings, by code.  `conntrack_entries` and `conntrack_limit` are None while
    connection tracking can't be read.
    """

    families: Mapping[Family, FamilySnapshot] = MappingProxyType({})
    conflicts: int = 0
    quarantined: int = 0
    warnings: Mapping[str, int] = MappingProxyType({})
    conntrack_entries: int | None = None
    conntrack_limit: int | None = None


def _count_clients(family: Family) -> dict[str, int]:
    try:
        return Kernel().client_counts(family)
    except Unavailable:
        return {}  # metrics are scraped also while nothing else works


def snapshot(
    pipeline: Pipeline,
    count_clients: Callable[[Family], Mapping[str, int]] = _count_clients,
    read_sysctls: Callable[[Iterable[str]], Mapping[str, int]] = read_all,
) -> MetricsSnapshot:
    """Return the figures of a pipeline, of the warnings logged, of the clients that a family's maps remember, and of
    the node's sysctls.
    """
    sysctls = read_sysctls((*FORWARDING.values(), CONNTRACK_ENTRIES, CONNTRACK_LIMIT))
    families = {
        family: FamilySnapshot(
            generation.element_count(),
            count_clients(family),
            without_local_endpoints(pipeline.state, family),
            sysctls.get(FORWARDING[family]) if generation.blocks.keys() != {SKELETON} else None,
        )
        for family, generation in pipeline.generations.items()
    }
    return MetricsSnapshot(
        families,
        conflicts=sum(map(len, pipeline.losses.values())),
        quarantined=len(pipeline.quarantined),
        warnings=code_filter.counts(),
        conntrack_entries=sysctls.get(CONNTRACK_ENTRIES),
        conntrack_limit=sysctls.get(CONNTRACK_LIMIT),
    )
