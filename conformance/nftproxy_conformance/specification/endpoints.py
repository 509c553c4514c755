"""The endpoints that serve a Service port: by conditions, topology and policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from nftproxy.extensions.failover.annotations import FAILOVER, Failover
from nftproxy.extensions.failover.fields import DEFAULT_FAILOVER
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.annotations import WEIGHT, WEIGHTS
from nftproxy.model.objects import Endpoint, EndpointSlice, Node, Service, ServicePort
from nftproxy_conformance.specification.world import World

Targets = frozenset[tuple[Address, int]]
"""Addresses and ports of endpoints."""


class Lists(NamedTuple):
    """The endpoints for policy Cluster, for policy Local, and those of both that are on this node.

    `weights` has all endpoints that take new connections, `silent` the silent endpoints that count for the port, and
    `checked` the endpoints that a health check counts.
    """

    cluster: Targets
    local: Targets
    here: Targets
    weights: Mapping[tuple[Address, int], int]
    silent: Targets = frozenset()
    checked: Targets = frozenset()


class _Entry(NamedTuple):
    """An entry of a slice: an endpoint and its weight."""

    endpoint: Endpoint
    weight: int


def lists_of(world: World, service: Service, slices: Iterable[EndpointSlice], port: ServicePort) -> Lists:
    """The endpoints of a Service port, from the Service's slices of a family."""
    entries = _entries(service, slices, port, world.node.name)
    lists = _lists({place: entry for place, entry in entries.items() if entry.weight > 0}, world.node)
    failures = failures_of(world, service)
    if port.protocol is not Protocol.TCP:
        return lists
    silent = [
        each for each in world.silent if (Failover.REFUSED if each in world.refusing else Failover.SILENT) in failures
    ]
    cluster, local = _answering(silent, lists.cluster), _answering(silent, lists.local)
    return lists._replace(cluster=cluster, local=local, silent=frozenset(silent))


def failures_of(world: World, service: Service) -> frozenset[Failover]:
    """The failures after which a Service's connections go to other endpoints."""
    return service.options.get(FAILOVER, world.config[DEFAULT_FAILOVER])


def _answering(silent: Iterable[tuple[Address, int]], targets: Targets) -> Targets:
    """The endpoints without silent endpoints.  At most half of the list is left out, the longest silent first."""
    gone = [each for each in silent if each in targets]
    return targets - set(gone[: len(targets) // 2])


def _entries(
    service: Service, slices: Iterable[EndpointSlice], port: ServicePort, node_name: str
) -> dict[tuple[Address, int], _Entry]:
    """The best entry for each address and port of a Service port."""

    def rank(entry: _Entry) -> tuple[object, ...]:
        endpoint = entry.endpoint
        is_local = endpoint.node_name == node_name
        hints = endpoint.node_hints or (), endpoint.zone_hints or ()
        return not endpoint.terminating, endpoint.ready, endpoint.serving, is_local, hints, -entry.weight

    found: dict[tuple[Address, int], _Entry] = {}
    for each in slices:
        for number in (p.port for p in each.ports if (p.name, p.protocol) == (port.name, port.protocol)):
            for pod in each.endpoints:
                place = pod.address, number
                entry = _Entry(pod, _weight(service, each, pod))
                found[place] = max(found.get(place, entry), entry, key=rank)
    return found


def _weight(service: Service, of_slice: EndpointSlice, endpoint: Endpoint) -> int:
    """The weight of an endpoint, by its slice and its zone."""
    weight = of_slice.options[WEIGHT]
    own = 100 if weight is None else weight
    return own * next((weight for zone, weight in service.options[WEIGHTS] if zone == endpoint.zone), 1)


def _lists(entries: Mapping[tuple[Address, int], _Entry], node: Node) -> Lists:
    def those(matches: Callable[[Endpoint], bool]) -> Targets:
        return frozenset(place for place, entry in entries.items() if matches(entry.endpoint))

    ready = those(lambda endpoint: endpoint.ready)
    draining = those(lambda endpoint: not endpoint.ready and endpoint.serving and endpoint.terminating)
    here = those(lambda endpoint: endpoint.node_name == node.name)
    cluster = _near({place: entries[place].endpoint for place in ready}, node) or draining
    local = ready & here or draining & here
    weights = {place: entry.weight for place, entry in entries.items()}
    return Lists(cluster, local, (cluster | local) & here, weights, checked=ready & here)


def _near(ready: dict[tuple[Address, int], Endpoint], node: Node) -> Targets:
    """The ready endpoints that topology selects: by node, else by zone, if all have hints and any fits.  Else all."""
    by_node = node.name, {place: entry.node_hints or () for place, entry in ready.items()}
    by_zone = node.zone, {place: entry.zone_hints or () for place, entry in ready.items()}
    for own, hints in (by_node, by_zone):
        near = frozenset(place for place, names in hints.items() if own and own in names)
        if near and all(hints.values()):
            return near
    return frozenset(ready)
