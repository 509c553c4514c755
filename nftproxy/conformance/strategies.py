"""Hypothesis strategies: nasty but valid clusters, nodes, configurations, and what may happen to them.

Small ones, composed by name.  All draw from few addresses, ports and names, so that what is rare in real clusters is
common here: two Services with one address, an external IP that is another's ClusterIP or the node's own, one ip:port
in two slices, hints on some endpoints only.  Valid means what the API server would admit, object by object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import structs

from nftproxy.conformance.notation import addresses, key, networks
from nftproxy.lab.topology import PODS
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.annotations import (
    PLAIN,
    PLAIN_SLICE,
    Algorithm,
    GuardedFronts,
    Rate,
    ServiceOptions,
    SilentEndpoints,
    SliceOptions,
)
from nftproxy.model.events import Event, HostAddresses, Listed, Put, Removed, Seen, SilentPlaces, key_of
from nftproxy.model.objects import (
    ClusterObject,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Node,
    ObjectKey,
    Place,
    Service,
    ServiceCIDR,
    ServicePort,
    ServiceType,
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

Given = ClusterObject | Seen
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
        ports=tuple(map(without_node_port, ports)) if kind is ServiceType.CLUSTER_IP else ports,
        external_ips=external,
        load_balancer_ips=draw(external_ips) if is_balanced else (),
        source_ranges=draw(source_ranges) if is_balanced else (),
        internal_policy=draw(policies),
        external_policy=external_policy,
        affinity_timeout=draw(st.sampled_from([None, 60, 10800])),
        health_check_node_port=draw(st.sampled_from([30080, 32000])) if checks_health else 0,
        options=draw(service_options),
    )


def without_node_port(port: ServicePort) -> ServicePort:
    """The same port of a Service whose type has no node ports."""
    return ServicePort(port.name, port.protocol, port.port)


GENEROUS = Rate(10_000, 100_000)
"""A limit that no client of a trial comes near: what limits do is shown by tests of their own."""

TABLES = (Algorithm.CONSISTENT_HASH, Algorithm.CONSISTENT_HASH_WITH_PORT)
"""The algorithms for which each front has a table of thousands of rows."""
drawn_algorithms = tuple(each for each in Algorithm if each not in TABLES)
"""Those that are drawn.  Tables take their time, so tests that make them small add these here."""


@st.composite
def _algorithms(draw: st.DrawFn) -> Algorithm:
    return draw(st.sampled_from(drawn_algorithms))


service_options: st.SearchStrategy[ServiceOptions] = st.just(PLAIN) | st.builds(
    ServiceOptions,
    algorithm=_algorithms(),
    weights=st.sampled_from([(), (("a", 3), ("b", 1)), (("a", 0),), (("b", 2), ("c", 5))]),
    silent_endpoints=st.sampled_from(SilentEndpoints),
    client_rate=st.sampled_from([None, None, GENEROUS]),
    client_connections=st.sampled_from([None, None, 10_000]),
    source_ranges_for=st.frozensets(st.sampled_from(GuardedFronts)),
    denied_ranges=st.just(()) | some(SOURCES),
)
"""What annotations of a Service ask for; often nothing."""

slice_options: st.SearchStrategy[SliceOptions] = st.sampled_from(
    [PLAIN_SLICE, PLAIN_SLICE, PLAIN_SLICE, SliceOptions(0), SliceOptions(20), SliceOptions(100)]
)
"""What annotations of an EndpointSlice ask for."""

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
        zone=st.sampled_from([*ZONES, ""]),
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
        options=draw(slice_options),
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

silences: st.SearchStrategy[SilentPlaces] = some(
    [Place(address, port) for family in Family for address in POD_IPS[family] for port in (8080, 5353)], most=6
).map(SilentPlaces)
"""Who doesn't answer, the first one for longest."""

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
    services, slices, services, slices, services, slices, nodes, service_cidrs, host_addresses, silences
)
"""Anything that can be put, but mostly that of which there is much."""


def identity(value: Given) -> tuple[str, ObjectKey | str]:
    """What distinguishes an object from all others."""
    return type(value).__name__, "" if isinstance(value, Seen) else key_of(value)


@st.composite
def services_with_slices(draw: st.DrawFn) -> list[Given]:
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


def each_once(lists: Iterable[list[Given]]) -> list[Given]:
    """The objects of all lists, of those with one identity the last."""
    return list({identity(each): each for objects_ in lists for each in objects_}.values())


clusters: st.SearchStrategy[list[Given]] = st.tuples(
    services_with_slices(),
    services_with_slices(),
    st.lists(services | slices, max_size=3),
    st.lists(nodes, max_size=2),
    st.lists(service_cidrs, max_size=2),
    st.lists(host_addresses | silences, max_size=1),
).map(each_once)
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
    if isinstance(of, SilentPlaces):
        return silences
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
        service = structs.replace(service, ports=tuple(map(without_node_port, service.ports)))
    return service


def undoing(before: Iterable[Given], after: Iterable[Given]) -> list[Event]:
    """The events that lead from what is there after some events back to what was there before them."""
    old, new = ({identity(value): value for value in values} for values in (before, after))
    gone = [value for known, value in new.items() if known not in old and not isinstance(value, Seen)]
    changed = [value for known, value in old.items() if new.get(known) != value]
    if any(isinstance(value, SilentPlaces) for value in new.values()) and not any(
        isinstance(value, SilentPlaces) for value in old.values()
    ):
        changed.append(SilentPlaces(()))
    return [*(Removed(type(value), key_of(value)) for value in gone), *map(Put, changed)]
