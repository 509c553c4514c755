"""Which endpoints serve a Service port on this node, and why each is or isn't chosen.

Two lists come out of one pass: the *cluster list* (policy Cluster) and the *local list* (policy Local).  Each endpoint
gets a `Reason` for each list, and the lists are those whose reason is a choosing one: so that what an operator reads
and what the kernel gets cannot differ.  Sources: KEP-1669 (terminating endpoints), KEP-2433 and KEP-3015 (topology
by hints), KEP-2086 (internalTrafficPolicy).

Each endpoint has a weight: its EndpointSlice's times its zone's (annotations, model/annotations.py).  One of weight 0
is drained: it gets no new connection, so all is decided as if it weren't there.  Flows that it has go on (flows.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.objects import Endpoint, EndpointSlice, Node, Place, Service, ServicePort


class Reason(Enum):
    """Why an endpoint is, or is not, on a list; the value is a sentence for people."""

    READY = "ready"
    LAST_RESORT = "serving while it terminates, as no endpoint that could be used is ready"
    NOT_READY = "not ready"
    TERMINATING = "terminating, while others are ready"
    DRAINED = "drained: its weight is 0"
    OTHER_NODE = "on another node"
    OTHER_NODE_HINT = "every ready endpoint has node hints, and its own do not name this node"
    OTHER_ZONE_HINT = "every ready endpoint has zone hints, and its own do not name this node's zone"
    SILENT = "left out, as connections from this node get no answer"
    SILENT_BUT_NEEDED = "connections from this node get no answer, but no more of the list may be left out"

    @property
    def is_choice(self) -> bool:
        """Whether the endpoint is on the list."""
        return self is Reason.READY or self is Reason.LAST_RESORT or self is Reason.SILENT_BUT_NEEDED

    @property
    def is_usable(self) -> bool:
        """Whether it would be there if it answered."""
        return self.is_choice or self is Reason.SILENT


SHARE_OF_SILENT = 2
"""One in so many endpoints of a list may be left out as it doesn't answer, so never the last one.  Where more are
silent, the cause is rather this node's network, and those that are left would have to carry too much."""


FULL_WEIGHT = 100
"""The weight of endpoints whose EndpointSlice has none: annotations can only take some of it away."""


class Candidate(msgspec.Struct, frozen=True, order=True, gc=False):
    """An endpoint of one Service port: where it is and what decides about it."""

    place: Place
    is_ready: bool
    is_last_resort: bool
    is_local: bool
    node_hints: tuple[str, ...] | None
    zone_hints: tuple[str, ...] | None
    weight: int = FULL_WEIGHT

    @property
    def address(self) -> Address:
        """At which address it answers."""
        return self.place.address

    @property
    def port(self) -> int:
        """At which port."""
        return self.place.port


# A thousand endpoints are asked for each, and these take a third of the time that a line of Python takes.
_is_local, _node_hints, _zone_hints = map(attrgetter, ("is_local", "node_hints", "zone_hints"))

_Rank = tuple[tuple[bool, ...], bool, tuple[str, ...], tuple[str, ...], int]
"""Which of several entries for one ip:port counts: by conditions, and after these whatever makes it always the same."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What was decided about one candidate, for either list."""

    candidate: Candidate
    cluster: Reason
    local: Reason


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The decision for one Service port, in the order of address and port; `here` are the verdicts of this node's."""

    verdicts: tuple[Verdict, ...]
    cluster: tuple[Candidate, ...]
    here: tuple[Verdict, ...]

    @property
    def local(self) -> tuple[Candidate, ...]:
        """The local list."""
        return tuple([each.candidate for each in self.here if each.local.is_choice])

    @property
    def has_endpoints(self) -> bool:
        """Whether any endpoint, on any node, is usable: the cluster list is empty only if none is."""
        return bool(self.cluster)


class Outlook(NamedTuple):
    """What the endpoints of a port come to together, on which the verdict about each of them depends.

    `far` is the reason for which ready endpoints are off the cluster list unless they have a hint that names `place`;
    READY if there is none.
    """

    has_ready: bool
    has_local_ready: bool
    far: Reason
    place: str


class Offers(NamedTuple):
    """The EndpointSlices of a Service that have a port of some name and protocol, each with its number.

    `zones` are the weights of endpoints by zone, as the Service has them; 1 for other zones.
    """

    slices: Mapping[tuple[str, Protocol], Sequence[tuple[EndpointSlice, int]]]
    zones: Mapping[str, int]


def offers(service: Service, slices: Iterable[EndpointSlice], family: Family) -> Offers:
    """What a Service's EndpointSlices offer in a family: looked through once, whichever of its ports asks then."""
    found: dict[tuple[str, Protocol], list[tuple[EndpointSlice, int]]] = {}
    for endpoint_slice in slices:
        for port in endpoint_slice.ports if endpoint_slice.family is family else ():
            found.setdefault((port.name, port.protocol), []).append((endpoint_slice, port.port))
    return Offers(found, dict(service.options.weights))


def gather(offered: Offers, port: ServicePort, node_name: str) -> list[Candidate]:
    """The candidates for a Service port, joined by port name and protocol, each address and port once.

    One ip:port in several slices is one endpoint (a pod that moves between slices, a ghost): an entry that is not
    terminating wins over one that is, a better one over a worse one, whatever order the slices come in.
    """
    best: dict[Place, tuple[Endpoint, Candidate]] = {}
    for endpoint_slice, number in offered.slices.get((port.name, port.protocol), ()):
        weight = weight_of(endpoint_slice)
        for endpoint in endpoint_slice.endpoints:
            candidate = candidate_of(endpoint, number, node_name, weight * offered.zones.get(endpoint.zone, 1))
            known = best.get(candidate.place)
            if known is None or _rank(endpoint, candidate) > _rank(*known):
                best[candidate.place] = endpoint, candidate
    return sorted([candidate for _, candidate in best.values()])


def weight_of(endpoint_slice: EndpointSlice) -> int:
    """The weight of the endpoints of a slice, without that of their zones."""
    return FULL_WEIGHT if endpoint_slice.options.weight is None else endpoint_slice.options.weight


def candidate_of(endpoint: Endpoint, port: int, node_name: str, weight: int) -> Candidate:
    """An endpoint as a candidate, with the number of its slice's port, its weight, and the name of this node."""
    return Candidate(
        Place(endpoint.address, port),
        endpoint.ready,
        endpoint.serving and endpoint.terminating,
        bool(endpoint.node_name) and endpoint.node_name == node_name,
        endpoint.node_hints,
        endpoint.zone_hints,
        weight,
    )


def _rank(endpoint: Endpoint, candidate: Candidate) -> _Rank:
    conditions = (not endpoint.terminating, endpoint.ready, endpoint.serving)
    return conditions, candidate.is_local, candidate.node_hints or (), candidate.zone_hints or (), -candidate.weight


def choose(candidates: Sequence[Candidate], node: Node, silent: Sequence[Place] = ()) -> Choice:
    """Decide about each candidate for the cluster list and for the local list.

    `silent` are the endpoints that don't answer, if these are to be left out: the first ones count.
    """
    outlook = outlook_of(ready_of(candidates), node)
    verdicts = [judged(candidate, outlook) for candidate in candidates]
    if silent:
        verdicts = _without_silent(verdicts, silent)
    return Choice(
        tuple(verdicts),
        tuple([each.candidate for each in verdicts if each.cluster.is_choice]),
        tuple([each for each in verdicts if each.candidate.is_local]),
    )


def outlook_of(ready: Sequence[Candidate], node: Node) -> Outlook:
    """What candidates come to together, for a node, by those that are ready."""
    return Outlook(bool(ready), any(map(_is_local, ready)), *_topology(ready, node))


def judged(candidate: Candidate, outlook: Outlook) -> Verdict:
    """The verdict about one candidate, where no silent ones are left out."""
    cluster = _by_conditions(candidate, has_ready=outlook.has_ready)
    if cluster is Reason.READY and outlook.far is not Reason.READY and _is_far(candidate, outlook):
        cluster = outlook.far
    local = _by_conditions(candidate, has_ready=outlook.has_local_ready) if candidate.is_local else Reason.OTHER_NODE
    return Verdict(candidate, cluster, local)


def ready_of(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those that are ready for new connections."""
    return [candidate for candidate in candidates if candidate.is_ready and candidate.weight]


def _without_silent(verdicts: Sequence[Verdict], silent: Sequence[Place]) -> list[Verdict]:
    """The verdicts, with each list by itself without those who don't answer, as far as its share goes."""
    cluster = _silent_of([each.candidate for each in verdicts if each.cluster.is_choice], silent)
    local = _silent_of([each.candidate for each in verdicts if each.local.is_choice], silent)
    return [
        Verdict(each.candidate, cluster.get(each.candidate, each.cluster), local.get(each.candidate, each.local))
        for each in verdicts
    ]


def _silent_of(chosen: Sequence[Candidate], silent: Sequence[Place]) -> dict[Candidate, Reason]:
    """Those of a list that don't answer, with what follows."""
    places = {candidate.place: candidate for candidate in chosen}
    found = [places[place] for place in silent if place in places]
    most = len(chosen) // SHARE_OF_SILENT
    return {
        candidate: Reason.SILENT if number < most else Reason.SILENT_BUT_NEEDED
        for number, candidate in enumerate(found)
    }


def choice_for(port: ServicePort, offered: Offers, node: Node, silent: Sequence[Place] = ()) -> Choice:
    """What is decided on a node about the endpoints that are offered for a Service port.

    `silent` are those that don't answer by TCP, if the Service leaves these out (`ClusterState.silent_of`).
    """
    has_silent = port.protocol is Protocol.TCP
    return choose(gather(offered, port, node.name), node, silent if has_silent else ())


def why_not_near(candidates: Sequence[Candidate], node: Node) -> str:
    """Why topology leaves every ready endpoint on the cluster list, in words for people; "" if it doesn't.

    This is the other half of `choose`: a Service may ask for near endpoints (spec.trafficDistribution), and hints that
    can't be followed are ignored together (KEP-2433).
    """
    ready = ready_of(candidates)
    if not ready or _topology(ready, node)[0] is not Reason.READY:
        return ""
    if not all(candidate.zone_hints for candidate in ready):
        return "not every ready endpoint has hints for zones"
    return f"no hint names this node's zone, {node.zone}" if node.zone else "this node's zone is not known"


def _by_conditions(candidate: Candidate, *, has_ready: bool) -> Reason:
    if not candidate.weight:
        return Reason.DRAINED
    if candidate.is_ready:
        return Reason.READY
    if candidate.is_last_resort:
        return Reason.TERMINATING if has_ready else Reason.LAST_RESORT
    return Reason.NOT_READY


def _topology(ready: Sequence[Candidate], node: Node) -> tuple[Reason, str]:
    """Why ready candidates may be too far, and which name in hints is near; all or nothing, as half a hint is none."""
    for reason, place, hints in (
        (Reason.OTHER_NODE_HINT, node.name, _node_hints),
        (Reason.OTHER_ZONE_HINT, node.zone, _zone_hints),
    ):
        if place and all(map(hints, ready)) and any(place in names for names in map(hints, ready)):
            return reason, place
    return Reason.READY, ""


def _is_far(candidate: Candidate, outlook: Outlook) -> bool:
    hints = candidate.node_hints if outlook.far is Reason.OTHER_NODE_HINT else candidate.zone_hints
    return outlook.place not in (hints or ())
