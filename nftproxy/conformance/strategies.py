"""Hypothesis strategies: nasty but valid clusters, nodes, configurations, and what may happen to them.

Small ones, composed by name.  All draw from few addresses, ports and names, so that what is rare in real clusters is
common here: two Services with one address, an external IP that is another's ClusterIP or the node's own, one ip:port
in two slices, hints on some endpoints only.  Valid means what the API server would admit, object by object.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import structs

from nftproxy.conformance.notation import addresses, key, networks
from nftproxy.conformance.oracle import World
from nftproxy.conformance.probes import INTERFACES
from nftproxy.lab.topology import NODE_NAME, PODS
from nftproxy.model.addresses import Address, Family, Protocol, family_of, parse_address
from nftproxy.model.events import Event, HostAddresses, Listed, Put, Removed, key_of
from nftproxy.model.objects import (
    ClusterObject,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Node,
    ObjectKey,
    Service,
    ServiceCIDR,
    ServicePort,
    ServiceType,
    TrafficDistribution,
    TrafficPolicy,
)
from nftproxy.model.settings import (
    PROTECTED_PORTS,
    Capabilities,
    Config,
    DetectLocalMode,
    NodePortAddresses,
    PortRange,
    Settings,
)

P = ParamSpec("P")
R = TypeVar("R")
IPV4, IPV6 = Family.IPV4, Family.IPV6

Given = ClusterObject | HostAddresses
"""What a Put may hold."""

SERVICES = tuple(map(key, ("blog/api", "shop/cart", "shop/web")))
SLICES = tuple(map(key, ("blog/api-1", "blog/api-2", "shop/cart-1", "shop/cart-2", "shop/web-1", "shop/web-2")))
CLUSTER_IPS = {IPV4: addresses(["10.96.0.10", "10.96.0.20"]), IPV6: addresses(["fd00:96::10", "fd00:96::20"])}
NODE_IPS = addresses(["192.168.0.2", "fd00:c0a8::2"])
OUTSIDE_IPS = addresses(["203.0.113.7", "203.0.113.8", "2001:db8::7"])
POD_IPS = {
    IPV4: addresses(["10.1.0.4", "10.1.0.5", "10.1.1.4", "192.168.0.2"]),
    IPV6: addresses(["fd00:1::4", "fd00:1::5", "fd00:1:0:1::4", "fd00:c0a8::2"]),
}
SOURCES = networks(
    ["198.51.100.0/24", "198.51.100.128/25", "198.51.101.0/24", "192.168.0.0/24", "0.0.0.0/0", "2001:db8::/33"]
)
SERVICE_CIDRS = networks(["10.96.0.0/16", "10.96.0.0/17", "10.97.0.0/16", "fd00:96::/112", "fd00:97::/112"])
PORTS = (
    ("", Protocol.TCP, 80),
    ("", Protocol.UDP, 80),
    ("web", Protocol.TCP, 80),
    ("web", Protocol.SCTP, 80),
    ("dns", Protocol.UDP, 53),
    ("dns-tcp", Protocol.TCP, 53),
    ("ssh", Protocol.TCP, 22),
    ("alt", Protocol.TCP, 30080),
)
NODE_NAMES = ("node-a", "node-b")
ZONES = ("a", "b")


def quick(examples: int = 60) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Settings of every property here: few examples, as each is a whole cluster, and no clock."""
    return hypothesis_settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        # the profile's, except the one that traces every line on Python 3.11
        phases=[phase for phase in hypothesis_settings().phases if phase is not Phase.explain],
    )


def some(values: Iterable[R], *, least: int = 0, most: int = 2) -> st.SearchStrategy[tuple[R, ...]]:
    """A few of the values, each at most once, in any order."""
    return st.lists(st.sampled_from(list(values)), unique=True, min_size=least, max_size=most).map(tuple)


families = st.sampled_from(Family)
protocols = st.sampled_from(Protocol)
policies = st.sampled_from(TrafficPolicy)
node_ports = st.sampled_from([0, 30080, 30081])

cluster_ips: st.SearchStrategy[tuple[Address, ...]] = st.one_of(
    st.tuples(st.sampled_from(CLUSTER_IPS[IPV4])),
    st.tuples(st.sampled_from(CLUSTER_IPS[IPV6])),
    st.tuples(st.sampled_from(CLUSTER_IPS[IPV4]), st.sampled_from(CLUSTER_IPS[IPV6])),
    st.tuples(st.sampled_from(CLUSTER_IPS[IPV6]), st.sampled_from(CLUSTER_IPS[IPV4])),
)
"""One address of either family or of both, in either order."""

external_ips = some((*CLUSTER_IPS[IPV4], *CLUSTER_IPS[IPV6], *NODE_IPS, *OUTSIDE_IPS), most=3)
"""Addresses from outside, and some that belong to other Services or to the node."""

service_ports: st.SearchStrategy[tuple[ServicePort, ...]] = (
    st.lists(
        st.tuples(st.sampled_from(PORTS), node_ports),
        min_size=2,
        max_size=4,
        unique_by=(lambda row: row[0][:2], lambda row: row[0][1:]),
    )
    .filter(lambda rows: _are_distinct([(port[1], node_port) for port, node_port in rows if node_port]))
    .map(lambda rows: tuple(ServicePort(*port, node_port) for port, node_port in rows))
)
"""A few ports: one number with several protocols, node ports, and some without a name."""


def _are_distinct(values: list[object]) -> bool:
    return len(set(values)) == len(values)


@st.composite
def _services(draw: st.DrawFn) -> Service:
    kind = draw(st.sampled_from(ServiceType))
    ports = draw(service_ports)
    is_balanced = kind is ServiceType.LOAD_BALANCER
    external = draw(external_ips)
    # of type ClusterIP it counts only where there are external IPs
    external_policy = draw(policies) if external or kind is not ServiceType.CLUSTER_IP else TrafficPolicy.CLUSTER
    checks_health = is_balanced and external_policy is TrafficPolicy.LOCAL
    return Service(
        key=draw(st.sampled_from(SERVICES)),
        created=draw(st.integers(0, 2)),
        type=kind,
        cluster_ips=draw(cluster_ips),
        ports=tuple(map(_without_node_port, ports)) if kind is ServiceType.CLUSTER_IP else ports,
        external_ips=external,
        load_balancer_ips=draw(external_ips) if is_balanced else (),
        source_ranges=draw(source_ranges) if is_balanced else (),
        internal_policy=draw(policies),
        external_policy=external_policy,
        affinity_timeout=draw(st.sampled_from([None, 60, 10800])),
        health_check_node_port=draw(st.sampled_from([30080, 32000])) if checks_health else 0,
    )


def _without_node_port(port: ServicePort) -> ServicePort:
    return ServicePort(port.name, port.protocol, port.port)


source_ranges = some(SOURCES, most=3)

services: st.SearchStrategy[Service] = _services()
"""A Service of any type and policy, on addresses that others want too."""


def hints(*names: str) -> st.SearchStrategy[tuple[str, ...] | None]:
    """Hints for one of the names or for all, or none at all."""
    return st.sampled_from([None, *((name,) for name in names), names])


endpoints: dict[Family, st.SearchStrategy[Endpoint]] = {
    family: st.builds(
        Endpoint,
        address=st.sampled_from(POD_IPS[family]),
        ready=st.booleans(),
        serving=st.booleans(),
        terminating=st.booleans(),
        node_name=st.sampled_from([*NODE_NAMES, ""]),
        node_hints=hints(*NODE_NAMES),
        zone_hints=hints(*ZONES),
    )
    for family in Family
}
"""An endpoint on this node, another or none, in any mix of conditions, with hints or without."""

_endpoint_lists: dict[Family, st.SearchStrategy[list[Endpoint]]] = {
    family: st.just([]) | st.lists(endpoints[family], min_size=2, max_size=5) | st.lists(endpoints[family], max_size=4)
    for family in Family
}

endpoint_ports: st.SearchStrategy[tuple[EndpointPort, ...]] = some(PORTS, least=2, most=5).flatmap(
    lambda ports: st.sampled_from([5353, 8080]).map(lambda number: _endpoint_ports(ports, number))
)


def _endpoint_ports(ports: Iterable[tuple[str, Protocol, int]], number: int) -> tuple[EndpointPort, ...]:
    return tuple(EndpointPort(name, protocol, number) for name, protocol, _ in ports)


@st.composite
def _slices(draw: st.DrawFn) -> EndpointSlice:
    family = draw(families)
    name = draw(st.sampled_from(SLICES))
    without = draw(st.sampled_from([(), ("node_hints",), ("node_hints", "zone_hints")]))
    everywhere: Mapping[str, tuple[str, ...]] = draw(st.sampled_from([{}, {"zone_hints": ("b",)}]))
    return EndpointSlice(
        key=name,
        service=draw(st.sampled_from([each for each in SERVICES if each.namespace == name.namespace])),
        family=family,
        ports=draw(endpoint_ports),
        endpoints=tuple(
            _hinted_by(_without(endpoint, without), everywhere) for endpoint in draw(_endpoint_lists[family])
        ),
    )


def _without(endpoint: Endpoint, fields: Iterable[str]) -> Endpoint:
    return structs.replace(endpoint, **dict.fromkeys(fields))


def _hinted_by(endpoint: Endpoint, fields: Mapping[str, tuple[str, ...]]) -> Endpoint:
    """The endpoint with these hints where it has none."""
    return structs.replace(endpoint, **{name: getattr(endpoint, name) or names for name, names in fields.items()})


slices: st.SearchStrategy[EndpointSlice] = _slices()
"""An EndpointSlice, empty ones among them; whether its endpoints have hints is often said for all at once."""

nodes: st.SearchStrategy[Node] = st.builds(
    Node,
    name=st.sampled_from(["node-a", "node-a", "node-b"]),
    zone=st.sampled_from(["", *ZONES]),
    internal_ips=some((*NODE_IPS, OUTSIDE_IPS[0])),
    external_ips=some(OUTSIDE_IPS),
    pod_cidrs=st.sampled_from([(), networks(["10.1.0.0/24", "fd00:1::/64"]), networks(["10.1.1.0/24"])]),
)
"""This node with and without a zone, addresses and pod CIDRs; or another node, which is none of our business."""

service_cidrs: st.SearchStrategy[ServiceCIDR] = st.builds(
    ServiceCIDR, st.sampled_from(["kubernetes", "more"]), some(SERVICE_CIDRS, most=3)
)

host_addresses: st.SearchStrategy[HostAddresses] = some(
    addresses(["192.168.0.2", "192.168.0.3", "203.0.113.7", "fd00:c0a8::2", "2001:db8::7"]), most=5
).map(lambda present: HostAddresses(frozenset(present)))
"""What is on the machine's interfaces, which may differ from what the Node says."""

configs: st.SearchStrategy[Config] = st.builds(
    Config,
    masquerade_all=st.booleans(),
    masquerade_bit=st.sampled_from([0, 14, 31]),
    detect_local_mode=st.sampled_from(DetectLocalMode),
    bridge_interface=st.sampled_from(["br0", PODS]),
    interface_name_prefix=st.sampled_from(["veth", PODS[:2]]),
    cluster_cidrs=st.sampled_from([(), networks(["10.1.0.0/16"]), networks(["fd00:1::/48", "10.1.0.0/16"])]),
    node_port_addresses=st.sampled_from(
        [
            NodePortAddresses(),
            NodePortAddresses(localhost=frozenset(Family)),
            NodePortAddresses(primary=False, localhost=frozenset(Family)),
            NodePortAddresses(networks=networks(["203.0.113.0/24", "::/0"]), localhost=frozenset({Family.IPV4})),
            NodePortAddresses(primary=False, networks=networks(["0.0.0.0/0", "::/0"]), localhost=frozenset(Family)),
            NodePortAddresses(primary=False, networks=networks(["192.168.0.0/24"])),
            NodePortAddresses(primary=False, networks=networks(["203.0.113.0/24", "::/0"])),
            NodePortAddresses(primary=False, networks=networks(["2001::/16"])),
        ]
    ),
    allow_service_external_ips=st.booleans(),
    protected_ports=st.sampled_from([PROTECTED_PORTS, (), (PortRange(53, 80),)]),
    external_ip_cidrs=st.sampled_from([(), (), networks(["203.0.113.0/24", "fd00:c0a8::/64"])]),
    service_counts=st.booleans(),
)
"""Any way to recognise local sources, to masquerade and to serve node ports."""

all_settings: st.SearchStrategy[Settings] = st.builds(
    Settings, configs, st.builds(Capabilities, wide_maps=st.booleans())
)
"""Any configuration, with an nft that is new or old."""


KINDS: dict[type[ClusterObject], st.SearchStrategy[ClusterObject]] = {
    Service: services,
    EndpointSlice: slices,
    Node: nodes,
    ServiceCIDR: service_cidrs,
}
_KEYS: dict[type[ClusterObject], tuple[ObjectKey | str, ...]] = {
    Service: SERVICES,
    EndpointSlice: SLICES,
    Node: NODE_NAMES,
    ServiceCIDR: ("kubernetes", "more"),
}

objects: st.SearchStrategy[Given] = st.one_of(
    services, slices, services, slices, services, slices, nodes, service_cidrs, host_addresses
)
"""Anything that can be put, but mostly that of which there is much."""


def identity(value: Given) -> tuple[str, ObjectKey | str]:
    """What distinguishes an object from all others."""
    return type(value).__name__, "" if isinstance(value, HostAddresses) else key_of(value)


@st.composite
def _services_with_slices(draw: st.DrawFn) -> list[Given]:
    """A Service, and slices of its own that mostly have its ports."""
    service = draw(services)
    drawn = draw(st.lists(slices, max_size=3))
    numbers = draw(st.sampled_from([5353, 8080]))
    own = tuple(EndpointPort(port.name, port.protocol, numbers) for port in service.ports)
    made = [
        structs.replace(
            each,
            key=ObjectKey(service.key.namespace, f"{service.key.name}-{number}"),
            service=service.key,
            ports=own if draw(st.integers(0, 3)) else each.ports,
        )
        for number, each in enumerate(drawn, 1)
    ]
    return [service, *made]


def _each_once(lists: Iterable[list[Given]]) -> list[Given]:
    return list({identity(each): each for objects_ in lists for each in objects_}.values())


clusters: st.SearchStrategy[list[Given]] = st.tuples(
    _services_with_slices(),
    _services_with_slices(),
    st.lists(services | slices, max_size=3),
    st.lists(nodes, max_size=2),
    st.lists(service_cidrs, max_size=2),
    st.lists(host_addresses, max_size=1),
).map(_each_once)
"""A whole cluster, each object once: one or two Services with slices of their own, and whatever else there may be."""


@st.composite
def batches(draw: st.DrawFn, cluster: Iterable[Given]) -> list[list[Event]]:
    """The objects of a cluster as events, in any order, some of them in one batch."""
    events: list[Event] = [Put(value) for value in draw(st.permutations(list(cluster)))]
    cuts = draw(st.lists(st.integers(0, len(events)), max_size=6).map(sorted))
    return [events[start:end] for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True)]


kinds: st.SearchStrategy[type[ClusterObject]] = st.sampled_from(
    [Service, EndpointSlice, Service, EndpointSlice, Node, ServiceCIDR]
)

events: st.SearchStrategy[Event] = st.one_of(
    objects.map(Put),
    objects.map(Put),
    kinds.flatmap(lambda kind: st.sampled_from(_KEYS[kind]).map(lambda name: Removed(kind, name))),
    kinds.flatmap(
        lambda kind: st.lists(KINDS[kind], max_size=4, unique_by=identity).map(lambda all_: Listed(kind, tuple(all_)))
    ),
)
"""Anything that may happen, to objects that are there and to others."""

histories: st.SearchStrategy[list[list[Event]]] = st.tuples(
    clusters, st.lists(st.lists(events, max_size=3), max_size=5)
).map(lambda drawn: [[Put(value) for value in drawn[0]], *drawn[1]])
"""What happens, in batches; it begins with a cluster."""


def survivors(history: Iterable[Iterable[Event]]) -> list[Given]:
    """What is there when all has happened: the plainest account of what events mean, to hold others against."""
    there: dict[tuple[str, ObjectKey | str], Given] = {}
    for batch in history:
        for event in batch:
            match event:
                case Put(object=value):
                    there[identity(value)] = value
                case Removed(kind=kind, key=name):
                    there.pop((kind.__name__, name), None)
                case Listed(kind=kind, objects=values):
                    there = {known: value for known, value in there.items() if known[0] != kind.__name__}
                    there |= {identity(value): value for value in values}
    return list(there.values())


hostile_names = st.text(max_size=12) | st.sampled_from(
    ["a\n}\nflush ruleset", "a\r}", "a\u2028}", "a\x85b", '"', "# }", "goto x", "{{ table }}", "a\x00", "\ud800", ", "]
)
"""What no name should be."""


# ---- what happens to a part of an object, and back -----------------------------------------------------------------


def updates(of: Given) -> st.SearchStrategy[Given]:
    """The same object with one field as another object of its kind has it; still such as the API server would admit."""
    if isinstance(of, HostAddresses):
        return host_addresses
    fields = [name for name in of.__struct_fields__ if name not in ("key", "name")]
    return st.tuples(KINDS[type(of)], st.sampled_from(fields)).map(lambda drawn: _with_field(of, *drawn))


def _with_field(of: ClusterObject, other: ClusterObject, field: str) -> ClusterObject:
    match of, other:
        case EndpointSlice(), EndpointSlice() if field == "family":
            return structs.replace(of, family=other.family, endpoints=other.endpoints)
        case EndpointSlice(), EndpointSlice() if field == "endpoints" and of.family is not other.family:
            return structs.replace(of, endpoints=())
        case _:
            changed = structs.replace(of, **{field: getattr(other, field)})
            return _admitted(changed) if isinstance(changed, Service) else changed


def _admitted(service: Service) -> Service:
    """The Service without what its type and policy don't have."""
    if service.type is not ServiceType.LOAD_BALANCER:
        service = structs.replace(service, load_balancer_ips=(), source_ranges=(), health_check_node_port=0)
    if service.external_policy is not TrafficPolicy.LOCAL:
        service = structs.replace(service, health_check_node_port=0)
    if service.type is ServiceType.CLUSTER_IP:
        service = structs.replace(service, ports=tuple(map(_without_node_port, service.ports)))
    return service


def undoing(before: Iterable[Given], after: Iterable[Given]) -> list[Event]:
    """The events that lead from what is there after some events back to what was there before them."""
    old, new = ({identity(value): value for value in values} for values in (before, after))
    gone = [value for known, value in new.items() if known not in old and not isinstance(value, HostAddresses)]
    changed = [value for known, value in old.items() if new.get(known) != value]
    return [*(Removed(type(value), key_of(value)) for value in gone), *map(Put, changed)]


# Worlds: clusters on a node that a lab can play


lab_nodes: st.SearchStrategy[Node] = st.builds(
    Node,
    name=st.just(NODE_NAME),
    zone=st.sampled_from(["", *ZONES]),
    internal_ips=some(NODE_IPS),
    external_ips=some(OUTSIDE_IPS[1:2]),
    pod_cidrs=st.sampled_from([(), networks(["10.1.0.0/24", "fd00:1::/64"]), networks(["10.1.1.0/24"])]),
)
"""The lab's node, which may know less of itself than is true."""

_CROWDS = {IPV4: "10.1.{}.{}", IPV6: "fd00:1:0:{:x}::{:x}"}


def crowd_of(service: Service, family: Family, count: int) -> EndpointSlice:
    """So many endpoints of a Service, on this node, another and none by turns."""
    pods = tuple(
        Endpoint(
            parse_address(_CROWDS[family].format(number % 3, 10 + number // 3)),
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
    """A Service with so many endpoints in each of its families, on any nodes."""
    service, count = draw(services), draw(counts)
    slices_ = [crowd_of(service, family, count) for family in Family if family in map(family_of, service.cluster_ips)]
    return [service, *slices_]


@st.composite
def rivals(draw: st.DrawFn) -> list[Given]:
    """Three Services that all want one node port, some for their health checks, and share addresses besides."""
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
    """A world of these objects, of which Nodes and interfaces' addresses don't count: those are the lab's."""
    objects = list(given)
    return World(
        node,
        config,
        services=tuple(each for each in objects if isinstance(each, Service)),
        slices=tuple(each for each in objects if isinstance(each, EndpointSlice)),
        service_cidrs=tuple(each for each in objects if isinstance(each, ServiceCIDR)),
        interfaces=INTERFACES,
        **fields,
    )


_crowded = st.tuples(clusters, crowds(st.sampled_from([1, 7, 20, 60]))).map(_each_once)

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
"""What may happen in a world, on a node that stays."""


def world_after(world: World, happened: Iterable[Event]) -> World:
    """The world when these events have happened in it."""
    given: list[Given] = [world.node, *world.services, *world.slices, *world.service_cidrs]
    left = survivors([map(Put, given), happened])
    (node,) = (each for each in left if isinstance(each, Node))
    return world_of(node, world.config, left, knows_interfaces=world.knows_interfaces)


blind_worlds: st.SearchStrategy[World] = worlds.map(lambda world: world._replace(knows_interfaces=False))
"""Worlds that manifests describe completely."""

changes: st.SearchStrategy[tuple[World, list[Event]]] = st.tuples(
    blind_worlds, st.lists(lab_events, min_size=1, max_size=3)
)
"""A world, and what happens in it at once."""

lives: st.SearchStrategy[tuple[World, list[list[Event]]]] = st.tuples(
    worlds, st.lists(st.lists(lab_events, min_size=1, max_size=3), min_size=1, max_size=4)
)
"""A world, and what happens in it, in batches."""


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
        pods = tuple(structs.replace(each, address=_moved(each.address)) for each in given.endpoints)
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


strangers: st.SearchStrategy[list[Service | EndpointSlice]] = _services_with_slices().map(
    lambda given: [_estranged(each) for each in given if isinstance(each, Service | EndpointSlice)]
)
"""A Service and its slices that have nothing to do with any of the others here."""


crowded_worlds: st.SearchStrategy[World] = st.builds(
    world_of,
    lab_nodes,
    configs,
    crowds(st.integers(2, 8) | st.integers(2, 60)).map(
        lambda given: [structs.replace(given[0], affinity_timeout=None), *given[1:]]
    ),
)
"""A Service with many endpoints that remembers nobody, and nothing else."""


# Worlds about one thing each


PLAIN_CONFIG = Config(cluster_cidrs=networks(["10.1.0.0/16", "fd00:1::/48"]))
PLAIN_NODE = Node(NODE_NAME, "a", NODE_IPS, (), networks(["10.1.0.0/24", "fd00:1::/64"]))
PLAIN_PORTS = (ServicePort("web", Protocol.TCP, 80, 30080), ServicePort("dns", Protocol.UDP, 53, 30080))
EXTERNAL_IPS = addresses(["203.0.113.7", "2001:db8::7"])

dual_stack = st.permutations([CLUSTER_IPS[IPV4][0], CLUSTER_IPS[IPV6][0]]).map(tuple)


def pods(of: st.SearchStrategy[Endpoint], *, least: int = 1) -> st.SearchStrategy[tuple[Endpoint, ...]]:
    """A few endpoints with an address of their own each, on the node where that address is; often all on another."""

    def at_home(drawn: list[Endpoint], only_away: bool) -> tuple[Endpoint, ...]:
        there = [structs.replace(each, node_name=_home(each.address)) for each in drawn]
        away = [each for each in there if each.node_name != NODE_NAME]
        return tuple(away if away and only_away else there)

    return st.builds(
        at_home, st.lists(of, min_size=least, max_size=4, unique_by=lambda each: each.address), st.booleans()
    )


def _home(address: Address) -> str:
    return NODE_NAME if address.startswith(("10.1.0.", "fd00:1::", "192.168.0.2", "fd00:c0a8::2")) else "node-b"


_PLACES = {
    IPV4: addresses(["10.1.0.4", "10.1.1.4", "10.1.0.5", "10.1.2.4", "192.168.0.2"]),
    IPV6: addresses(["fd00:1::4", "fd00:1:0:1::4", "fd00:1::5", "fd00:1:0:2::4", "fd00:c0a8::2"]),
}
"""Where endpoints are: on this node and on others by turns, and in this node's own network."""

_ready = {family: st.builds(Endpoint, address=st.sampled_from(_PLACES[family])) for family in Family}
_any_state = {
    family: st.builds(
        Endpoint,
        address=st.sampled_from(_PLACES[family]),
        ready=st.booleans(),
        serving=st.booleans(),
        terminating=st.booleans(),
    )
    for family in Family
}
_unusable = {
    family: st.builds(Endpoint, address=st.sampled_from(_PLACES[family]), ready=st.just(False), serving=st.just(False))
    for family in Family
}
_hinted = {
    family: st.builds(
        Endpoint,
        address=st.sampled_from(_PLACES[family]),
        ready=st.sampled_from([True, True, False]),
        node_hints=hints(*NODE_NAMES),
        zone_hints=hints(*ZONES),
    )
    for family in Family
}


@st.composite
def focused(
    draw: st.DrawFn,
    /,
    of: Mapping[Family, st.SearchStrategy[Endpoint]],
    *,
    node: st.SearchStrategy[Node] = st.just(PLAIN_NODE),  # noqa: B008  # a strategy is a value
    config: st.SearchStrategy[Config] = st.just(PLAIN_CONFIG),  # noqa: B008
    cidrs: st.SearchStrategy[list[ServiceCIDR]] = st.just([]),  # noqa: B008
    **fields: st.SearchStrategy[Any],
) -> World:
    """One Service that is plain in all but the fields given, with endpoints that are `of` that sort."""
    drawn = {name: draw(field) for name, field in ({"cluster_ips": dual_stack} | fields).items()}
    service = Service(
        **({"key": SERVICES[2], "created": 0, "type": ServiceType.CLUSTER_IP, "ports": PLAIN_PORTS} | drawn)
    )
    if service.type is ServiceType.CLUSTER_IP:
        service = structs.replace(service, ports=tuple(map(_without_node_port, service.ports)))
    ports = tuple(EndpointPort(port.name, port.protocol, 8080) for port in service.ports)
    slices_ = [
        EndpointSlice(
            ObjectKey(service.key.namespace, f"{service.key.name}-{family.value}"),
            service.key,
            family,
            ports,
            draw(pods(of[family], least=0 if of is _unusable else 1)),
        )
        for family in Family
        if family in map(family_of, service.cluster_ips)
    ]
    return world_of(draw(node), draw(config), [service, *slices_, *draw(cidrs)], knows_interfaces=False)


_everywhere: dict[str, st.SearchStrategy[Any]] = {
    "type": st.just(ServiceType.LOAD_BALANCER),
    "external_ips": st.just(addresses(["203.0.113.9", "2001:db8::9"])),
    "load_balancer_ips": st.just(EXTERNAL_IPS),
}
_local = st.just(TrafficPolicy.LOCAL)

cluster_ip_worlds = focused(_ready)
ipv6_worlds = focused(_ready, cluster_ips=st.just((CLUSTER_IPS[IPV6][0],)), **_everywhere)
external_ip_worlds = focused(_ready, external_ips=st.just(EXTERNAL_IPS))
node_address_worlds = focused(
    _ready,
    type=st.just(ServiceType.LOAD_BALANCER),
    external_policy=policies,
    ports=service_ports,
    external_ips=st.just(NODE_IPS),
    load_balancer_ips=some(NODE_IPS),
    source_ranges=some(SOURCES, most=1),
    config=configs,
)
load_balancer_worlds = focused(_ready, type=st.just(ServiceType.LOAD_BALANCER), load_balancer_ips=st.just(EXTERNAL_IPS))
node_port_worlds = focused(_ready, type=st.just(ServiceType.NODE_PORT), config=configs, node=lab_nodes)
sctp_worlds = focused(_ready, ports=st.just((ServicePort("sig", Protocol.SCTP, 3868, 30868),)), **_everywhere)
rejecting_worlds = focused(_unusable, **_everywhere)
internal_local_worlds = focused(_ready, internal_policy=_local)
external_local_worlds = focused(_ready, external_policy=_local, **_everywhere)
terminating_worlds = focused(_any_state, internal_policy=policies, external_policy=policies, **_everywhere)
topology_worlds = focused(_hinted, node=lab_nodes, traffic_distribution=st.sampled_from(TrafficDistribution))
guarded_worlds = focused(_ready, source_ranges=some(SOURCES, least=1, most=3), **_everywhere)
sticky_worlds = focused(_ready, affinity_timeout=st.sampled_from([60, 10800]), **_everywhere)
masquerading_worlds = focused(_ready, config=configs, node=lab_nodes, external_policy=policies, **_everywhere)
hairpin_worlds = focused(_ready, internal_policy=policies)
unallocated_worlds = focused(
    _ready, cidrs=st.lists(service_cidrs, min_size=1, max_size=2, unique_by=lambda each: each.name)
)
"""A world about one thing, with one Service: what the name says, and nothing unusual beside it."""


def sample() -> World:
    """A world that has something of everything, and is always the same."""
    given: list[Given] = []
    for number, (protocol, policy, timeout) in enumerate(itertools.product(Protocol, TrafficPolicy, [None, 60]), 1):
        service = Service(
            ObjectKey("sample", f"service-{number}"),
            0,
            ServiceType.LOAD_BALANCER,
            addresses([f"10.96.1.{number}", f"fd00:96::1:{number}"]),
            (ServicePort("port", protocol, 80, 30000 + number),),
            addresses([f"203.0.113.{100 + number}", f"2001:db8::{100 + number}"]),
            addresses([f"203.0.113.{200 + number}", f"2001:db8::{200 + number}"]),
            SOURCES[:1],
            policy,
            policy,
            timeout,
        )
        given += [service, *(crowd_of(service, family, number) for family in Family)]
    return world_of(
        PLAIN_NODE, PLAIN_CONFIG, [*given, ServiceCIDR("kubernetes", SERVICE_CIDRS)], knows_interfaces=False
    )
