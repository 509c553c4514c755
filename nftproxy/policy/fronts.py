"""Decides once at which addresses and ports a Service is reached on this node, and which of these it has.

The rules (compile.py), the UDP flows to forget (flows.py) and the health checks (health_checks.py) all follow from it.
A *front* is an address, protocol and port at which a Service port is reached, or a protocol and node port.  A Service
has a front that it claims (claims.py) unless another Service takes precedence or something stands in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from ipaddress import collapse_addresses
from typing import NamedTuple

from nftproxy.model.addresses import Address, Family, Network, Protocol, contains, family_of, is_loopback, of_family
from nftproxy.model.annotations import GuardedFronts
from nftproxy.model.objects import ObjectKey, Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.policy.claims import (
    NODE,
    Claim,
    Claims,
    Denial,
    Way,
    denied_external_ips,
    external_addresses,
    port_claims,
)
from nftproxy.policy.facts import Front
from nftproxy.policy.state import ClusterState


class Lost(NamedTuple):
    """An address and port that a Service claims but does not get; `what` is as nft writes it."""

    service: ObjectKey
    port_name: str
    claim: Claim
    what: str
    denial: Denial

    @property
    def service_port(self) -> str:
        """Who claims it: "shop/web:http", or without a port's name "shop/web"."""
        return f"{self.service}:{self.port_name}" if self.port_name else str(self.service)

    def why(self, claims: Claims) -> str:
        """The reason in words, with who has it now."""
        return self.denial.sentence(claims.holder(self.claim, self.denial))


class Reach(NamedTuple):
    """A front that a Service port claims, with the policy for it; `denial` says why it doesn't get it, if it doesn't.

    `is_external` says that clients come from outside: all but ClusterIPs.
    """

    claim: Claim
    front: Front
    policy: TrafficPolicy
    is_external: bool
    denial: Denial | None


class HealthCheckPort(NamedTuple):
    """The health-check node port that a Service claims; `denial` says why it doesn't get it, if it doesn't."""

    claim: Claim
    denial: Denial | None


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
    if not cluster_ips:
        return
    external = of_family(external_addresses(service, config), family)
    denied = of_family(denied_external_ips(service, config), family)
    serves_node_ports = any(port.node_port for port in service.ports) and (
        serves_every_address(config, family)
        or family in config.node_port_addresses.localhost
        or bool(nodeport_addresses(state, config, family))
    )
    for port in service.ports:
        claimed = [
            _reach(service, claim, way, state.claims.denial(claim, way, service.key))
            for claim, way in port_claims(port, cluster_ips, external)
            if way is not Way.NODE_PORT or serves_node_ports
        ]
        for address in denied:
            claim = Claim(address, port.protocol, port.port)
            claimed.append(_reach(service, claim, Way.EXTERNAL_IP, Denial.NOT_ALLOWED))
        yield port, claimed


def _reach(service: Service, claim: Claim, way: Way, denial: Denial | None) -> Reach:
    is_external = way is not Way.CLUSTER_IP
    policy = service.external_policy if is_external else service.internal_policy
    return Reach(claim, _front(claim), policy, is_external, denial)


def _front(claim: Claim) -> Front:
    protocol, port = claim.protocol.value, claim.port
    if claim.address == NODE:
        return Front("nodeport-", f"{protocol} . {port}", str(port))
    return Front("", f"{claim.address} . {protocol} . {port}", f"{claim.address} . {port}")


def collapsed(networks: Iterable[Network]) -> tuple[str, ...]:
    """Networks of one family with overlaps merged, as the kernel's interval sets want them."""
    return tuple(_network_text(network) for network in collapse_addresses(networks))  # type: ignore[type-var]


def _network_text(network: Network) -> str:
    """As nft prints it: a network of one address is that address."""
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


def guarded_addresses(service: Service, family: Family) -> tuple[Address, ...]:
    """The addresses of a Service that source ranges hold for: the load balancer's, and others that annotations name."""
    if not restricting_ranges(service, family):
        return ()
    with_external_ips = GuardedFronts.EXTERNAL_IPS in service.options.source_ranges_for
    return of_family(service.load_balancer_ips + (service.external_ips if with_external_ips else ()), family)


def guards_node_ports(service: Service, family: Family) -> bool:
    """Whether source ranges hold for a Service's node ports, as an annotation asks for."""
    return GuardedFronts.NODE_PORTS in service.options.source_ranges_for and bool(restricting_ranges(service, family))


def denies_some(service: Service, family: Family) -> bool:
    """Whether a Service denies ranges of a family."""
    return any(family_of(each) is family for each in service.options.denied_ranges)


def restricting_ranges(service: Service, family: Family) -> list[Network]:
    """The source ranges that load balancer addresses of a family have; none if everyone is admitted."""
    ranges = [source for source in service.source_ranges if family_of(source) is family]
    return ranges if all(source.prefixlen for source in ranges) else []


def has_own_list(state: ClusterState, service: Service, family: Family) -> bool:
    """Whether a list of source ranges can be called by the Service's ClusterIP: no older Service has the same one.

    The API allocates each once; only manifests can say otherwise.
    """
    return all(state.claims.cluster_ip_owner(ip) == service.key for ip in of_family(service.cluster_ips, family))


def health_check_port(state: ClusterState, service: Service) -> HealthCheckPort | None:
    """The health-check node port of a Service and whose it is; None if the Service has none."""
    if not service.health_check_node_port:
        return None
    claim = Claim(NODE, Protocol.TCP, service.health_check_node_port)
    return HealthCheckPort(claim, state.claims.denial(claim, Way.NODE_PORT, service.key))


def _is_closed(state: ClusterState, service: Service, family: Family) -> Callable[[Reach], bool]:
    """Which of the fronts that a Service has admit nobody, as its ranges can't be distinguished from another's."""
    if has_own_list(state, service, family):
        return lambda _reach: False
    denies = denies_some(service, family)
    closed = (*guarded_addresses(service, family), *((NODE,) if guards_node_ports(service, family) else ()))
    return lambda reach: denies or (reach.is_external and reach.claim.address in closed)


def lost_claims(state: ClusterState, config: Config, family: Family, service: Service) -> list[Lost]:
    """What a Service claims in one family but does not get."""
    is_closed = _is_closed(state, service, family)
    lost = [
        Lost(service.key, port.name, reach.claim, reach.front.match, reach.denial or Denial.CLOSED)
        for port, claimed in reaches(state, config, family, service)
        for reach in claimed
        if reach.denial or is_closed(reach)
    ]
    check = health_check_port(state, service) if of_family(service.cluster_ips, family) else None
    if check and check.denial:
        what = f"health-check node port {check.claim.port}"
        lost.append(Lost(service.key, "", check.claim, what, check.denial))
    return lost
