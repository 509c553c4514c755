"""Worlds for single features: a Service that is plain except for the feature."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from msgspec import structs

from nftproxy.extensions.client_limits.annotations import DENIED_RANGES, RANGES_FOR, GuardedFronts
from nftproxy.extensions.external_addresses.fields import EXTERNAL_ADDRESSES, PINGS, ExternalAddresses, Ping
from nftproxy.extensions.failover.annotations import FAILOVER, Failover
from nftproxy.model.addresses import Address, Family, Protocol, family_of
from nftproxy.model.annotations import PLAIN, Options
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import (
    Endpoint,
    EndpointPort,
    Endpoints,
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
from nftproxy.model.settings import Config
from nftproxy_conformance.lab import DROPPED
from nftproxy_conformance.lab.topology import NODE_NAME
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies.notation import addresses, networks
from nftproxy_conformance.strategies.objects import (
    Given,
    configs,
    hints,
    options,
    policies,
    service_cidrs,
    service_ports,
    without_node_port,
)
from nftproxy_conformance.strategies.probes import probes
from nftproxy_conformance.strategies.values import (
    CLUSTER_IPS,
    IPV4,
    IPV6,
    NODE_IPS,
    NODE_NAMES,
    SERVICE_CIDRS,
    SERVICES,
    SOURCES,
    ZONES,
    some,
)
from nftproxy_conformance.strategies.worlds import crowd_of, lab_nodes, world_after, world_of

PLAIN_CONFIG = Config(cluster_cidrs=networks(["10.1.0.0/16", "fd00:1::/48"]))
PLAIN_NODE = Node(NODE_NAME, "a", NODE_IPS, (), networks(["10.1.0.0/24", "fd00:1::/64"]))
PLAIN_PORTS = (ServicePort("web", Protocol.TCP, 80, 30080), ServicePort("dns", Protocol.UDP, 53, 30080))
EXTERNAL_IPS = addresses(["203.0.113.7", "2001:db8::7"])

dual_stack = st.permutations([CLUSTER_IPS[IPV4][0], CLUSTER_IPS[IPV6][0]]).map(tuple)


def pods(of: st.SearchStrategy[Endpoint], *, least: int = 1) -> st.SearchStrategy[tuple[Endpoint, ...]]:
    """A few endpoints with different addresses, each on the node of its address.  Often all are on another node."""

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
"""The addresses of endpoints: on this node and other nodes by turns, and in this node's own network."""


def _pods(**fields: st.SearchStrategy[Any]) -> dict[Family, st.SearchStrategy[Endpoint]]:
    """Endpoints at these addresses, with some unusual fields."""
    return {family: st.builds(Endpoint, address=st.sampled_from(_PLACES[family]), **fields) for family in Family}


_ready = _pods()
_any_state = _pods(ready=st.booleans(), serving=st.booleans(), terminating=st.booleans())
_unusable = _pods(ready=st.just(False), serving=st.just(False))
_hinted = _pods(ready=st.sampled_from([True, True, False]), node_hints=hints(*NODE_NAMES), zone_hints=hints(*ZONES))


@st.composite
def focused(
    draw: st.DrawFn,
    /,
    of: Mapping[Family, st.SearchStrategy[Endpoint]],
    *,
    node: st.SearchStrategy[Node] = st.just(PLAIN_NODE),  # noqa: B008  # a strategy is a value
    config: st.SearchStrategy[Config] = st.just(PLAIN_CONFIG),  # noqa: B008
    cidrs: st.SearchStrategy[list[ServiceCIDR]] = st.just([]),  # noqa: B008
    targets: st.SearchStrategy[int] = st.just(8080),  # noqa: B008
    **fields: st.SearchStrategy[Any],
) -> World:
    """A Service that is plain except for the given fields, with endpoints from `of`, at a port from `targets`."""
    drawn = {name: draw(field) for name, field in ({"cluster_ips": dual_stack} | fields).items()}
    service = Service(
        **({"key": SERVICES[2], "created": 0, "type": ServiceType.CLUSTER_IP, "ports": PLAIN_PORTS} | drawn)
    )
    if service.type is ServiceType.CLUSTER_IP:
        service = structs.replace(service, ports=tuple(map(without_node_port, service.ports)))
    target = draw(targets)
    ports = tuple(EndpointPort(port.name, port.protocol, target) for port in service.ports)
    slices_ = [
        EndpointSlice(
            ObjectKey(service.key.namespace, f"{service.key.name}-{family.value}"),
            service.key,
            family,
            ports,
            Endpoints.of(draw(pods(of[family], least=0 if of is _unusable else 1))),
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
screened_worlds = focused(
    _ready,
    source_ranges=some(SOURCES, least=1, most=2),
    options=options(
        {
            RANGES_FOR: st.frozensets(st.sampled_from(GuardedFronts), min_size=1),
            DENIED_RANGES: some(SOURCES, most=1),
        }
    ),
    **_everywhere,
)


def _before(after: World) -> tuple[World, list[Event]]:
    """The world without restrictions of clients, and the change that restricts them."""
    opened = tuple(structs.replace(each, source_ranges=(), options=PLAIN) for each in after.services)
    return after._replace(services=opened), [Put(each) for each in after.services]


def _excludes(case: tuple[World, list[Event]]) -> bool:
    """True if a client that reaches an endpoint before the change is excluded after it."""
    before, happened = case
    earlier, later = Oracle(before), Oracle(world_after(before, happened))
    return any(
        later.expected(each) == {DROPPED} and all(outcome.endpoint for outcome in earlier.expected(each))
        for each in probes(before)
    )


restrictions = (guarded_worlds | screened_worlds).map(_before).filter(_excludes)
"""Worlds, each with a change that restricts the clients of its Service."""
checked_worlds = focused(
    _any_state,
    external_policy=_local,
    health_check_node_port=st.just(32000),
    **_everywhere,
)
_closing = st.builds(
    lambda word, **fields: structs.replace(PLAIN_CONFIG, **fields).having({EXTERNAL_ADDRESSES: word}),
    st.sampled_from([ExternalAddresses.CLOSED, ExternalAddresses.CLOSED, ExternalAddresses.OPEN]),
    external_ip_cidrs=st.sampled_from(
        [networks(["203.0.113.0/24", "2001:db8::/64"]), networks(["203.0.113.7/32", "2001:db8::7/128"])]
    ),
)
"""Configurations that may close external addresses, all of them or those of the load balancer alone."""
closed_worlds = focused(_ready, config=_closing, proxied_ips=some(EXTERNAL_IPS, most=1), **_everywhere)
pinged_worlds = focused(
    _any_state,
    config=st.builds(
        lambda config, ping: config.having({PINGS: ping}),
        _closing,
        st.sampled_from([Ping.ANSWER, Ping.ANSWER, Ping.REJECT]),
    ),
    internal_policy=policies,
    external_policy=policies,
    source_ranges=some(SOURCES, most=2),
    options=options({DENIED_RANGES: some(SOURCES, most=1)}),
    **_everywhere,
)


def _failing(failure: Failover) -> st.SearchStrategy[World]:
    """Worlds for a failure.  A proxy still knows endpoints that have failed earlier, at other ports."""
    return focused(
        _ready,
        options=options({FAILOVER: st.sampled_from([frozenset({failure}), frozenset()])}),
        internal_policy=policies,
        external_policy=policies,
        targets=st.integers(10_000, 60_000),
        **_everywhere,
    )


refusing_worlds = _failing(Failover.REFUSED)


@st.composite
def _silenced(draw: st.DrawFn) -> World:
    """A world in which a pod of each family is silent.  The node itself isn't."""
    world = draw(_failing(Failover.SILENT))
    silent = [
        (draw(st.sampled_from(pods_)), each.ports[0].port)
        for each in world.slices
        if (pods_ := [pod.address for pod in each.endpoints if pod.address not in NODE_IPS])
    ]
    return world._replace(silent=tuple(silent))


silenced_worlds = _silenced()
_LEAVERS = {
    IPV4: addresses(["10.1.0.9", "10.1.1.9"]),
    IPV6: addresses(["fd00:1::9", "fd00:1:0:1::9"]),
}
_AFTERWARDS: dict[str, dict[str, bool] | None] = {
    "ready": {},
    "unready": {"ready": False, "serving": False},
    "terminating": {"ready": False, "terminating": True},
    "terminated": {"ready": False, "serving": False, "terminating": True},
    "gone": None,
}
"""The conditions of endpoints after a change."""


@st.composite
def departures(draw: st.DrawFn) -> tuple[World, list[Event]]:
    """Two Services, of which one asks for failover `gone`, and a change of their slices.

    The Services share endpoints, which stay, terminate or go.  An endpoint of the first is always gone.
    """
    words = st.none() | st.frozensets(st.sampled_from(Failover))
    before: list[Given] = []
    happened: list[Event] = []
    for number, failover in enumerate([(draw(words) or frozenset()) | {Failover.GONE}, draw(words)]):
        service = Service(
            SERVICES[1 + number],
            0,
            ServiceType.LOAD_BALANCER,
            (CLUSTER_IPS[IPV4][number], CLUSTER_IPS[IPV6][number]),
            (ServicePort("web", Protocol.TCP, 80, 30080 + number),),
            load_balancer_ips=addresses([f"203.0.113.{20 + number}", f"2001:db8::{20 + number}"]),
            internal_policy=draw(policies),
            external_policy=draw(policies),
            options=PLAIN if failover is None else Options.of({FAILOVER: failover}),
        )
        before.append(service)
        for family in Family:
            places = [*_LEAVERS[family][: 1 - number], *draw(some(_PLACES[family][:4], least=1, most=3))]
            pods_ = [Endpoint(address=each, node_name=_home(each)) for each in places]
            states = [_AFTERWARDS[draw(st.sampled_from(list(_AFTERWARDS)))] for _ in places]
            left = [
                structs.replace(pod, **state)
                for pod, state in zip(pods_, states, strict=True)
                if state is not None and pod.address not in _LEAVERS[family]
            ]
            slice_ = EndpointSlice(
                ObjectKey(service.key.namespace, f"{service.key.name}-{family.value}"),
                service.key,
                family,
                (EndpointPort("web", Protocol.TCP, 8080),),
                Endpoints.of(pods_),
            )
            before.append(slice_)
            happened.append(Put(structs.replace(slice_, endpoints=Endpoints.of(left))))
    return world_of(PLAIN_NODE, PLAIN_CONFIG, before, knows_interfaces=False), happened


sticky_worlds = focused(_ready, affinity_timeout=st.sampled_from([60, 10800]), **_everywhere)
masquerading_worlds = focused(_ready, config=configs, node=lab_nodes, external_policy=policies, **_everywhere)
hairpin_worlds = focused(_ready, internal_policy=policies)
respelt_worlds = focused(
    _ready,
    external_policy=policies,
    source_ranges=some(SOURCES, most=2),
    node=lab_nodes,
    config=configs,
    **_everywhere,
).map(lambda world: world._replace(old_spellings=True))
unallocated_worlds = focused(
    _ready, cidrs=st.lists(service_cidrs, min_size=1, max_size=2, unique_by=lambda each: each.name)
)
"""A world with a single Service, for the feature in its name."""


def with_long_memory(of: st.SearchStrategy[World]) -> st.SearchStrategy[World]:
    """Worlds whose Services remember clients for hours, if at all: for trials that may take minutes."""

    def lengthened(world: World) -> World:
        return world._replace(
            services=tuple(
                structs.replace(each, affinity_timeout=each.affinity_timeout and 10800) for each in world.services
            )
        )

    return of.map(lengthened)


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


@st.composite
def flow_changes(draw: st.DrawFn) -> tuple[World, list[Event]]:
    """A Service with ports of UDP and SCTP, and a change of its policies and endpoints."""
    ports = (ServicePort("dns", Protocol.UDP, 53, 30053), ServicePort("sig", Protocol.SCTP, 3868, 30868))
    before = draw(focused(_ready, ports=st.just(ports), **_everywhere))._replace(knows_interfaces=True)
    happened: list[Event] = [
        Put(structs.replace(each, internal_policy=draw(policies), external_policy=draw(policies)))
        for each in before.services
    ]
    for each in before.slices:
        drawn = [(pod, _AFTERWARDS[draw(st.sampled_from(list(_AFTERWARDS)))]) for pod in each.endpoints]
        left = Endpoints.of(structs.replace(pod, **state) for pod, state in drawn if state is not None)
        happened.append(Put(structs.replace(each, endpoints=left)))
    return before, happened
