"""At which addresses and ports a Service is reached on this node, and which of these it has: decided once, here.

The rules (compile.py), the UDP flows to forget (flows.py) and the health checks (health_checks.py) all follow from it.
A *front* is an address, protocol and port at which a Service port is reached, or a protocol and node port.  A Service
has a front that it claims (claims.py) unless another Service takes precedence or something stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nftproxy.model.addresses import Address, Family, Protocol, contains, family_of, is_loopback, of_family
from nftproxy.model.objects import ObjectKey, Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.policy.claims import NODE, Claim, Way, external_addresses, port_claims
from nftproxy.policy.facts import Front
from nftproxy.policy.state import ClusterState


class Lost(NamedTuple):
    """An address and port that a Service claims but does not get, and why; `what` is as nft writes it."""

    service: ObjectKey
    port_name: str
    what: str
    why: str


class Reach(NamedTuple):
    """A front that a Service port claims, with the policy for it; `lost_to` says why it doesn't get it, "" if it does.

    `is_external` says that clients come from outside: all but ClusterIPs.
    """

    claim: Claim
    front: Front
    policy: TrafficPolicy
    is_external: bool
    lost_to: str


class HealthCheckPort(NamedTuple):
    """The health-check node port that a Service claims; `lost_to` says why it doesn't get it, "" if it does."""

    port: int
    lost_to: str


def nodeport_addresses(state: ClusterState, config: Config, family: Family) -> tuple[Address, ...]:
    """The node's addresses that serve node ports (nodePortAddresses), none where the rule is every local address.

    `primary`, the default, is the first InternalIP of the family, else the first ExternalIP (KEP-3866); CIDRs select
    among the addresses on the node's interfaces.  No rule serves loopback addresses: what a node sends to these has a
    loopback source, which no endpoint could answer.  localhost.py says what is served there without rules.
    """
    asked = config.node_port_addresses
    present = state.node.addresses if state.host_addresses is None else state.host_addresses
    matching = sorted(a for a in present if any(contains(cidr, a) for cidr in asked.networks))
    primary = of_family(state.node.addresses, family)[:1] if asked.primary else ()
    selected = dict.fromkeys((*primary, *of_family(matching, family)))
    return tuple(address for address in selected if not is_loopback(address))


def serves_every_address(config: Config, family: Family) -> bool:
    """Whether a match-all CIDR of the family is among nodePortAddresses."""
    return any(cidr.prefixlen == 0 and family_of(cidr) is family for cidr in config.node_port_addresses.networks)


def reaches(
    state: ClusterState, config: Config, family: Family, service: Service
) -> Iterator[tuple[ServicePort, list[Reach]]]:
    """The fronts that each port of a Service claims in one family; none if the Service is not of the family.

    Node ports are fronts only where the family has an address that serves them, be it localhost.
    """
    cluster_ips = of_family(service.cluster_ips, family)
    external = of_family(external_addresses(service, external_ips=config.allow_service_external_ips), family)
    serves_node_ports = (
        serves_every_address(config, family)
        or family in config.node_port_addresses.localhost
        or bool(nodeport_addresses(state, config, family))
    )
    for port in service.ports if cluster_ips else ():
        yield (
            port,
            [
                _reach(state, service, claim, way)
                for claim, way in port_claims(port, cluster_ips, external)
                if way is not Way.NODE_PORT or serves_node_ports
            ],
        )


def _reach(state: ClusterState, service: Service, claim: Claim, way: Way) -> Reach:
    obstacle = state.claims.obstacle(claim.address, service.key) if way is Way.EXTERNAL_IP else ""
    return Reach(
        claim,
        _front(claim),
        service.internal_policy if way is Way.CLUSTER_IP else service.external_policy,
        is_external=way is not Way.CLUSTER_IP,
        lost_to=obstacle or _taken(state, service, claim),
    )


def _front(claim: Claim) -> Front:
    protocol, port = claim.protocol.value, claim.port
    if claim.address == NODE:
        return Front("nodeport-", f"{protocol} . {port}", str(port))
    return Front("", f"{claim.address} . {protocol} . {port}", f"{claim.address} . {port}")


def _taken(state: ClusterState, service: Service, claim: Claim) -> str:
    winner = state.claims.winner(claim)
    return "" if winner == service.key else f"it belongs to Service {winner}, which takes precedence"


def health_check_port(state: ClusterState, service: Service) -> HealthCheckPort | None:
    """The health-check node port of a Service and whose it is; None if the Service has none."""
    port = service.health_check_node_port
    return HealthCheckPort(port, _taken(state, service, Claim(NODE, Protocol.TCP, port))) if port else None


def lost_claims(state: ClusterState, config: Config, family: Family, service: Service) -> list[Lost]:
    """What a Service claims in one family but does not get, and why."""
    lost = [
        Lost(service.key, port.name, reach.front.match, reach.lost_to)
        for port, claimed in reaches(state, config, family, service)
        for reach in claimed
        if reach.lost_to
    ]
    check = health_check_port(state, service) if of_family(service.cluster_ips, family) else None
    if check and check.lost_to:
        lost.append(Lost(service.key, "", f"health-check node port {check.port}", check.lost_to))
    return lost
