"""Looks periodically at parts of the node on which Services depend.

Packets reach pods only if the node forwards them and has routes to pods, and new connections only while connection
tracking has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from nftproxy.agent.pod_routes import sample, unrouted
from nftproxy.agent.reporting.fault_reporter import FaultReporter
from nftproxy.kernel.sysctl import CONNTRACK_ENTRIES, CONNTRACK_LIMIT, FORWARDING, read_all
from nftproxy.model.addresses import FAMILY_NAMES, Address, Family, of_family
from nftproxy.model.conntrack_fill import nearly_full
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.model.settings import DetectLocalMode
from nftproxy.model.texts import first_of
from nftproxy.model.whereabouts import absent_addresses
from nftproxy.pipeline import Pipeline
from nftproxy.policy.fronts import nodeport_addresses, serves_every_address, serves_node_ports
from nftproxy.policy.local_sources import local_sources
from nftproxy.policy.unserved import why_no_address
from nftproxy.sources.interfaces import host_addresses, interface_names

PERIOD = 30.0
"""Seconds between two looks: the default period of the checks of our own tables."""
FIRST = 1.0
"""Seconds between two looks until the Node is known, so that a start in a wrong place is seen soon."""


async def watch_node(pipeline: Pipeline, faults: FaultReporter) -> None:
    """Report after each look what is wrong with the node, until cancelled.

    Where the Node's addresses are absent, forwarding is another machine's matter, or another network namespace's.  A
    node that has just joined may lack its route for a moment, so an endpoint counts as unrouted once two looks in a row
    have found no route.  Only endpoints within clusterCIDR are tried.
    """
    cidrs = pipeline.settings.config.cluster_cidrs
    before: Mapping[Address, str] = {}
    has_looked = False
    while True:
        await _until_due(pipeline, is_first=not has_looked)
        has_looked = True
        absent: Collection[Address] = ()
        present = await asyncio.to_thread(_interfaces)
        if present:
            absent = absent_addresses(pipeline.state.node, present.addresses)
            faults.report_elsewhere(absent)
            faults.report_local_sources(await local_sources_fault(pipeline, *present))
        faults.report_node_ports_nowhere(await without_node_ports(pipeline, present.addresses if present else None))
        faults.report_not_forwarded({} if absent else not_forwarded(pipeline))
        found = read_all([CONNTRACK_ENTRIES, CONNTRACK_LIMIT])
        faults.report_conntrack_fill(nearly_full(*found.values()) if len(found) == 2 else "")
        if cidrs:
            now = await asyncio.to_thread(unrouted, sample(pipeline.state.slices(), cidrs))
            faults.report_unrouted({address: reason for address, reason in now.items() if address in before})
            before = now


async def _until_due(pipeline: Pipeline, *, is_first: bool) -> None:
    """Wait until the next look is due.  The first is due once the Node is known."""
    waited = 0.0
    while waited < PERIOD and not (is_first and pipeline.state.has_node):
        pause = min(FIRST, PERIOD) if is_first else PERIOD
        await asyncio.sleep(pause)
        waited += pause


async def local_sources_fault(pipeline: Pipeline, names: Collection[str], own: Collection[Address]) -> str:
    """Return why local sources can't be recognised on a node with pods, "" if they can.

    Args:
        pipeline: has the configuration, the Node and the endpoints.
        names: the names of this node's interfaces.
        own: the addresses of this node's interfaces.
    """
    config, node = pipeline.settings.config, pipeline.state.node
    if config.detect_local_mode is DetectLocalMode.CLUSTER_CIDR:
        everything = first_of([str(each) for each in config.cluster_cidrs if each.prefixlen == 0])
        return f"clusterCIDR {everything} takes every client for a pod of the cluster" if everything else ""
    mode, what = config.detect_local_mode, ""
    if mode is DetectLocalMode.NODE_CIDR and pipeline.state.has_node:
        what = _without_pod_cidr(pipeline)
    elif mode is DetectLocalMode.BRIDGE_INTERFACE and config.bridge_interface not in names:
        what = f"no interface has the name {config.bridge_interface} (detectLocal.bridgeInterface)"
    elif mode is DetectLocalMode.INTERFACE_NAME_PREFIX and not any(
        each.startswith(config.interface_name_prefix) for each in names
    ):
        what = f"no interface's name begins with {config.interface_name_prefix} (detectLocal.interfaceNamePrefix)"
    if not what or not await asyncio.to_thread(_has_pods, node.name, tuple(pipeline.state.slices()), own):
        return ""
    return f"{what}, so pods count as clients outside the cluster; the interfaces are {first_of(sorted(names))}"


def _without_pod_cidr(pipeline: Pipeline) -> str:
    """Say which families with Services the Node has no podCIDR of, "" if none."""
    node, config = pipeline.state.node, pipeline.settings.config
    served = [each for each in pipeline.generations if pipeline.has_services(each)]
    lacking = [FAMILY_NAMES[each] for each in served if local_sources(node, config, each) is None]
    if not lacking:
        return ""
    of_these = f" of {' and '.join(lacking)}" if node.pod_cidrs else ""
    return f"detectLocalMode is NodeCIDR, and the Node {node.name} has no podCIDR{of_these}"


def _has_pods(node: str, slices: Iterable[EndpointSlice], own: Collection[Address]) -> bool:
    """True if some endpoint on a node has an address of its own.  It may be the last of all, so this has a thread."""
    return any(
        state.node_name == node and address not in own
        for each in slices
        for address, state in zip(each.endpoints.addresses, each.endpoints.states, strict=True)
    )


async def without_node_ports(pipeline: Pipeline, present: Collection[Address] | None = None) -> dict[Family, str]:
    """Return a sentence for each family with node ports that no address of the Node serves.

    Args:
        pipeline: has the configuration, the Node and the Services.
        present: the addresses of this node's interfaces, None if they aren't known.
    """
    state, config = pipeline.state, pipeline.settings.config
    if not state.has_node or not config.node_port_addresses.primary:
        return {}  # ranges that select none of the addresses may be meant to
    families = [each for each in pipeline.generations if pipeline.has_services(each)]
    unserved = {family: why for family in families if (why := _why_nowhere(pipeline, family, present))}
    services = tuple(state.services.values()) if unserved else ()
    found = {family: await asyncio.to_thread(_first_with_node_ports, services, family) for family in unserved}
    return {
        family: f"{unserved[family]}: nothing here serves node ports of {service.key}, nor others of the family"
        for family, service in found.items()
        if service
    }


def _why_nowhere(pipeline: Pipeline, family: Family, present: Collection[Address] | None) -> str:
    """Say why no address here serves node ports of a family, "" if one does.

    An ExternalIP serves where the Node has no InternalIP.  One that another machine translates is on no interface here.
    `report_elsewhere` reports absent InternalIPs.
    """
    state, config = pipeline.state, pipeline.settings.config
    if not serves_node_ports(state, config, family):
        return why_no_address(state, config, family)
    serving = nodeport_addresses(state, config, family)
    is_elsewhere = serving and present is not None and not {*serving} & {*present, *state.node.internal_ips}
    if not is_elsewhere or serves_every_address(config, family) or family in config.node_port_addresses.localhost:
        return ""
    return f"no interface here has {', '.join(serving)}, the only address of the Node {state.node.name} for node ports"


def _first_with_node_ports(services: Iterable[Service], family: Family) -> Service | None:
    """Return a Service of a family with node ports.  It may be the last of all, so this has a thread."""
    of_services = (each for each in services if of_family(each.cluster_ips, family))
    return next((each for each in of_services if any(port.node_port for port in each.ports)), None)


class _Interfaces(NamedTuple):
    names: Collection[str]
    addresses: Collection[Address]


def _interfaces() -> _Interfaces | None:
    """Return the interfaces of this network namespace, None if they can't be read."""
    try:
        return _Interfaces(interface_names(), host_addresses().addresses)
    except OSError:
        return None


def not_forwarded(
    pipeline: Pipeline, read_sysctls: Callable[[Iterable[str]], Mapping[str, int]] = read_all
) -> dict[Family, str]:
    """Return the families with Services whose packets the node doesn't forward, each with the sysctl that is 0."""
    served = [family for family in pipeline.generations if pipeline.has_services(family)]
    sysctls = read_sysctls(FORWARDING[family] for family in served)
    return {family: FORWARDING[family] for family in served if sysctls.get(FORWARDING[family]) == 0}
