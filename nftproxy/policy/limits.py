"""Limits to the cost of a Service, checked before anything is expanded.

Addresses multiply with ports, and fronts with endpoints: an object of 25 KB can ask for 160,000 fronts.  The cost of a
Service is computed here from the sizes of its parts, in time that grows with the objects themselves.  A Service that
exceeds a limit is quarantined: it claims nothing, has no rules, and affects no other Service.

Rows cost most: some 1.2 KB of memory each while a Service is compiled and rendered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from nftproxy.model.addresses import Family, Protocol, family_of
from nftproxy.model.annotations import PLAIN, WEIGHT, WEIGHTS
from nftproxy.model.codes import Code
from nftproxy.model.objects import EndpointSlice, Service, TrafficPolicy
from nftproxy.policy.choosing.verdicts import weight_of
from nftproxy.policy.choosing.weights import most_rows as most_weighted
from nftproxy.policy.numbers import MAX_ROWS as MAX_DRAWN
from nftproxy.policy.ranges import keys_at_most

MAX_FRONTS = 10_000
"""Fronts of a Service, in both families together: addresses times ports, and node ports.

A cluster has 2,768 node ports in all by default (--service-node-port-range).  A Service for a range of 3,000 ports with
two ClusterIPs and one address of a load balancer has 9,000 fronts."""
MAX_ROWS = 100_000
"""Rows of a Service in the maps of endpoints, in both families together: fronts times endpoints, twice as many if
externalTrafficPolicy is Local, and twice as many again for session affinity.  The rows that weights and extensions make
of endpoints count, at their most.

A Service of 5,000 endpoints with one port, two ClusterIPs, an address of a load balancer and a node port has 20,000."""
MAX_ENDPOINTS = MAX_DRAWN
"""Endpoints of a port of a Service in a family, and rows that weights make of them: the rules have no larger number."""
MAX_SOURCE_RANGES = 1_000
"""Source ranges of a Service.  Its ports and addresses share them."""


SHARED_ROWS = 1_000
"""Rows of a port up to which IPv6's map from numbers to addresses isn't counted: all lists up to the next power of two
share one."""

FRONT = 2
"""Elements of a front in any case: in `services` and in `fronts`."""
COMMON_TIMEOUTS = frozenset(
    [*(60 * minutes for minutes in (1, 2, 5, 10, 15, 20, 30)), *(3600 * hours for hours in (1, 2, 3, 4, 6, 8, 12, 24))]
)
"""Affinity timeouts in seconds that cost nothing, as Services share them."""
ODD_TIMEOUT = 500
"""Elements that any other affinity timeout counts as, in each family, protocol and list of endpoints.

Each timeout has a map and chains of its own: 1 KB of text, and 2.4 KB as libnftables compiles it.  It compiles up to
4 MiB for one load, some 1,700 timeouts, and the default budget allows 1,200."""


class Exceeded(NamedTuple):
    """A limit that a Service exceeds, in words."""

    reason: str

    @property
    def code(self) -> Code:
        """The code under which logs and Events report the excess."""
        return Code.LIMIT_EXCEEDED


EndpointCounts = Counter[tuple[Family, str, Protocol]]
"""The number of endpoints by family, port name and protocol."""


MostRows = Callable[[Service, Protocol, int, int], int]
"""Returns the most rows of a list: of a Service, for a protocol, with a number of endpoints (1 or more), and the rows
that these come to by their weights alone.  It is asked only about Services with annotations of ours."""


def as_weighted(_: Service, __: Protocol, ___: int, rows: int) -> int:
    """The most rows of a list that is drawn by weight alone."""
    return rows


def excess(service: Service, slices: Collection[EndpointSlice], most_rows: MostRows = as_weighted) -> str:
    """The limit that a Service exceeds, in words.  "" if it exceeds none."""
    fronts = _addresses(service) * len(service.ports) + sum(port.node_port > 0 for port in service.ports)
    if fronts > MAX_FRONTS:
        return f"its addresses and ports come to {fronts} fronts, and {MAX_FRONTS} are allowed"
    if len(service.source_ranges) > MAX_SOURCE_RANGES:
        return f"it has {len(service.source_ranges)} source ranges, and {MAX_SOURCE_RANGES} are allowed"
    offered = sum(len(each.endpoints.states) * len(each.ports) for each in slices)
    placed = _most_placed(service, slices, offered, Protocol.TCP, most_rows)
    most = placed * (_addresses(service) + 1) * _copies(service)
    if most <= MAX_ROWS and max(placed, offered) <= MAX_DRAWN:  # as with nearly every Service, with any port names
        return ""
    endpoints = _endpoints(slices)
    counts = {
        (endpoints[family, port.name, port.protocol], port.protocol) for port in service.ports for family in Family
    }
    largest = max((count for count, _ in counts), default=0)
    if largest > MAX_ENDPOINTS:
        return f"a port of it has {largest} endpoints, and {MAX_ENDPOINTS} are allowed"
    drawn = max((_most_placed(service, slices, count, protocol, most_rows) for count, protocol in counts), default=0)
    if drawn > MAX_DRAWN:
        return f"the endpoints of a port of it come to {drawn} rows, and {MAX_DRAWN} are allowed"
    rows = _rows(service, slices, endpoints, most_rows)
    return f"its fronts and endpoints come to {rows} rows, and {MAX_ROWS} are allowed" if rows > MAX_ROWS else ""


def size(
    service: Service,
    slices: Collection[EndpointSlice],
    crowded: int = 0,
    extra: int = 0,
    most_rows: MostRows = as_weighted,
) -> int:
    """Estimate the most elements of a Service, in both families together.  The real number differs by a few.

    The result is the same on all nodes.  Where the number depends on the node, the node with the most counts.  A node
    may have one more for each port of each slice: the first endpoint of a slice on a node isn't counted (`crowd_of`).

    Args:
        service: the Service.
        slices: its EndpointSlices.
        crowded: the sum of `crowd_of` of these, each as often as the slice offers a port of the Service.
        extra: the most elements that the Service has by extensions.
        most_rows: the most rows of a list.
    """
    front = FRONT + (service.affinity_timeout is not None)
    lists = 1 + (service.external_policy is TrafficPolicy.LOCAL)
    outside = front + lists + bool(service.source_ranges)
    node_ports = sum([port.node_port > 0 for port in service.ports])
    elements = crowded + extra
    elements += keys_at_most(service.source_ranges) if service.source_ranges else 0
    elements += _of_timeout(service)
    for family, (inside, external) in addresses_by_family(service).items():
        elements += inside * (len(service.ports) * front + 1) + (external * len(service.ports) + node_ports) * outside
        rows = _all_rows(service, [each for each in slices if each.family is family], most_rows)
        elements += rows * (inside + external + (node_ports > 0)) * _copies(service)
        if family is Family.IPV6 and rows > SHARED_ROWS:
            elements += 2 * rows
    return elements


def crowd_of(endpoint_slice: EndpointSlice) -> int:
    """The elements in `hairpin` for a port of a slice on the node with most of its endpoints, beyond the first.

    Pods of a Service are on nodes of their own, as a rule, so the first isn't counted.
    """
    nodes = [state.node_name for state in endpoint_slice.endpoints.states]
    if len(nodes) == len(set(nodes)):
        return 0
    most = max(Counter(filter(None, nodes)).values(), default=0)
    return max(most - 1, 0)


def offered_ports(service: Service, slices: Iterable[EndpointSlice]) -> Iterator[int]:
    """Yield for each slice how many of its ports the Service has.  Other ports make no rules."""
    asked = {(port.name, port.protocol) for port in service.ports}
    for each in slices:
        yield sum([(port.name, port.protocol) in asked for port in each.ports])


def weighs_the_same(old: EndpointSlice, new: EndpointSlice) -> bool:
    """True if neither `excess` nor `size` can tell two versions of a slice apart, but for `crowd_of`.

    An endpoint that takes the place of another, or becomes ready, changes nothing else.
    """
    return (
        len(old.endpoints.states) == len(new.endpoints.states)
        and old.ports == new.ports
        and old.options == new.options
        and (old.service, old.family) == (new.service, new.family)
    )


class FrontCounts(NamedTuple):
    """The most fronts of a Service, in both families together: all, and those at external addresses and node ports."""

    all: int
    outside: int


def fronts_at_most(service: Service) -> FrontCounts:
    """Count the fronts that a Service may have."""
    by_family, ports = addresses_by_family(service), len(service.ports)
    node_ports = sum([port.node_port > 0 for port in service.ports])
    outside = sum([external * ports + node_ports for _, external in by_family.values()])
    return FrontCounts(outside + sum([inside * ports for inside, _ in by_family.values()]), outside)


def _of_timeout(service: Service) -> int:
    """The elements that stand for the declarations of an affinity timeout that few Services share."""
    if service.affinity_timeout is None or service.affinity_timeout in COMMON_TIMEOUTS:
        return 0
    families, protocols = set(map(family_of, service.cluster_ips)), {port.protocol for port in service.ports}
    is_local = TrafficPolicy.LOCAL in (service.external_policy, service.internal_policy)
    lists = (1 + is_local) * (1 + any(port.node_port for port in service.ports))
    return ODD_TIMEOUT * len(families) * len(protocols) * lists


def _all_rows(service: Service, slices: Collection[EndpointSlice], most_rows: MostRows) -> int:
    """The most rows of these endpoints at an address, for all ports together.

    Ports of slices that the Service doesn't have make no rows.  A port without endpoints has an element in
    `no-endpoints` instead.
    """
    if service.options is PLAIN and all(each.options is PLAIN for each in slices):
        offered = zip(slices, offered_ports(service, slices), strict=True)
        rows = sum([len(each.endpoints.states) * count for each, count in offered])
    else:
        weights = [weight_of(each) for each in slices]
        of_zones = max((weight for _, weight in service.options[WEIGHTS]), default=1)
        heaviest = max(weights, default=1) // (math.gcd(*weights) or 1) * max(of_zones, 1)
        endpoints = _endpoints(slices)
        counts = [
            (endpoints[family, port.name, port.protocol], port.protocol) for port in service.ports for family in Family
        ]
        rows = sum(
            _most_drawn(service, protocol, count, _most_of(count, heaviest), most_rows)
            for count, protocol in counts
            if count
        )
    return max(rows, 1) + max(len(service.ports) - 1, 0)


def addresses_by_family(service: Service) -> Mapping[Family, tuple[int, int]]:
    """The number of ClusterIPs and of external addresses, in each family that the Service is of."""
    ips, external = service.cluster_ips, service.load_balancer_ips + service.external_ips
    if len(ips) == 1 and not external:  # as with nearly every Service
        return {family_of(ips[0]): (1, 0)}
    inside, outside = Counter(map(family_of, ips)), Counter(map(family_of, external))
    return {family: (inside[family], outside[family]) for family in inside}


def _addresses(service: Service) -> int:
    return len(service.cluster_ips) + len(service.load_balancer_ips) + len(service.external_ips)


def _copies(service: Service) -> int:
    """The number of maps that a row may be in."""
    is_local = service.external_policy is TrafficPolicy.LOCAL
    return (1 + is_local) * (1 + (service.affinity_timeout is not None))


def _most_placed(
    service: Service, slices: Collection[EndpointSlice], endpoints: int, protocol: Protocol, most_rows: MostRows
) -> int:
    """The most rows of so many endpoints at a front: more if weights or an extension repeat them."""
    weighed = [each for each in slices if each.options is not PLAIN]
    is_weighted = service.options is not PLAIN and bool(service.options[WEIGHTS])
    is_weighted = is_weighted or any(each.options[WEIGHT] is not None for each in weighed)
    rows = most_weighted(endpoints) if is_weighted else endpoints
    return _most_drawn(service, protocol, endpoints, rows, most_rows) if endpoints else 0


def _most_of(endpoints: int, heaviest: int) -> int:
    """The most rows of so many endpoints with weights from 1 to `heaviest`."""
    return min(most_weighted(endpoints), endpoints * heaviest) if heaviest > 1 else endpoints


def _most_drawn(service: Service, protocol: Protocol, endpoints: int, rows: int, most_rows: MostRows) -> int:
    return rows if service.options is PLAIN else most_rows(service, protocol, endpoints, rows)


def _endpoints(slices: Collection[EndpointSlice]) -> EndpointCounts:
    endpoints: EndpointCounts = Counter()
    for each in slices:
        for offered in each.ports:
            endpoints[each.family, offered.name, offered.protocol] += len(each.endpoints.states)
    return endpoints


def _rows(service: Service, slices: Collection[EndpointSlice], endpoints: EndpointCounts, most_rows: MostRows) -> int:
    addresses = Counter(map(family_of, (*service.cluster_ips, *service.load_balancer_ips, *service.external_ips)))
    rows = sum(
        (addresses[family] + (port.node_port > 0))
        * _most_placed(service, slices, endpoints[family, port.name, port.protocol], port.protocol, most_rows)
        for port in service.ports
        for family in set(map(family_of, service.cluster_ips))
    )
    return rows * _copies(service)
