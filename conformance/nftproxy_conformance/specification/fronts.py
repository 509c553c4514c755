"""The Service port that owns each place: ClusterIPs first, then the oldest Service, then by name."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

from nftproxy.model.addresses import Address, Protocol, contains, family_of
from nftproxy.model.objects import Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy_conformance.specification.world import Destination, World

ANY_ADDRESS = Address("")
"""Stands for the node's addresses in the place of a node port."""


class Front(NamedTuple):
    """A Service port at a place that it owns.  A `port` of None is a health-check node port, where no rule serves."""

    service: Service
    port: ServicePort | None
    policy: TrafficPolicy
    is_external: bool


def fronts_of(world: World) -> dict[Destination, Front]:
    """Each place with its owner: ClusterIPs first, then the oldest, then by name."""
    cluster_ips = {address for service in world.services for address in service.cluster_ips}
    claims = [(place, front) for service in world.services for place, front in _claims(world, service, cluster_ips)]

    def precedence(claim: tuple[Destination, Front]) -> tuple[object, ...]:
        place, front = claim
        service = front.service
        is_guest = front.is_external and place.address != ANY_ADDRESS
        return is_guest, service.created, service.key.namespace, service.key.name, front.port is None

    found: dict[Destination, Front] = {}
    for place, front in sorted(claims, key=precedence):
        if not _is_the_nodes(world, place, front, found.get(place._replace(address=ANY_ADDRESS))):
            found.setdefault(place, front)
    return found


def _is_the_nodes(world: World, place: Destination, front: Front, node_port: Front | None) -> bool:
    """True if a place at an external address belongs to the node: a protected port, or another Service's node port."""
    if not front.is_external or place.address not in world.node.addresses:
        return False
    is_others = node_port is not None and node_port.service.key != front.service.key
    return is_others or place.port in _protected_ports(world.config)


def _protected_ports(config: Config) -> set[int]:
    """The node's ports that no external address captures: the configured ports, and the proxy's own."""
    own = {int(place.rpartition(":")[2]) for place in (config.healthz_bind_address, config.metrics_bind_address)}
    return own.union(*(range(ports.first, ports.last + 1) for ports in config.protected_ports))


def _claims(world: World, service: Service, cluster_ips: Set[Address]) -> Iterator[tuple[Destination, Front]]:
    """Every place that a Service claims and may own.  An external address is never a Service's ClusterIP."""
    families = set(map(family_of, service.cluster_ips))
    wanted = service.load_balancer_ips + _allowed_external_ips(world.config, service)
    external = {address for address in wanted if family_of(address) in families} - cluster_ips
    for port in service.ports:
        for address in service.cluster_ips:
            yield Destination(address, port.protocol, port.port), Front(service, port, service.internal_policy, False)
        for address in external:
            yield Destination(address, port.protocol, port.port), Front(service, port, service.external_policy, True)
        if port.node_port:
            yield (
                Destination(ANY_ADDRESS, port.protocol, port.node_port),
                Front(service, port, service.external_policy, True),
            )
    if service.health_check_node_port:
        place = Destination(ANY_ADDRESS, Protocol.TCP, service.health_check_node_port)
        yield place, Front(service, None, service.external_policy, True)


def _allowed_external_ips(config: Config, service: Service) -> tuple[Address, ...]:
    """The externalIPs that may be served at all."""
    if not config.allow_service_external_ips:
        return ()
    cidrs = config.external_ip_cidrs
    return tuple(a for a in service.external_ips if not cidrs or any(contains(cidr, a) for cidr in cidrs))
