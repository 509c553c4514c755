"""The lists of endpoints that follow the number of connections: those of TCP ports with `least-connections`.

Kept for the agent, which counts the connections of these endpoints (agent/load_watch.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nftproxy.model.addresses import Family, Protocol, family_of, of_family
from nftproxy.model.annotations import Algorithm
from nftproxy.model.events import ListKey
from nftproxy.model.objects import ObjectKey, Place, Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import Settings
from nftproxy.policy.choosing.candidates import Candidate
from nftproxy.policy.choosing.choice import ChoiceCache, choose
from nftproxy.policy.choosing.placement import NO_FACTORS, balanced_rows, base_rows, is_balanced
from nftproxy.policy.drawing import algorithm_of
from nftproxy.policy.state import ClusterState

MOST_WRITTEN = 4_096
"""Rows that one look at the connections may rewrite, at all fronts of all lists: 0.15 s of processor time.  A list with
more rows is not balanced."""


class BalancedList(NamedTuple):
    """The rows of each endpoint of a list by its weight alone, and the rows of the list at all fronts."""

    base: Mapping[Place, int]
    size: int


class BalancedLists:
    """The lists of Services with `least-connections`, and of those the lists that are too long to be balanced."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.by_key: dict[ListKey, BalancedList] = {}
        self.oversized: set[ListKey] = set()
        self._of_place: dict[Place, set[ListKey]] = {}
        self._of_service: dict[ObjectKey, list[ListKey]] = {}

    @property
    def places(self) -> Collection[Place]:
        """All endpoints of balanced lists."""
        return self._of_place.keys()

    def having(self, places: Iterable[Place]) -> set[ListKey]:
        """The balanced lists that have any of these endpoints."""
        return set().union(*(self._of_place.get(place, ()) for place in places))

    def refresh(
        self,
        state: ClusterState,
        services: Iterable[ObjectKey],
        without_rules: Mapping[Family, Collection[ObjectKey]],
        cache: ChoiceCache | None = None,
    ) -> None:
        """Update the lists of some Services from the state.  `without_rules` has the Services without rules.

        `cache` saves time, and changes no outcome.
        """
        for key in services:
            for old in self._of_service.pop(key, ()):
                self._remove(old)
            service = state.services.get(key)
            if service is not None and service.options.algorithm is Algorithm.LEAST_CONNECTIONS:
                families = [family for family, without in without_rules.items() if key not in without]
                for list_key, found in self._lists(state, service, families, cache):
                    self._of_service.setdefault(key, []).append(list_key)
                    self._add(list_key, found)

    def _add(self, key: ListKey, found: BalancedList | None) -> None:
        if found is None:
            self.oversized.add(key)
            return
        self.by_key[key] = found
        for place in found.base:
            self._of_place.setdefault(place, set()).add(key)

    def _remove(self, key: ListKey) -> None:
        self.oversized.discard(key)
        old = self.by_key.pop(key, None)
        for place in old.base if old else ():
            self._of_place[place].discard(key)
            if not self._of_place[place]:
                del self._of_place[place]

    def _lists(
        self, state: ClusterState, service: Service, families: Iterable[Family], cache: ChoiceCache | None
    ) -> Iterator[tuple[ListKey, BalancedList | None]]:
        """The lists of a Service with several endpoints.  None for a list that is too long."""
        ports = [port for port in service.ports if port.protocol is Protocol.TCP]
        for family in set(map(family_of, service.cluster_ips)).intersection(families):
            if algorithm_of(family, service, Protocol.TCP, self._settings) is not Algorithm.LEAST_CONNECTIONS:
                continue
            endpoints = state.endpoints_of(service, family)
            for port in ports:
                choice, fronts = choose(endpoints, port, cache), _fronts(service, port, family)
                for policy in _policies(service):
                    candidates = choice.local if policy is TrafficPolicy.LOCAL else choice.cluster
                    if len(candidates) > 1:
                        yield ListKey(service.key, port.name, family, policy), _balanced(candidates, fronts)


def _balanced(candidates: Sequence[Candidate], fronts: int) -> BalancedList | None:
    """A list as so many fronts have it."""
    if not is_balanced(len(candidates)):
        return None
    base = base_rows(candidates)
    size = sum(balanced_rows(base, NO_FACTORS).values()) * fronts
    return BalancedList(base, size) if size <= MOST_WRITTEN else None


def _policies(service: Service) -> set[TrafficPolicy]:
    """The lists from which a Service draws.  With policy Local local sources draw from the cluster list, too."""
    external = {service.external_policy, TrafficPolicy.CLUSTER} if service.is_external else set()
    return {service.internal_policy, *external}


def _fronts(service: Service, port: ServicePort, family: Family) -> int:
    addresses = service.cluster_ips + service.load_balancer_ips + service.external_ips
    return len(of_family(addresses, family)) + bool(port.node_port)
