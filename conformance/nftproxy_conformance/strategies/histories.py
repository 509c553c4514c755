"""Hypothesis strategies: whole clusters, and histories of their changes."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st
from msgspec import structs

from nftproxy.model.events import ApiServers, Event, HostAddresses, Listed, Observation, Put, Removed, Seen
from nftproxy.model.objects import (
    ClusterObject,
    EndpointPort,
    Endpoints,
    EndpointSlice,
    Node,
    ObjectKey,
    Service,
    ServiceCIDR,
    ServiceType,
    TrafficPolicy,
    key_of,
)
from nftproxy_conformance.strategies.extensions.installed import INPUTS
from nftproxy_conformance.strategies.objects import (
    Given,
    api_servers,
    host_addresses,
    nodes,
    service_cidrs,
    services,
    slices,
    without_node_port,
)
from nftproxy_conformance.strategies.values import NODE_NAMES, SERVICES, SLICES

OBSERVED = tuple(observed for each in INPUTS for observed in each.observed)
"""The observations of extensions: the empty one of each kind, and the strategy."""
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
    services,
    slices,
    services,
    slices,
    services,
    slices,
    nodes,
    service_cidrs,
    host_addresses,
    *(strategy for _, strategy in OBSERVED),
    api_servers,
)
"""Any object, mostly of the most frequent kinds."""


def identity(value: Given) -> tuple[str, ObjectKey | str]:
    """The identity of an object: its kind and key."""
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
    """The objects of all lists.  The last of several objects with the same identity counts."""
    return list({identity(each): each for objects_ in lists for each in objects_}.values())


clusters: st.SearchStrategy[list[Given]] = st.tuples(
    services_with_slices(),
    services_with_slices(),
    st.lists(services | slices, max_size=3),
    st.lists(nodes, max_size=2),
    st.lists(service_cidrs, max_size=2),
    st.lists(st.one_of(host_addresses, *(strategy for _, strategy in OBSERVED), api_servers), max_size=1),
).map(each_once)
"""A whole cluster without duplicates: a few Services, some with slices of their own, and other objects."""


@st.composite
def batches(draw: st.DrawFn, cluster: Iterable[Given]) -> list[list[Event]]:
    """The objects of a cluster as events, in any order and in batches."""
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
"""Any event, about present and missing objects."""

histories: st.SearchStrategy[list[list[Event]]] = st.tuples(
    clusters, st.lists(st.lists(events, max_size=3), max_size=5)
).map(lambda drawn: [[Put(value) for value in drawn[0]], *drawn[1]])
"""Events in batches.  The first batch makes a cluster."""


def survivors(history: Iterable[Iterable[Event]]) -> list[Given]:
    """The objects after all events: the plainest implementation of events, to compare with."""
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


# ---- changes of a part of an object, and back ----- -----------------------------------------------------------------


def updates(of: Given) -> st.SearchStrategy[Given]:
    """The object with a field of another object of its kind, still valid."""
    if isinstance(of, HostAddresses):
        return host_addresses
    for empty, strategy in OBSERVED:
        if type(of) is type(empty):
            return strategy
    if isinstance(of, ApiServers):
        return api_servers
    assert not isinstance(of, Observation), "each observation has a strategy above"
    fields = [name for name in of.__struct_fields__ if name not in ("key", "name")]
    return st.tuples(KINDS[type(of)], st.sampled_from(fields)).map(lambda drawn: _with_field(of, *drawn))


def _with_field(of: ClusterObject, other: ClusterObject, field: str) -> ClusterObject:
    match of, other:
        case EndpointSlice(), EndpointSlice() if field == "family":
            return structs.replace(of, family=other.family, endpoints=other.endpoints)
        case EndpointSlice(), EndpointSlice() if field == "endpoints" and of.family is not other.family:
            return structs.replace(of, endpoints=Endpoints())
        case _:
            changed = structs.replace(of, **{field: getattr(other, field)})
            return _admitted(changed) if isinstance(changed, Service) else changed


def _admitted(service: Service) -> Service:
    """The Service without fields that its type and policy don't allow."""
    if service.type is not ServiceType.LOAD_BALANCER:
        service = structs.replace(service, load_balancer_ips=(), source_ranges=(), health_check_node_port=0)
    if service.external_policy is not TrafficPolicy.LOCAL:
        service = structs.replace(service, health_check_node_port=0)
    if service.type is ServiceType.CLUSTER_IP:
        service = structs.replace(service, ports=tuple(map(without_node_port, service.ports)))
    return service


def undoing(before: Iterable[Given], after: Iterable[Given]) -> list[Event]:
    """The events that lead from the objects `after` back to the objects `before`."""
    old, new = ({identity(value): value for value in values} for values in (before, after))
    gone = [value for known, value in new.items() if known not in old and not isinstance(value, Seen)]
    changed = [value for known, value in old.items() if new.get(known) != value]
    none: tuple[Given, ...] = (*(empty for empty, _ in OBSERVED), ApiServers(frozenset()))
    changed += [value for value in none if identity(value) in new.keys() - old.keys()]
    return [*(Removed(type(value), key_of(value)) for value in gone), *map(Put, changed)]
