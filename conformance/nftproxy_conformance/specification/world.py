"""A cluster from the point of view of a node, and the places where it may be reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from nftproxy.model.addresses import Address, Family, Network, Protocol, family_of
from nftproxy.model.objects import EndpointSlice, Node, Service, ServiceCIDR
from nftproxy.model.settings import Config
from nftproxy_conformance.lab.outcome import Outcome, Probe

Value = TypeVar("Value", Address, Network)

View = Callable[[Outcome], Outcome]
"""Reduces an outcome to the part that counts."""


class World(NamedTuple):
    """All input that decides about connections: a cluster, the node, and its configuration.

    `interfaces` are the addresses on the node's interfaces without loopback.  If the proxy doesn't have them
    (`knows_interfaces`), as in `render`, it uses the Node's own addresses.  `silent` are the endpoints that don't
    answer TCP connections from this node, the longest silent first, and `refusing` those of them that refuse.  If the
    objects have `old_spellings`, the API server has stored all addresses in them before it became strict (KEP-4858).
    """

    node: Node
    config: Config = Config()
    services: tuple[Service, ...] = ()
    slices: tuple[EndpointSlice, ...] = ()
    service_cidrs: tuple[ServiceCIDR, ...] = ()
    interfaces: frozenset[Address] = frozenset()
    knows_interfaces: bool = True
    silent: tuple[tuple[Address, int], ...] = ()
    refusing: frozenset[tuple[Address, int]] = frozenset()
    old_spellings: bool = False

    @classmethod
    def with_objects(cls, node: Node, config: Config, objects: Iterable[object], **fields: Any) -> World:
        """A world with the Services, EndpointSlices and ServiceCIDRs among some objects."""
        known = list(objects)
        return cls(
            node,
            config,
            services=tuple(each for each in known if isinstance(each, Service)),
            slices=tuple(each for each in known if isinstance(each, EndpointSlice)),
            service_cidrs=tuple(each for each in known if isinstance(each, ServiceCIDR)),
            **fields,
        )


class Destination(NamedTuple):
    """Where a Service port may be reached: an address, or any of the node's, with protocol and port."""

    address: Address
    protocol: Protocol
    port: int


def of_family(values: Iterable[Value], family: Family) -> tuple[Value, ...]:
    """The addresses or networks of a family."""
    return tuple(value for value in values if family_of(value) is family)


def virtual_ips(service: Service) -> tuple[Address, ...]:
    """All addresses at which clients may ask for a Service: ClusterIPs, external IPs, load balancer IPs."""
    return (*service.cluster_ips, *service.external_ips, *service.load_balancer_ips)


def place_of(probe: Probe) -> Destination:
    """The destination of a connection."""
    return Destination(Address(probe.address), Protocol(probe.protocol.lower()), probe.port)


def source_of(probe: Probe) -> Address:
    """The source of a connection, which decides whether it is local."""
    assert probe.source
    return Address(probe.source)
