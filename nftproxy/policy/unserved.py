"""Why a Service isn't served on this node although its fronts have no conflict and its endpoints are ready.

All answers about Services take these sentences, so that no two of them differ about a front.
"""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy.model.addresses import FAMILY_NAMES, Family, of_family
from nftproxy.model.objects import Service, ServicePort
from nftproxy.model.settings import Config
from nftproxy.policy.choosing.verdicts import Choice, ChoiceReason
from nftproxy.policy.fronts import serves_node_ports
from nftproxy.policy.state import ClusterState

MOST_NAMED = 3
"""Endpoints that a sentence names."""


def without_address(state: ClusterState, config: Config, service: Service) -> Iterator[str]:
    """Yield a sentence for each family in which no address of this node serves the Service's node ports."""
    ports = [str(port.node_port) for port in service.ports if port.node_port]
    for family in Family if ports else ():
        if of_family(service.cluster_ips, family) and not serves_node_ports(state, config, family):
            what = "node port" if len(ports) == 1 else "node ports"
            yield f"{what} {', '.join(ports)} ({FAMILY_NAMES[family]}): {no_address(state, config, family)}"


def no_address(state: ClusterState, config: Config, family: Family) -> str:
    """Say that no address of this node serves a node port in a family, and why."""
    return f"no address of this node serves it, as {why_no_address(state, config, family)}"


def why_no_address(state: ClusterState, config: Config, family: Family) -> str:
    """Say why no address of this node serves node ports of a family."""
    node = state.node
    if not config.node_port_addresses.primary:
        return "nodePortAddresses selects none"
    if not state.has_node:
        return f"the cluster has no Node {node.name}"
    if of_family(node.addresses, family):
        return f"the Node {node.name} has only loopback addresses of {FAMILY_NAMES[family]}"
    return f"the Node {node.name} has no InternalIP or ExternalIP of {FAMILY_NAMES[family]}"


def dead_ends(state: ClusterState, port: ServicePort, choice: Choice) -> str:
    """Return a sentence about the endpoints at ClusterIPs, "" if there are none.

    A packet is translated once, so no Service answers it at a ClusterIP to which it was translated.
    """
    owners = ((each, state.claims.cluster_ip_owner(each.address)) for each in choice.cluster)
    found = [f"{each.place} (Service {owner})" for each, owner in owners if owner]
    if not found:
        return ""
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    count = "all endpoints" if len(found) == len(choice.cluster) else f"{len(found)} of {len(choice.cluster)} endpoints"
    named = ", ".join(found[:MOST_NAMED])
    return f"{count} of port {port.port} are at a ClusterIP, where nothing answers translated packets: {named}{more}"


def all_are_dead_ends(state: ClusterState, choice: Choice) -> bool:
    """Whether a port has endpoints, and each is at a ClusterIP."""
    return bool(choice.cluster) and all(state.claims.cluster_ip_owner(each.address) for each in choice.cluster)


def none_local(choice: Choice) -> str:
    """Say why policy Local finds no endpoint on this node, for a port that has usable endpoints."""
    nameless = sum(each.local is ChoiceReason.NO_NODE for each in choice.verdicts)
    if not nameless:
        return "no usable endpoint is on this node, though other nodes have some"
    count = f"{nameless} of {len(choice.verdicts)} endpoints"
    return f"no usable endpoint is on this node: the EndpointSlice names no node (nodeName) for {count}"
