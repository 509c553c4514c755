"""What was decided last about Service ports with many endpoints, so that the next decision costs what has changed.

A Service of 1,000 endpoints has ten EndpointSlices, of which one changes at a time, mostly by one endpoint.  What is
kept of it is what its last decision was made from, the very objects, and what came out: candidates, verdicts, lists,
and who is in which slot.  Then

* what differs between the slices of then and of now, by identity first, are the endpoints to decide about;
* all others keep their verdicts as long as what the endpoints come to together (`Outlook`) is the same: whether any is
  ready, and whether hints are followed;
* whoever moves is found from the last slots (kept_slots.py).

Where that isn't enough, all is decided from nothing and kept anew: another node, weights of zones, an ip:port in two
slices, an outlook that has changed, endpoints that don't answer.  Either way the outcome is the same, and nobody sees
more than that; whoever keeps nothing (`nftproxy render`) decides as if it were the first time.

Few endpoints are not worth it, and a Service with few has nothing here.  Of the others the last ones are kept.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from nftproxy.model.addresses import Family, Protocol
from nftproxy.model.objects import Endpoint, EndpointSlice, Node, ObjectKey, Place, ServicePort, TrafficPolicy
from nftproxy.policy.endpoints import (
    Candidate,
    Choice,
    Offers,
    Outlook,
    Verdict,
    candidate_of,
    choose,
    gather,
    judged,
    outlook_of,
    ready_of,
    weight_of,
)
from nftproxy.policy.facts import Row
from nftproxy.policy.kept_slots import KeptSlots, can_be_followed
from nftproxy.policy.numbers import as_address
from nftproxy.policy.slots import in_slots

MANY = 100
"""Endpoints of a port that are worth it, and what an EndpointSlice has at most by default
(--max-endpoints-per-slice): with fewer, deciding from nothing takes no longer."""
MOST_KEPT = 16_000
"""Endpoints in all that are kept, of the ports that have changed last, at 0.45 kB each."""
MOST_AT_ONCE = 16
"""Services that are compiled together and kept: with more, as at the start, the last would push out the first."""

_place = operator.attrgetter("place")
_place_of_verdict = operator.attrgetter("candidate.place")


class KeptChoice:
    """The last decision about the endpoints of one port."""

    def __init__(self) -> None:
        self._slices: dict[tuple[int, int], EndpointSlice] = {}
        self._basis: tuple[Node, dict[str, int]] | None = None
        self._outlook: Outlook | None = None
        self._candidates: list[Candidate] = []
        self._ready: list[Candidate] = []
        self._verdicts: list[Verdict] = []
        self._cluster: list[Candidate] = []
        self._here: list[Verdict] = []

    def follow(self, offered: Offers, port: ServicePort, node: Node) -> Choice:
        """What `choice_for` decides, where no endpoint is silent."""
        # What has an id is kept, so that no other object can have the same one.
        slices = {(id(each), number): each for each, number in offered.slices[port.name, port.protocol]}
        basis = node, dict(offered.zones)
        if basis != self._basis or not self._has_followed(slices, offered, node):
            self._begin(gather(offered, port, node.name), node)
            is_each_once = len(self._candidates) == sum(len(each.endpoints) for each in slices.values())
            self._basis = basis if is_each_once else None
        self._slices = slices
        return Choice(tuple(self._verdicts), tuple(self._cluster), tuple(self._here))

    def _begin(self, candidates: list[Candidate], node: Node) -> None:
        choice = choose(candidates, node)
        self._candidates, self._ready = candidates, ready_of(candidates)
        self._outlook = outlook_of(self._ready, node)
        self._verdicts, self._cluster, self._here = list(choice.verdicts), list(choice.cluster), list(choice.here)

    def _has_followed(self, slices: dict[tuple[int, int], EndpointSlice], offered: Offers, node: Node) -> bool:
        """Decide about what has changed; False if that isn't enough."""
        was = _entries((number, self._slices[each, number]) for each, number in self._slices.keys() - slices.keys())
        now = _entries((number, slices[each, number]) for each, number in slices.keys() - self._slices.keys())
        for endpoint, number, _ in was - now:
            self._remove(Place(endpoint.address, number))
        come = []
        for endpoint, number, weight in now - was:
            candidate = candidate_of(endpoint, number, node.name, weight * offered.zones.get(endpoint.zone, 1))
            at = bisect_left(self._candidates, candidate.place, key=_place)
            if at < len(self._candidates) and self._candidates[at].place == candidate.place:
                return False
            self._candidates.insert(at, candidate)
            come.append(candidate)
        for candidate in ready_of(come):
            self._ready.insert(bisect_left(self._ready, candidate), candidate)
        outlook = outlook_of(self._ready, node)
        if outlook != self._outlook:
            return False
        for candidate in sorted(come):
            self._enter(judged(candidate, outlook))
        return True

    def _remove(self, place: Place) -> None:
        """Forget a candidate that has gone."""
        at = bisect_left(self._candidates, place, key=_place)
        del self._candidates[at]
        verdict = self._verdicts.pop(at)
        for candidate in ready_of([verdict.candidate]):
            del self._ready[bisect_left(self._ready, candidate)]
        if verdict.cluster.is_choice:
            del self._cluster[bisect_left(self._cluster, place, key=_place)]
        if verdict.candidate.is_local:
            del self._here[bisect_left(self._here, place, key=_place_of_verdict)]

    def _enter(self, verdict: Verdict) -> None:
        """Take in a verdict about one that has come; those about all that come before it are there."""
        candidate = verdict.candidate
        self._verdicts.insert(bisect_left(self._candidates, candidate), verdict)
        if verdict.cluster.is_choice:
            self._cluster.insert(bisect_left(self._cluster, candidate), candidate)
        if candidate.is_local:
            self._here.insert(bisect_left(self._here, candidate.place, key=_place_of_verdict), verdict)


def _entries(slices: Iterable[tuple[int, EndpointSlice]]) -> set[tuple[Endpoint, int, int]]:
    """The endpoints of slices, each with the number of its slice's port and its slice's weight."""
    return {
        (endpoint, number, weight)
        for number, each in slices
        for weight in (weight_of(each),)
        for endpoint in each.endpoints
    }


class KeptRows:
    """The last rows of one list, where these are its endpoints in their slots, each once."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._slots: KeptSlots | None = None
        self._rows: list[Row] = []

    def follow(self, candidates: Sequence[Candidate], family: Family) -> tuple[Row, ...]:
        """The rows of a list of many endpoints, each with its slot as an address."""
        places = list(map(_place, candidates))
        gone, come = _difference(self._places, places)
        changed = self._changed(gone, come) if gone or come else set[int]()
        self._places = places
        if changed is None:
            self._slots, self._rows = None, _rows(0, in_slots(places), family)
        elif self._slots:
            del self._rows[len(places) :]
            for slot in sorted(changed):
                self._rows[slot : slot + 1] = _rows(slot, [self._slots[slot]], family)
        return tuple(self._rows)

    def _changed(self, gone: set[Place], come: set[Place]) -> set[int] | None:
        """Which slots have another endpoint now; None if that can't be followed."""
        if not can_be_followed(len(self._places), gone, come):
            return None
        self._slots = self._slots or KeptSlots(self._places)
        return self._slots.follow(gone, come)


def _rows(first: int, places: Iterable[Place], family: Family) -> list[Row]:
    """The rows of the endpoints in successive slots."""
    return [(as_address(slot, family), *place) for slot, place in enumerate(places, first)]


def _difference(was: Sequence[Place], now: Sequence[Place]) -> tuple[set[Place], set[Place]]:
    """Who has gone and who has come, both lists in their order; most are the same objects, before it and after it."""
    shorter = min(len(was), len(now))
    before = _alike(was, now, shorter)
    after = min(_alike(reversed(was), reversed(now), shorter), shorter - before)
    old, new = set(was[before : len(was) - after]), set(now[before : len(now) - after])
    return old - new, new - old


def _alike(one: Iterable[Place], other: Iterable[Place], most: int) -> int:
    """How many are the same objects, from the beginning on."""
    return next(itertools.compress(itertools.count(), map(operator.is_not, one, other)), most)


class KeptPort:
    """What is kept of one port in one family; `size` is how many endpoints it had last."""

    def __init__(self) -> None:
        self.size = 0
        self.choice = KeptChoice()
        self.rows = {policy: KeptRows() for policy in TrafficPolicy}


class Kept:
    """What is kept of ports with many endpoints, of those that have changed last."""

    def __init__(self) -> None:
        self._ports: dict[tuple[Family, ObjectKey, str, Protocol], KeptPort] = {}

    def __len__(self) -> int:
        """How many ports there are of which something is kept, counted for each family."""
        return len(self._ports)

    def port(self, family: Family, service: ObjectKey, port: ServicePort, offered: Offers) -> KeptPort | None:
        """What is kept of a port; None, and nothing, of one that has few endpoints."""
        given = offered.slices.get((port.name, port.protocol), ())
        size = sum([len(each.endpoints) for each, _ in given])
        key = family, service, port.name, port.protocol
        kept = self._ports.pop(key, None)
        if size < MANY:
            return None
        self._ports[key] = kept = kept or KeptPort()
        kept.size = size
        while len(self._ports) > 1 and sum(each.size for each in self._ports.values()) > MOST_KEPT:
            del self._ports[next(iter(self._ports))]
        return kept

    def forget(self, service: ObjectKey) -> None:
        """Keep nothing of a Service."""
        for key in [key for key in self._ports if key[1] == service]:
            del self._ports[key]
