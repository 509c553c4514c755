"""A cache of the choices of endpoints (verdicts.py), and why a port has no near endpoint, or none at all.

`ChoiceCache` reuses the last choice for a port with many endpoints, so that the next choice costs in proportion to the
change.

A Service of 1,000 endpoints has ten EndpointSlices.  Usually a single endpoint of a single EndpointSlice changes at a
time.  A cache entry holds the inputs of the last choice, as objects, and its outcome:

* The difference of the slices, by identity first, gives the endpoints to judge.
* All other endpoints keep their verdicts while the port's `PortSummary` stays the same: whether any endpoint is ready,
  and whether hints are followed.

Otherwise everything is decided anew: if many endpoints change, for another node, other zone weights, an ip:port in two
slices, another summary, endpoints that don't answer.  The cache changes no outcome.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import TypeVar

from nftproxy.model.addresses import FAMILY_NAMES, Address, Family, Protocol
from nftproxy.model.objects import EndpointSlice, EndpointState, Node, ObjectKey, Place, ServicePort
from nftproxy.policy.choosing.verdicts import (
    Candidate,
    Choice,
    EndpointVerdict,
    PortSummary,
    ServiceEndpoints,
    candidates_of,
    decide,
    ready_of,
    summary_of,
    verdict_of,
    weight_of,
)

CACHED_ENDPOINTS = 16_000
"""Endpoints of all cached ports together, at 0.45 kB each."""

MOST_CHANGED = 8
"""One in so many endpoints may change, else all are decided anew.  To insert each of 50,000 endpoints in its place took
2.2 s, in proportion to their square, and all anew 0.3 s."""

T = TypeVar("T")

_place = operator.attrgetter("place")
_place_of_verdict = operator.attrgetter("candidate.place")


def why_not_near(endpoints: ServiceEndpoints, port: ServicePort) -> str:
    """Say why topology leaves every ready endpoint on the cluster list, "" if it doesn't.

    A Service may ask for near endpoints (spec.trafficDistribution).  If some hint can't be followed, all hints are
    ignored (KEP-2433).
    """
    ready, node = ready_of(candidates_of(endpoints, port)), endpoints.node
    if not ready or summary_of(ready, node).near:
        return ""
    if not all(candidate.zone_hints for candidate in ready):
        return "not every ready endpoint has hints for zones"
    return f"no hint names this node's zone, {node.zone}" if node.zone else "this node's zone is not known"


def why_no_candidate(slices: Iterable[EndpointSlice], family: Family, port: ServicePort) -> str:
    """Say why a Service port has no endpoint at all, ready or not, by the EndpointSlices of its Service."""
    own = [each for each in slices if each.family is family]
    if not own:
        return f"the Service has no EndpointSlice of {FAMILY_NAMES[family]}"
    count = len({address for each in own for address in each.endpoints.addresses})
    if not count:
        return "its EndpointSlices have no endpoints, as when its selector matches no pod"
    hint = "as when targetPort names no container port of the pods"
    return f"its EndpointSlices have {count} endpoint{'s' * (count > 1)}, none with {_port_words(port)}, {hint}"


def endpoints_left_out(slices: Iterable[EndpointSlice], family: Family, port: ServicePort) -> str:
    """Say how many endpoints a Service port lacks because their EndpointSlice doesn't have the port.  "" if none."""
    own = [each for each in slices if each.family is family]
    having = [each for each in own if any((at.name, at.protocol) == (port.name, port.protocol) for at in each.ports)]
    if not having or len(having) == len(own):
        return ""
    known, used = ({address for each in some for address in each.endpoints.addresses} for some in (own, having))
    count = len(known - used)
    return f"endpoints without {_port_words(port)} in their EndpointSlice: {count} of {len(known)}" if count else ""


def _port_words(port: ServicePort) -> str:
    return f"the port `{port.name}`" if port.name else f"a {port.protocol.name} port without a name"


class ChoiceCache:
    """The last choices for ports with many endpoints.  The least recently changed are evicted."""

    def __init__(self) -> None:
        self.entries: dict[tuple[Family, ObjectKey, str, Protocol], _CachedChoice] = {}

    def choose(self, endpoints: ServiceEndpoints, port: ServicePort) -> Choice:
        """Choose the endpoints that serve a port with many endpoints."""
        return self.entry(endpoints, port).choose(endpoints, port)

    def entry(self, endpoints: ServiceEndpoints, port: ServicePort) -> _CachedChoice:
        """The entry of a port, made if it is missing."""
        key = endpoints.family, endpoints.service, port.name, port.protocol
        self.entries[key] = entry = self.entries.pop(key, None) or _CachedChoice()
        entry.size = endpoints.count(port)
        while len(self.entries) > 1 and sum(each.size for each in self.entries.values()) > CACHED_ENDPOINTS:
            del self.entries[next(iter(self.entries))]
        return entry

    def evict(self, service: ObjectKey) -> None:
        """Evict all ports of a Service."""
        for key in [key for key in self.entries if key[1] == service]:
            del self.entries[key]


class _CachedChoice:
    """The last choice for a port."""

    size: int
    """The endpoints of the port's slices."""
    _slices: dict[tuple[int, int], EndpointSlice]
    _basis: tuple[str, Mapping[str, int]] | None = None
    _summary: PortSummary
    _ready: list[Candidate]
    _verdicts: list[EndpointVerdict]
    _cluster: list[Candidate]
    _here: list[EndpointVerdict]

    def choose(self, endpoints: ServiceEndpoints, port: ServicePort) -> Choice:
        """The choice, derived from the last choice if possible."""
        # We hold a reference to every slice whose id() is a key, so that no id can be reused.
        slices = {(id(each), number): each for each, number in endpoints.slices_of(port)}
        basis = endpoints.node.name, endpoints.zone_weights
        if basis != self._basis or not self._has_updated(slices, endpoints):
            self._decide_anew(candidates_of(endpoints, port), endpoints.node)
            is_each_once = len(self._verdicts) == sum(len(each.endpoints.states) for each in slices.values())
            self._basis = basis if is_each_once else None
        self._slices = slices
        return Choice(tuple(self._verdicts), tuple(self._cluster), tuple(self._here))

    def _decide_anew(self, candidates: list[Candidate], node: Node) -> None:
        choice = decide(candidates, node)
        self._ready = ready_of(candidates)
        self._summary = summary_of(self._ready, node)
        self._verdicts, self._cluster, self._here = list(choice.verdicts), list(choice.cluster), list(choice.here)

    def _has_updated(self, slices: dict[tuple[int, int], EndpointSlice], endpoints: ServiceEndpoints) -> bool:
        """Judge the endpoints that have changed.  False if all endpoints must be decided anew."""
        gone, come = self._slices.keys() - slices.keys(), slices.keys() - self._slices.keys()
        was = _entries((number, self._slices[each, number]) for each, number in gone)
        now = _entries((number, slices[each, number]) for each, number in come)
        if len(now) < sum(len(slices[key].endpoints.states) for key in come):
            return False  # an endpoint is in two of these slices
        lost, new = was - now, now - was
        if MOST_CHANGED * (len(lost) + len(new)) > len(self._verdicts):
            return False
        for address, _, number, _ in lost:
            self._remove(Place(address, number))
        added = [endpoints.candidate(*entry) for entry in new]
        if len({each.place for each in added}) < len(added) or any(self._has(each.place) for each in added):
            return False
        for candidate in ready_of(added):
            insort(self._ready, candidate)
        summary = summary_of(self._ready, endpoints.node)
        if summary != self._summary:
            return False
        for candidate in added:
            self._insert(verdict_of(candidate, summary))
        return True

    def _has(self, place: Place) -> bool:
        at = bisect_left(self._verdicts, place, key=_place_of_verdict)
        return at < len(self._verdicts) and self._verdicts[at].candidate.place == place

    def _remove(self, place: Place) -> None:
        verdict = _pop(self._verdicts, place, _place_of_verdict)
        if ready_of([verdict.candidate]):
            _pop(self._ready, place, _place)
        if verdict.cluster.is_choice:
            _pop(self._cluster, place, _place)
        if verdict.candidate.is_local:
            _pop(self._here, place, _place_of_verdict)

    def _insert(self, verdict: EndpointVerdict) -> None:
        insort(self._verdicts, verdict, key=_place_of_verdict)
        if verdict.cluster.is_choice:
            insort(self._cluster, verdict.candidate)
        if verdict.candidate.is_local:
            insort(self._here, verdict, key=_place_of_verdict)


def _pop(items: list[T], place: Place, key: Callable[[T], Place]) -> T:
    return items.pop(bisect_left(items, place, key=key))


def _entries(slices: Iterable[tuple[int, EndpointSlice]]) -> set[tuple[Address, EndpointState, int, int]]:
    """The endpoints of slices, each with the number of its slice's port and its slice's weight."""
    found = set[tuple[Address, EndpointState, int, int]]()
    for number, each in slices:
        weight = weight_of(each)
        found.update(zip(each.endpoints.addresses, each.endpoints.states, repeat(number), repeat(weight), strict=False))
    return found
