"""Hypothesis strategies: nasty but valid objects and configurations.

The strategies are small, and composed by name.  All draw from few addresses, ports and names, so that rare conflicts
become common: two Services with the same address, an external IP that is another Service's ClusterIP or the node's
address, the same ip:port in two slices, hints on some endpoints only.  The API server would admit each object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from hypothesis import strategies as st
from msgspec import structs

from nftproxy.installed import INSTALLED, OPTIONS
from nftproxy.installed_fields import FIELDS
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.annotations import PLAIN, WEIGHT, WEIGHTS, Option, Options, Word
from nftproxy.model.events import ApiServers, HostAddresses, Seen
from nftproxy.model.objects import (
    ClusterObject,
    Endpoint,
    EndpointPort,
    Endpoints,
    EndpointSlice,
    Node,
    Place,
    Service,
    ServiceCIDR,
    ServicePort,
    ServiceType,
    TrafficPolicy,
)
from nftproxy.model.settings import PROTECTED_PORTS, Capabilities, Config, DetectLocalMode, NodePortAddresses, PortRange
from nftproxy.policy.extension import Settings
from nftproxy_conformance.lab.topology import PODS
from nftproxy_conformance.strategies.extensions.inputs import joined
from nftproxy_conformance.strategies.extensions.installed import INPUTS
from nftproxy_conformance.strategies.notation import addresses, networks
from nftproxy_conformance.strategies.values import (
    CLUSTER_IPS,
    IPV4,
    IPV6,
    NODE_IPS,
    NODE_NAMES,
    OUTSIDE_IPS,
    POD_IPS,
    PORTS,
    SERVICE_CIDRS,
    SERVICES,
    SLICES,
    SOURCES,
    ZONES,
    some,
)

Given = ClusterObject | Seen
"""The object of a Put."""

families = st.sampled_from(Family)
policies = st.sampled_from(TrafficPolicy)
node_ports = st.sampled_from([0, 30080, 30081])

cluster_ips: st.SearchStrategy[tuple[Address, ...]] = st.one_of(
    st.tuples(st.sampled_from(CLUSTER_IPS[IPV4])),
    st.tuples(st.sampled_from(CLUSTER_IPS[IPV6])),
    st.tuples(st.sampled_from(CLUSTER_IPS[IPV4]), st.sampled_from(CLUSTER_IPS[IPV6])),
    st.tuples(st.sampled_from(CLUSTER_IPS[IPV6]), st.sampled_from(CLUSTER_IPS[IPV4])),
)
"""An address of either family, or of both in either order."""

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
"""A few ports: the same number with several protocols, node ports, and some without a name."""


def _are_distinct(values: list[object]) -> bool:
    return len(set(values)) == len(values)


@st.composite
def _services(draw: st.DrawFn) -> Service:
    kind = draw(st.sampled_from(ServiceType))
    ports = draw(service_ports)
    is_balanced = kind is ServiceType.LOAD_BALANCER
    external = draw(external_ips)
    # with type ClusterIP it counts only if there are external IPs
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
    """The port without its node port."""
    return ServicePort(port.name, port.protocol, port.port)


def _words(form: Word) -> st.SearchStrategy[object]:
    word = st.sampled_from(form.words)
    return st.frozensets(word) if form.is_list else word


Values = Mapping[Option[Any], st.SearchStrategy[Any]]


def options(values: Values, optional: Values = MappingProxyType({})) -> st.SearchStrategy[Options]:
    """Options with these values, and with some of the optional values."""
    return st.fixed_dictionaries(dict(values), optional=dict(optional)).map(Options.of)


_by_extensions = joined(each.values for each in INPUTS)
_named = {each.name for each in _by_extensions}

service_options: st.SearchStrategy[Options] = st.just(PLAIN) | options(
    {},
    {
        **{
            each: _words(each.form)
            for each in OPTIONS
            if isinstance(each.form, Word) and not each.is_of_slices and each.name not in _named
        },
        WEIGHTS: st.sampled_from([(("a", 3), ("b", 1)), (("a", 0),), (("b", 2), ("c", 5))]),
        **_by_extensions,
    },
)
"""The options from annotations of a Service, often none."""

slice_options: st.SearchStrategy[Options] = st.sampled_from(
    [PLAIN, PLAIN, PLAIN, *(Options.of({WEIGHT: weight}) for weight in (0, 20, 100))]
)
"""The options from annotations of an EndpointSlice."""

source_ranges = some(SOURCES, most=3)

services: st.SearchStrategy[Service] = _services()
"""A Service of any type and policy, on contested addresses."""


def hints(*names: str) -> st.SearchStrategy[tuple[str, ...] | None]:
    """Hints for a name or for all names, or no hints."""
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
        endpoints=Endpoints.of(
            _hinted_by(_without(endpoint, without), everywhere) for endpoint in draw(_endpoint_lists[family])
        ),
        options=draw(slice_options),
    )


def _without(endpoint: Endpoint, fields: Iterable[str]) -> Endpoint:
    return structs.replace(endpoint, **dict.fromkeys(fields))


def _hinted_by(endpoint: Endpoint, fields: Mapping[str, tuple[str, ...]]) -> Endpoint:
    """The endpoint, with these hints if it has none."""
    return structs.replace(endpoint, **{name: getattr(endpoint, name) or names for name, names in fields.items()})


slices: st.SearchStrategy[EndpointSlice] = _slices()
"""An EndpointSlice, possibly empty.  Often all of its endpoints have hints, or none."""

nodes: st.SearchStrategy[Node] = st.builds(
    Node,
    name=st.sampled_from(["node-a", "node-a", "node-b"]),
    zone=st.sampled_from(["", *ZONES]),
    internal_ips=some((*NODE_IPS, OUTSIDE_IPS[0])),
    external_ips=some(OUTSIDE_IPS),
    pod_cidrs=st.sampled_from([(), networks(["10.1.0.0/24", "fd00:1::/64"]), networks(["10.1.1.0/24"])]),
)
"""This node with and without a zone, addresses and pod CIDRs, or another node, which doesn't matter."""

service_cidrs: st.SearchStrategy[ServiceCIDR] = st.builds(
    ServiceCIDR, st.sampled_from(["kubernetes", "more"]), some(SERVICE_CIDRS, most=3)
)

host_addresses: st.SearchStrategy[HostAddresses] = some(
    addresses(["192.168.0.2", "192.168.0.3", "203.0.113.7", "fd00:c0a8::2", "2001:db8::7"]), most=5
).map(lambda present: HostAddresses(frozenset(present)))
"""The addresses on the machine's interfaces, which may differ from the Node's."""

api_servers: st.SearchStrategy[ApiServers] = some(
    [Place(address, port) for address in OUTSIDE_IPS for port in (80, 443)], most=3
).map(lambda places: ApiServers(frozenset(places)))
"""Where the agent reaches the API server: at addresses and ports that Services claim too."""


def _declared(config: Config) -> st.SearchStrategy[Config]:
    """The configuration with the fields of the extensions, all of them, as a parsed one has."""
    whole = config.having({each: each.default for each in FIELDS})
    return st.fixed_dictionaries(joined(each.fields(config) for each in INPUTS)).map(whole.having)


_configs: st.SearchStrategy[Config] = st.builds(
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
)
configs = _configs.flatmap(_declared)
"""Any way to recognise local sources, to masquerade and to serve node ports."""

all_settings: st.SearchStrategy[Settings] = st.builds(
    Settings, configs, st.builds(Capabilities, wide_maps=st.booleans()), st.just(INSTALLED)
)
"""Any configuration, with an nft that is new or old."""


hostile_names = st.text(max_size=12) | st.sampled_from(
    ["a\n}\nflush ruleset", "a\r}", "a\u2028}", "a\x85b", '"', "# }", "goto x", "{{ table }}", "a\x00", "\ud800", ", "]
)
"""Names that no object should have."""
