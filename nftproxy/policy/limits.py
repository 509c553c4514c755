"""Limits to the cost of a Service, checked before anything is expanded.

Addresses multiply with ports, and fronts with endpoints: an object of 25 KB can ask for 160,000 fronts.  The cost of a
Service is computed here from the sizes of its parts, in time that grows with the objects themselves.  A Service that
exceeds a limit is quarantined: it claims nothing, has no rules, and affects no other Service.

Rows cost most: some 1.2 KB of memory each while a Service is compiled and rendered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from nftproxy.model.addresses import Family, Protocol, family_of
from nftproxy.model.objects import EndpointSlice, Service, TrafficPolicy
from nftproxy.policy.choosing.placement import most_placed
from nftproxy.policy.numbers import MAX_ROWS as MAX_DRAWN

MAX_FRONTS = 10_000
"""Fronts of a Service, in both families together: addresses times ports, and node ports.

A cluster has 2,768 node ports in all by default (--service-node-port-range).  A Service for a range of 3,000 ports with
two ClusterIPs and one address of a load balancer has 9,000 fronts."""
MAX_ROWS = 100_000
"""Rows of a Service in the maps of endpoints, in both families together: fronts times endpoints, twice as many if
externalTrafficPolicy is Local, and twice as many again for session affinity.  The rows that algorithms and weights make
of endpoints count (placement.py), at their most.

A Service of 5,000 endpoints with one port, two ClusterIPs, an address of a load balancer and a node port has 20,000."""
MAX_ENDPOINTS = MAX_DRAWN
"""Endpoints of a port of a Service, in a family: the rules have no larger number."""
MAX_SOURCE_RANGES = 1_000
"""Source ranges of a Service.  Its ports and addresses share them."""


EndpointCounts = Counter[tuple[Family, str, Protocol]]
"""The number of endpoints by family, port name and protocol."""


def excess(service: Service, slices: Collection[EndpointSlice]) -> str:
    """The limit that a Service exceeds, in words.  "" if it exceeds none."""
    fronts = _addresses(service) * len(service.ports) + sum(port.node_port > 0 for port in service.ports)
    if fronts > MAX_FRONTS:
        return f"its addresses and ports come to {fronts} fronts, and {MAX_FRONTS} are allowed"
    if len(service.source_ranges) > MAX_SOURCE_RANGES:
        return f"it has {len(service.source_ranges)} source ranges, and {MAX_SOURCE_RANGES} are allowed"
    offered = sum(len(each.endpoints) * len(each.ports) for each in slices)
    most = _most_placed(service, slices, offered) * (_addresses(service) + 1) * _copies(service)
    if most <= MAX_ROWS and offered <= MAX_ENDPOINTS:  # as with nearly every Service, with any port names
        return ""
    endpoints = _endpoints(slices)
    largest = max(
        (endpoints[family, port.name, port.protocol] for port in service.ports for family in Family), default=0
    )
    if largest > MAX_ENDPOINTS:
        return f"a port of it has {largest} endpoints, and {MAX_ENDPOINTS} are allowed"
    rows = _rows(service, slices, endpoints)
    return f"its fronts and endpoints come to {rows} rows, and {MAX_ROWS} are allowed" if rows > MAX_ROWS else ""


def _addresses(service: Service) -> int:
    return len(service.cluster_ips) + len(service.load_balancer_ips) + len(service.external_ips)


def _copies(service: Service) -> int:
    """The most maps that a row is in."""
    is_local = service.external_policy is TrafficPolicy.LOCAL
    return (1 + is_local) * (1 + (service.affinity_timeout is not None))


def _most_placed(service: Service, slices: Collection[EndpointSlice], endpoints: int) -> int:
    """The most rows of so many endpoints at a front: more if an algorithm or weights repeat them."""
    is_weighted = bool(service.options.weights) or any(each.options.weight is not None for each in slices)
    return most_placed(endpoints, service.options.algorithm, is_weighted=is_weighted) if endpoints else 0


def _endpoints(slices: Collection[EndpointSlice]) -> EndpointCounts:
    endpoints: EndpointCounts = Counter()
    for each in slices:
        for offered in each.ports:
            endpoints[each.family, offered.name, offered.protocol] += len(each.endpoints)
    return endpoints


def _rows(service: Service, slices: Collection[EndpointSlice], endpoints: EndpointCounts) -> int:
    addresses = Counter(map(family_of, (*service.cluster_ips, *service.load_balancer_ips, *service.external_ips)))
    rows = sum(
        (addresses[family] + (port.node_port > 0))
        * _most_placed(service, slices, endpoints[family, port.name, port.protocol])
        for port in service.ports
        for family in set(map(family_of, service.cluster_ips))
    )
    return rows * _copies(service)
