"""The addresses and ports at which a Service is reached on this node, decided in a single place.

The rules (compile.py), the flows to forget (flows.py) and the health checks (health_checks.py) all follow from it.
A *front* is an address, protocol and port at which a Service port is reached, or a protocol and node port.  A Service
has a front that it claims (claims.py) unless another Service takes precedence or something stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nftproxy.model.addresses import Address, Family, Network, Protocol, family_of, is_loopback, is_within, of_family
from nftproxy.model.objects import ObjectKey, Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.policy.claims import (
    NODE,
    Claim,
    ClaimKind,
    Claims,
    Denial,
    denied_external_ips,
    external_addresses,
    port_claims,
)
from nftproxy.policy.facts import Front
from nftproxy.policy.ranges import merged
from nftproxy.policy.state import ClusterState


class LostClaim(NamedTuple):
    """An address and port that a Service claims but does not get.  `what` is the address and port for people."""

    service: ObjectKey
    port_name: str
    claim: Claim
    what: str
    denial: Denial

    @property
    def service_port(self) -> str:
        """The Service port that claims it: "shop/web:http", or "shop/web" if the port has no name."""
        return f"{self.service}:{self.port_name}" if self.port_name else str(self.service)

    def why(self, claims: Claims) -> str:
        """The reason in words, with the present holder."""
        return self.denial.sentence(claims.holder(self.claim, self.denial))


class ClaimedFront(NamedTuple):
    """A front that a Service port claims, with the policy for it.

    `denial` says why the Service doesn't get the front, None if it does.  `is_external` says that clients come from
    outside: all but ClusterIPs.  `lists` are the maps that have the front's draws, each with the policy that selects
    the list.
    """

    claim: Claim
    front: Front
    policy: TrafficPolicy
    is_external: bool
    denial: Denial | None
    lists: tuple[tuple[str, TrafficPolicy], ...]


class HealthCheckPort(NamedTuple):
    """The health-check node port that a Service claims.  `denial` says why it doesn't get it, None if it does."""

    claim: Claim
    denial: Denial | None


def nodeport_addresses(state: ClusterState, config: Config, family: Family) -> tuple[Address, ...]:
    """The node's addresses that serve node ports (nodePortAddresses).  None if the rule is every local address.

    `primary`, the default, is the first InternalIP of the family, else the first ExternalIP (KEP-3866).  CIDRs select
    among the addresses on the node's interfaces.  No rule serves loopback addresses: packets from a node to these have
    a loopback source, which no endpoint could answer.  localhost.py serves node ports there without rules.
    """
    asked = config.node_port_addresses
    matching = sorted(a for a in state.own_addresses if is_within(a, asked.networks))
    primary = of_family(state.node.addresses, family)[:1] if asked.primary else ()
    selected = dict.fromkeys((*primary, *of_family(matching, family)))
    return tuple(address for address in selected if not is_loopback(address))


def serves_every_address(config: Config, family: Family) -> bool:
    """Whether a match-all CIDR of the family is among nodePortAddresses."""
    return any(cidr.prefixlen == 0 and family_of(cidr) is family for cidr in config.node_port_addresses.networks)


def serves_node_ports(state: ClusterState, config: Config, family: Family) -> bool:
    """Whether any address of this node, be it localhost, serves node ports of a family."""
    return (
        serves_every_address(config, family)
        or family in config.node_port_addresses.localhost
        or bool(nodeport_addresses(state, config, family))
    )


def claimed_fronts(
    state: ClusterState, config: Config, family: Family, service: Service
) -> Iterator[tuple[ServicePort, list[ClaimedFront]]]:
    """The fronts that each port of a Service claims in a family.  None if the Service is not of the family.

    Node ports are fronts only if the family has an address that serves them, be it localhost.
    """
    cluster_ips = of_family(service.cluster_ips, family)
    if not cluster_ips:
        return
    external = of_family(external_addresses(service, config), family)
    denied = of_family(denied_external_ips(service, config), family)
    has_node_ports = any(port.node_port for port in service.ports) and serves_node_ports(state, config, family)
    for port in service.ports:
        fronts = [
            _claimed_front(service, claim, kind, state.claims.denial(claim, kind, service.key))
            for claim, kind in port_claims(port, cluster_ips, external)
            if kind is not ClaimKind.NODE_PORT or has_node_ports
        ]
        for address in denied:
            claim = Claim(address, port.protocol, port.port)
            fronts.append(_claimed_front(service, claim, ClaimKind.EXTERNAL_IP, Denial.NOT_ALLOWED))
        yield port, fronts


def _claimed_front(service: Service, claim: Claim, kind: ClaimKind, denial: Denial | None) -> ClaimedFront:
    is_external = kind is not ClaimKind.CLUSTER_IP
    policy = service.external_policy if is_external else service.internal_policy
    lists: tuple[tuple[str, TrafficPolicy], ...] = (("services", policy),)
    if is_external and policy is TrafficPolicy.LOCAL:
        lists = (*lists, ("short_circuits", TrafficPolicy.CLUSTER))
    return ClaimedFront(claim, _front(claim), policy, is_external, denial, lists)


def _front(claim: Claim) -> Front:
    protocol, port = claim.protocol.value, claim.port
    if claim.address == NODE:
        return Front("nodeport-", f"{protocol} . {port}", str(port))
    return Front("", f"{claim.address} . {protocol} . {port}", f"{claim.address} . {port}")


def collapsed(networks: Iterable[Network]) -> tuple[str, ...]:
    """Networks of one family with overlaps merged, as the kernel's interval sets require."""
    return tuple(map(_network_text, merged(networks)))


def _network_text(network: Network) -> str:
    """A network as nft prints it: a single address has no prefix length."""
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


def restricting_ranges(service: Service, family: Family) -> list[Network]:
    """The source ranges that restrict a Service in a family.  None if every client is admitted."""
    ranges = [source for source in service.source_ranges if family_of(source) is family]
    return ranges if all(source.prefixlen for source in ranges) else []


def has_own_list(state: ClusterState, service: Service, family: Family) -> bool:
    """Whether a list of source ranges can be called by the Service's ClusterIP: no older Service has it.

    The API allocates each ClusterIP once.  Only manifests can have duplicates.
    """
    return all(state.claims.cluster_ip_owner(ip) == service.key for ip in of_family(service.cluster_ips, family))


def health_check_port(state: ClusterState, service: Service) -> HealthCheckPort | None:
    """The health-check node port of a Service, and whether it gets it.  None if the Service has none."""
    if not service.health_check_node_port:
        return None
    claim = Claim(NODE, Protocol.TCP, service.health_check_node_port)
    return HealthCheckPort(claim, state.claims.denial(claim, ClaimKind.NODE_PORT, service.key))
