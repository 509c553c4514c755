"""The values that metrics look up at each scrape, as keeping them up to date would cost too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.sysctl import CONNTRACK_ENTRIES, CONNTRACK_LIMIT, FORWARDING, read_all
from nftproxy.logs import code_filter, dropped_lines
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.pipeline import Pipeline


def _count_clients(family: Family) -> dict[str, int]:
    try:
        return Kernel().client_counts(family)
    except Unavailable:
        return {}  # metrics are scraped also while nothing else works


def measure(
    metrics: Metrics,
    pipeline: Pipeline,
    count_clients: Callable[[Family], Mapping[str, int]] = _count_clients,
    read_sysctls: Callable[[Iterable[str]], Mapping[str, int]] = read_all,
) -> None:
    """Set the metrics of a pipeline, of the warnings logged, of the clients that a family's maps remember, and of the
    node's sysctls.

    A sysctl that can't be read has no series, and neither has the forwarding of a family without Services.
    """
    sysctls = read_sysctls((*FORWARDING.values(), CONNTRACK_ENTRIES, CONNTRACK_LIMIT))
    named = {"nftproxy_conntrack_entries": CONNTRACK_ENTRIES, "nftproxy_conntrack_limit": CONNTRACK_LIMIT}
    for name, path in named.items():
        if path in sysctls:
            metrics.set(name, sysctls[path])
    for family, generation in pipeline.generations.items():
        metrics.set("nftproxy_elements", generation.element_count(), family)
        for container, count in count_clients(family).items():
            metrics.set("nftproxy_affinity_entries", count, family, container)
        if pipeline.has_services(family) and FORWARDING[family] in sysctls:
            metrics.set("nftproxy_forwarding", sysctls[FORWARDING[family]], family)
    metrics.set("nftproxy_log_lines_dropped_total", dropped_lines())
    metrics.set_each("nftproxy_warnings_total", code_filter.counts())
    metrics.set("nftproxy_conflicts", sum(map(len, pipeline.losses.by_service.values())))
    metrics.set("nftproxy_services_quarantined", len(pipeline.quarantined))
