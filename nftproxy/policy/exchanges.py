"""Services that may exchange a front: Services that have an address or a node port in common, before or after a change.

Services of different groups never have the same front, whichever of them has changed already.  So groups may change one
after the other, and most Services of a group port by port.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

import msgspec

from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.objects import ObjectKey, Service
from nftproxy.policy.extension import Settings
from nftproxy.policy.flows import restrictions

Versions = tuple[Service | None, Service | None]
"""A Service before and after a change, None if it doesn't exist."""


def inseparable(
    settings: Settings, changes: Mapping[ObjectKey, Versions], node_addresses: Collection[Address]
) -> list[list[ObjectKey]]:
    """Return the groups of Services that must change at once.

    All other Services change port by port: those that keep their fronts, and a Service that comes or goes, if it
    exchanges fronts with no other.  Otherwise a front might be in the blocks of two ports for a while.
    """
    groups = exchanging(changes, node_addresses) if len(changes) > 1 else map(list, [changes])
    return [keys for keys in groups if not _changes_by_ports(settings, [changes[key] for key in keys])]


def _changes_by_ports(settings: Settings, versions: Sequence[Versions]) -> bool:
    """Whether Services that may exchange fronts change port by port: a single Service, or all keep their fronts."""
    if len(versions) > 1 and any(old is None or new is None for old, new in versions):
        return False
    return all(old is None or new is None or _keeps_fronts(settings, old, new) for old, new in versions)


def _keeps_fronts(settings: Settings, old: Service, new: Service) -> bool:
    """Whether a Service differs only in how its fronts choose endpoints."""
    if old.options != new.options and any(restrictions(settings, each) for each in (old, new)):
        return False  # a block of one port has the source ranges of all ports
    return old == msgspec.structs.replace(
        new,
        labels=old.labels,
        faults=old.faults,
        options=old.options,
        proxied_ips=old.proxied_ips,
        affinity_timeout=old.affinity_timeout,
        traffic_distribution=old.traffic_distribution,
    )


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
    groups: dict[ObjectKey, list[ObjectKey]] = {}
    for key in changes:
        groups.setdefault(root(key), []).append(key)
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
