"""The lists of endpoints that follow the number of connections: those of TCP ports with `least-connections`.

Kept for the agent, which counts the connections of these endpoints (extensions/least_connections/agent/load_watch.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nftproxy.extensions.least_connections.annotations import is_asked_for
from nftproxy.extensions.least_connections.balanced_rows import base_rows, is_balanced
from nftproxy.extensions.least_connections.factors import ListKey
from nftproxy.model.addresses import Family, Protocol, family_of
from nftproxy.model.objects import ObjectKey, Place, Service, TrafficPolicy
from nftproxy.policy.choosing.choice import ChoiceCache
from nftproxy.policy.choosing.verdicts import Candidate, choose
from nftproxy.policy.drawing import is_hashed
from nftproxy.policy.extension import Change, Settings
from nftproxy.policy.state import ClusterState

MOST_WRITTEN = 4_096
"""Elements of Services that are compiled anew after a look at the connections, in 5 to 23 ms of processor time.  Lists
of a Service with more elements are not balanced."""

Base = Mapping[Place, int]
"""The rows of each endpoint of a list by its weight alone."""


class BalancedLists:
    """The lists of Services with `least-connections`, and of those the lists that are too long to be balanced."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.by_key: dict[ListKey, Base] = {}
        self.sizes: dict[ObjectKey, int] = {}
        """The elements of each Service that has any such list."""
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

    def refresh(self, change: Change) -> None:
        """Update the lists of some Services from the state."""
        state, without_rules = change.state, change.without_rules
        for key in change.services:
            self.sizes.pop(key, None)
            for old in self._of_service.pop(key, ()):
                self._remove(old)
            service = state.services.get(key)
            if service is not None and is_asked_for(service):
                families = [family for family, without in without_rules.items() if key not in without]
                self.sizes[key] = change.size_of(key)
                for list_key, candidates in self._lists(state, service, families, change.cache):
                    self._of_service.setdefault(key, []).append(list_key)
                    self._add(list_key, candidates)

    def _add(self, key: ListKey, candidates: Sequence[Candidate]) -> None:
        if not is_balanced(len(candidates)) or self.sizes[key.service] > MOST_WRITTEN:
            self.oversized.add(key)
            return
        self.by_key[key] = base_rows(candidates)
        for candidate in candidates:
            self._of_place.setdefault(candidate.place, set()).add(key)

    def _remove(self, key: ListKey) -> None:
        self.oversized.discard(key)
        old = self.by_key.pop(key, None)
        for place in old or ():
            self._of_place[place].discard(key)
            if not self._of_place[place]:
                del self._of_place[place]

    def _lists(
        self, state: ClusterState, service: Service, families: Iterable[Family], cache: ChoiceCache | None
    ) -> Iterator[tuple[ListKey, Sequence[Candidate]]]:
        """The lists of a Service with several endpoints."""
        ports = [port for port in service.ports if port.protocol is Protocol.TCP]
        for family in set(map(family_of, service.cluster_ips)).intersection(families):
            if is_hashed(family, service, self._settings):
                continue
            endpoints = state.endpoints_of(service, family)
            for port in ports:
                choice = choose(endpoints, port, cache)
                for policy in _policies(service):
                    candidates = choice.local if policy is TrafficPolicy.LOCAL else choice.cluster
                    if len(candidates) > 1:
                        yield ListKey(service.key, port.name, family, policy), candidates


def _policies(service: Service) -> set[TrafficPolicy]:
    """The lists from which a Service draws.  With policy Local local sources draw from the cluster list, too."""
    external = {service.external_policy, TrafficPolicy.CLUSTER} if service.is_external else set()
    return {service.internal_policy, *external}
