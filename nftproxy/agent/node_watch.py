"""Looks periodically at parts of the node on which Services depend.

Packets reach pods only if the node forwards them and has routes to pods, and new connections only while connection
tracking has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from nftproxy.agent.pod_routes import sample, unrouted
from nftproxy.agent.reporting.fault_reporter import FaultReporter
from nftproxy.kernel.sysctl import CONNTRACK_ENTRIES, CONNTRACK_LIMIT, FORWARDING, read_all
from nftproxy.model.addresses import Address, Family
from nftproxy.model.conntrack_fill import nearly_full
from nftproxy.pipeline import Pipeline

PERIOD = 30.0
"""Seconds between two looks: the default period of the checks of our own tables."""


async def watch_node(pipeline: Pipeline, faults: FaultReporter) -> None:
    """Report after each look what is wrong with forwarding, connection tracking and routes, until cancelled.

    A node that has just joined may lack its route for a moment, so an endpoint counts as unrouted once two looks in a
    row have found no route.  Only endpoints within clusterCIDR are tried.
    """
    cidrs = pipeline.settings.config.cluster_cidrs
    before: Mapping[Address, str] = {}
    while True:
        await asyncio.sleep(PERIOD)
        faults.report_not_forwarded(not_forwarded(pipeline))
        found = read_all([CONNTRACK_ENTRIES, CONNTRACK_LIMIT])
        faults.report_conntrack_fill(nearly_full(*found.values()) if len(found) == 2 else "")
        if cidrs:
            now = await asyncio.to_thread(unrouted, sample(pipeline.state.slices(), cidrs))
            faults.report_unrouted({address: reason for address, reason in now.items() if address in before})
            before = now


def not_forwarded(
    pipeline: Pipeline, read_sysctls: Callable[[Iterable[str]], Mapping[str, int]] = read_all
) -> dict[Family, str]:
    """Return the families with Services whose packets the node doesn't forward, each with the sysctl that is 0."""
    served = [family for family in pipeline.generations if pipeline.has_services(family)]
    sysctls = read_sysctls(FORWARDING[family] for family in served)
    return {family: FORWARDING[family] for family in served if sysctls.get(FORWARDING[family]) == 0}
