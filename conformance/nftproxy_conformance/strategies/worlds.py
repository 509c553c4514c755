"""Worlds: whole clusters on a node that a lab can play, and their changes.

Most are clusters from histories.py.  The rest have rarer features: many endpoints of a Service, or several Services
with the same node port.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from msgspec import structs

from nftproxy.extensions.algorithms.annotations import ALGORITHM
from nftproxy.extensions.failover.annotations import FAILOVER, Failover
from nftproxy.model.addresses import Address, Family, Protocol, family_of, parse_address
from nftproxy.model.annotations import Options
from nftproxy.model.events import Event, Put, Removed
from nftproxy.model.objects import (
    Endpoint,
    EndpointPort,
    Endpoints,
    EndpointSlice,
    Node,
    ObjectKey,
    Service,
    ServicePort,
    ServiceType,
    TrafficPolicy,
)
from nftproxy.model.settings import (
    Config,
)
from nftproxy_conformance.lab.topology import NODE_NAME
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies.extensions.algorithms import TABLES
from nftproxy_conformance.strategies.histories import clusters, each_once, services_with_slices, survivors
from nftproxy_conformance.strategies.notation import networks
from nftproxy_conformance.strategies.objects import Given, configs, service_cidrs, services, slices
from nftproxy_conformance.strategies.probes import NODE_ADDRESSES
from nftproxy_conformance.strategies.values import (
    IPV4,
    IPV6,
    NODE_IPS,
    OUTSIDE_IPS,
    SERVICES,
    SLICES,
    ZONES,
    some,
)

lab_nodes: st.SearchStrategy[Node] = st.builds(
    Node,
    name=st.just(NODE_NAME),
    zone=st.sampled_from(["", *ZONES]),
    internal_ips=some(NODE_IPS),
    external_ips=some(OUTSIDE_IPS[1:2]),
    pod_cidrs=st.sampled_from([(), networks(["10.1.0.0/24", "fd00:1::/64"]), networks(["10.1.1.0/24"])]),
)
"""The lab's node, whose Node may lack some of its addresses."""

_CROWDS = {IPV4: "10.1.{}.{}", IPV6: "fd00:1:0:{:x}::{:x}"}


def crowd_of(service: Service, family: Family, count: int) -> EndpointSlice:
    """This number of endpoints of a Service, in turn on this node, on another node and on none."""
    pods = Endpoints.of(
        Endpoint(
            address=parse_address(_CROWDS[family].format(number % 3, 10 + number // 3)),
            node_name=("node-a", "node-b", "")[number % 3],
        )
        for number in range(count)
    )
    ports = tuple(EndpointPort(port.name, port.protocol, 8080) for port in service.ports)
    return EndpointSlice(
        ObjectKey(service.key.namespace, f"{service.key.name}-{family.value}"), service.key, family, ports, pods
    )


@st.composite
def crowds(draw: st.DrawFn, counts: st.SearchStrategy[int]) -> list[Given]:
    """A Service with a drawn number of endpoints in each of its families, on any nodes."""
    service, count = draw(services), draw(counts)
    slices_ = [crowd_of(service, family, count) for family in Family if family in map(family_of, service.cluster_ips)]
    return [service, *slices_]


@st.composite
def rivals(draw: st.DrawFn) -> list[Given]:
    """Three Services with the same node port, some for health checks, and with shared addresses."""
    given: list[Given] = []
    for name in SERVICES:
        service = draw(services)
        checks_health = draw(st.booleans())
        changed = structs.replace(
            service,
            key=name,
            type=ServiceType.LOAD_BALANCER,
            ports=(ServicePort("web", Protocol.TCP, 80, 30081 if checks_health else 30080),),
            external_policy=TrafficPolicy.LOCAL if checks_health else service.external_policy,
            health_check_node_port=30080 if checks_health else 0,
        )
        given += [changed, *(crowd_of(changed, family, 2) for family in Family)]
    return given


def world_of(node: Node, config: Config, given: Iterable[Given], **fields: Any) -> World:
    """A world of these objects on the lab's node.  Nodes and addresses of interfaces among them are left out."""
    return World.with_objects(node, config, given, interfaces=NODE_ADDRESSES, **fields)


_crowded = st.tuples(clusters, crowds(st.sampled_from([1, 7, 20, 60]))).map(each_once)

worlds: st.SearchStrategy[World] = st.builds(
    world_of,
    lab_nodes,
    configs,
    st.one_of(clusters, clusters, clusters, _crowded, rivals()),
    knows_interfaces=st.booleans(),
)
"""A whole cluster, seen from a node with some configuration."""


lab_events: st.SearchStrategy[Event] = st.one_of(
    (services | slices).map(Put),
    (services | slices).map(Put),
    (service_cidrs | lab_nodes).map(Put),
    st.sampled_from(SERVICES).map(lambda name: Removed(Service, name)),
    st.sampled_from(SLICES).map(lambda name: Removed(EndpointSlice, name)),
)
"""An event in a world, on a node that stays."""


@st.composite
def silent_worlds(draw: st.DrawFn) -> World:
    """A world in which Services ask for failover, and some endpoints are silent or refuse."""
    world = draw(worlds)
    failures = st.sets(st.sampled_from(Failover), min_size=1).map(frozenset)
    leaving = Options.of({FAILOVER: draw(failures)})
    places = [
        (endpoint.address, port.port) for each in world.slices for endpoint in each.endpoints for port in each.ports
    ]
    silent = draw(st.lists(st.sampled_from(places), unique=True, max_size=8)) if places else []
    services_ = tuple(structs.replace(each, options=leaving) for each in world.services)
    refusing = draw(st.sets(st.sampled_from(silent))) if silent else set()
    return world._replace(services=services_, silent=tuple(silent), refusing=frozenset(refusing))


@st.composite
def hashed_worlds(draw: st.DrawFn) -> World:
    """A world in which every Service chooses by a table."""
    world = draw(worlds)
    chosen = draw(st.tuples(*[st.sampled_from(TABLES)] * len(world.services)))
    hashed = [Options.of({ALGORITHM: algorithm}) for algorithm in chosen]
    services_ = [structs.replace(each, options=options) for each, options in zip(world.services, hashed, strict=True)]
    return world._replace(services=tuple(services_))


def world_after(world: World, happened: Iterable[Event]) -> World:
    """The world after these events."""
    given: list[Given] = [world.node, *world.services, *world.slices, *world.service_cidrs]
    left = survivors([map(Put, given), happened])
    (node,) = (each for each in left if isinstance(each, Node))
    return world_of(node, world.config, left, knows_interfaces=world.knows_interfaces)


blind_worlds: st.SearchStrategy[World] = worlds.map(lambda world: world._replace(knows_interfaces=False))
"""Worlds that manifests describe completely."""

changes: st.SearchStrategy[tuple[World, list[Event]]] = st.tuples(
    blind_worlds, st.lists(lab_events, min_size=1, max_size=3)
)
"""A world, and events that happen at once."""

lives: st.SearchStrategy[tuple[World, list[list[Event]]]] = st.tuples(
    worlds, st.lists(st.lists(lab_events, min_size=1, max_size=3), min_size=1, max_size=4)
)
"""A world, and events in batches."""


_ELSEWHERE = {
    "10.96.": "10.97.",
    "fd00:96::": "fd00:97::",
    "203.0.113.": "203.0.114.",
    "2001:db8::": "2001:db9::",
    "10.1.": "10.2.",
    "fd00:1:": "fd00:2:",
    "192.168.0.2": "192.168.9.2",
    "fd00:c0a8::": "fd00:c0a9::",
}


def _moved(address: Address) -> Address:
    (new,) = (to + address.removeprefix(start) for start, to in _ELSEWHERE.items() if address.startswith(start))
    return parse_address(new)


def _estranged(given: Service | EndpointSlice) -> Service | EndpointSlice:
    name = ObjectKey("elsewhere", given.key.name)
    if isinstance(given, EndpointSlice):
        pods = Endpoints.of(structs.replace(each, address=_moved(each.address)) for each in given.endpoints)
        return structs.replace(given, key=name, service=ObjectKey("elsewhere", given.service.name), endpoints=pods)
    return structs.replace(
        given,
        key=name,
        cluster_ips=tuple(map(_moved, given.cluster_ips)),
        external_ips=tuple(map(_moved, given.external_ips)),
        load_balancer_ips=tuple(map(_moved, given.load_balancer_ips)),
        ports=tuple(structs.replace(port, node_port=port.node_port and port.node_port + 1000) for port in given.ports),
        health_check_node_port=given.health_check_node_port and given.health_check_node_port + 1000,
    )


strangers: st.SearchStrategy[list[Service | EndpointSlice]] = services_with_slices().map(
    lambda given: [_estranged(each) for each in given if isinstance(each, Service | EndpointSlice)]
)
"""A Service and its slices that share nothing with other objects."""


crowded_worlds: st.SearchStrategy[World] = st.builds(
    world_of,
    lab_nodes,
    configs,
    crowds(st.integers(2, 8) | st.integers(2, 60)).map(
        lambda given: [structs.replace(given[0], affinity_timeout=None), *given[1:]]
    ),
)
"""A Service with many endpoints and without affinity, and nothing else."""
