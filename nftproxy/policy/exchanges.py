"""Services that may exchange a front: Services that have an address or a node port in common, before or after a change.

Services of different groups never have the same front, whichever of them has changed already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping

from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.objects import ObjectKey, Service

Versions = tuple[Service | None, Service | None]
"""A Service before and after a change, None if it doesn't exist."""


def exchanging(changes: Mapping[ObjectKey, Versions], node_addresses: Collection[Address]) -> list[list[ObjectKey]]:
    """Group Services that may exchange a front.  Both groups and their members are in the order of `changes`."""
    parents = {key: key for key in changes}
    first_at: dict[Hashable, ObjectKey] = {}

    def root(key: ObjectKey) -> ObjectKey:
        while parents[key] != key:
            parents[key] = key = parents[parents[key]]
        return key

    for key, versions in changes.items():
        for place in (place for each in versions if each for place in _places(each, node_addresses)):
            parents[root(key)] = root(first_at.setdefault(place, key))
    groups = defaultdict[ObjectKey, list[ObjectKey]](list)
    for key in changes:
        groups[root(key)].append(key)
    return list(groups.values())


def _places(service: Service, node_addresses: Collection[Address]) -> Iterator[Hashable]:
    """The addresses and node ports of a Service.  An external address of the node is there for the node ports."""
    addresses = {*service.cluster_ips, *service.load_balancer_ips, *service.external_ips}
    yield from addresses
    if service.health_check_node_port:
        yield Protocol.TCP, service.health_check_node_port
    for port in service.ports:
        if port.node_port:
            yield port.protocol, port.node_port
        if not addresses.isdisjoint(node_addresses):
            yield port.protocol, port.port
