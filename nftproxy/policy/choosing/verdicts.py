"""The candidates for a Service port, the rules by which they serve it on this node, and the reason for each.

Slices and Service ports join by port name and protocol, each ip:port once.  A candidate's weight is its
EndpointSlice's times its zone's (annotations, model/annotations.py).

A single pass makes two lists: the *cluster list* (policy Cluster) and the *local list* (policy Local).  Each candidate
gets a `ChoiceReason` for each list, and a list consists of the candidates whose reason `is_choice`.  So an operator's
explanation and the kernel's rules can't differ.  Sources: KEP-1669 (terminating endpoints), KEP-2433 and KEP-3015
(topology by hints), KEP-2086 (internalTrafficPolicy).

A candidate of weight 0 is drained: it gets no new connection, so everything is decided as if it weren't there.
Its existing flows continue (flows.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import NamedTuple
from typing import Protocol as Interface

import msgspec

from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.annotations import PLAIN, WEIGHT, WEIGHTS
from nftproxy.model.objects import EndpointSlice, EndpointState, Node, ObjectKey, Place, Service, ServicePort

MANY = 100
"""Ports with fewer endpoints aren't cached: deciding anew is as fast.  By default an EndpointSlice
has at most as many endpoints (--max-endpoints-per-slice)."""

FULL_WEIGHT = 100
"""The weight of endpoints whose EndpointSlice has no weight: annotations can only lower it."""


class ServiceEndpoints(NamedTuple):
    """The inputs to the choice of endpoints for a Service in one family, on one node."""

    service: ObjectKey
    family: Family
    node: Node
    by_port: Mapping[tuple[str, Protocol], Sequence[tuple[EndpointSlice, int]]]
    """The EndpointSlices that have a port of some name and protocol, each with the port's number."""
    zone_weights: Mapping[str, int]
    """The weights that the Service gives to zones.  Any other zone has weight 1."""
    left_out: Sequence[Place]
    """The endpoints that an extension leaves out of lists for TCP (`Extension.left_out`)."""

    @classmethod
    def of(
        cls,
        service: Service,
        slices: Iterable[EndpointSlice],
        family: Family,
        node: Node,
        left_out: Sequence[Place] = (),
    ) -> ServiceEndpoints:
        """Index the EndpointSlices of a Service by port, once for all of the Service's ports."""
        found: dict[tuple[str, Protocol], list[tuple[EndpointSlice, int]]] = {}
        for endpoint_slice in slices:
            for port in endpoint_slice.ports if endpoint_slice.family is family else ():
                found.setdefault((port.name, port.protocol), []).append((endpoint_slice, port.port))
        zone_weights = {} if service.options is PLAIN else dict(service.options[WEIGHTS])
        return cls(service.key, family, node, found, zone_weights, left_out)

    def slices_of(self, port: ServicePort) -> Sequence[tuple[EndpointSlice, int]]:
        """The EndpointSlices for a Service port, each with the number of its own port."""
        return self.by_port.get((port.name, port.protocol), ())

    def count(self, port: ServicePort) -> int:
        """The number of endpoints in these EndpointSlices."""
        return sum([len(each.endpoints.states) for each, _ in self.slices_of(port)])

    def candidate(self, address: Address, state: EndpointState, port: int, slice_weight: int) -> Candidate:
        """An endpoint of a slice as a candidate."""
        return Candidate(
            Place(address, port),
            state.ready,
            state.serving and state.terminating,
            bool(state.node_name) and state.node_name == self.node.name,
            state.node_hints,
            state.zone_hints,
            slice_weight * self.zone_weights.get(state.zone, 1),
            bool(state.node_name),
        )


class Candidate(msgspec.Struct, frozen=True, order=True, gc=False):
    """An endpoint of a Service port, with the facts on which the choice depends."""

    place: Place
    is_ready: bool
    is_last_resort: bool
    """Whether it serves while it terminates."""
    is_local: bool
    node_hints: tuple[str, ...] | None
    zone_hints: tuple[str, ...] | None
    weight: int = FULL_WEIGHT
    has_node: bool = True
    """Whether its EndpointSlice names its node."""

    @property
    def address(self) -> Address:
        """The address at which it answers."""
        return self.place.address

    @property
    def port(self) -> int:
        """The port at which it answers."""
        return self.place.port


_Rank = tuple[tuple[bool, ...], bool, tuple[str, ...], tuple[str, ...], int]
"""Sort key for duplicate entries of one ip:port: conditions first, then deterministic tie-breakers."""


def candidates_of(endpoints: ServiceEndpoints, port: ServicePort) -> list[Candidate]:
    """The candidates for a Service port, in the order of address and port.

    An ip:port in several slices is a single endpoint (a pod that moves between slices, a ghost).  Entries that aren't
    terminating win over terminating entries, then ready over unready, then serving over not serving.  The order of the
    slices doesn't matter.
    """
    best: dict[Place, tuple[EndpointState, Candidate]] = {}
    for endpoint_slice, number in endpoints.slices_of(port):
        weight = weight_of(endpoint_slice)
        for address, state in zip(endpoint_slice.endpoints.addresses, endpoint_slice.endpoints.states, strict=True):
            candidate = endpoints.candidate(address, state, number, weight)
            known = best.get(candidate.place)
            if known is None or _rank(state, candidate) > _rank(*known):
                best[candidate.place] = state, candidate
    return sorted([candidate for _, candidate in best.values()])


def weight_of(endpoint_slice: EndpointSlice) -> int:
    """The weight of the endpoints of a slice, without the weights of their zones."""
    weight = None if endpoint_slice.options is PLAIN else endpoint_slice.options[WEIGHT]
    return FULL_WEIGHT if weight is None else weight


def _rank(state: EndpointState, candidate: Candidate) -> _Rank:
    conditions = (not state.terminating, state.ready, state.serving)
    return conditions, candidate.is_local, candidate.node_hints or (), candidate.zone_hints or (), -candidate.weight


class ChoiceReason(Enum):
    """Why an endpoint is, or isn't, on a list.  The value is a sentence for people."""

    READY = "ready"
    LAST_RESORT = "serving while it terminates, as no endpoint that could be used is ready"
    NOT_READY = "not ready"
    TERMINATING = "terminating, and other endpoints are ready"
    DRAINED = "drained: its weight is 0"
    OTHER_NODE = "on another node"
    NO_NODE = "its EndpointSlice has no nodeName for it, so it counts as on no node"
    OTHER_NODE_HINT = "every ready endpoint has node hints, and its own do not name this node"
    OTHER_ZONE_HINT = "every ready endpoint has zone hints, and its own do not name this node's zone"
    LEFT_OUT = "left out, as it doesn't answer this node, or refuses its connections"
    NEEDED = "doesn't answer this node, or refuses its connections, but half of the list is left out already"

    def __init__(self, _: str) -> None:
        self.is_choice = self.name in ("READY", "LAST_RESORT", "NEEDED")
        """Whether the endpoint is on the list.  Every change asks for each endpoint, so it is no property."""

    @property
    def is_usable(self) -> bool:
        """Whether the endpoint would be on the list if it answered."""
        return self.is_choice or self is ChoiceReason.LEFT_OUT

    @property
    def is_failing(self) -> bool:
        """Whether the endpoint gives this node no answer."""
        return self is ChoiceReason.LEFT_OUT or self is ChoiceReason.NEEDED


SHARE_LEFT_OUT = 2
"""A list leaves out at most one in this number of its endpoints, so never the last endpoint.  If more are
failing, the cause is more likely this node's network, and the remaining endpoints would have to carry too much."""

# For lists of a thousand endpoints: `map` with these takes a third of the time of a comprehension.
_is_local, _node_hints, _zone_hints = map(attrgetter, ("is_local", "node_hints", "zone_hints"))


class EndpointVerdict(msgspec.Struct, frozen=True, gc=False):
    """The decision about a candidate, for each list."""

    candidate: Candidate
    cluster: ChoiceReason
    local: ChoiceReason


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The decision for one Service port, in the order of address and port."""

    verdicts: tuple[EndpointVerdict, ...]
    cluster: tuple[Candidate, ...]
    """The cluster list."""
    here: tuple[EndpointVerdict, ...]
    """The verdicts about this node's candidates."""

    @property
    def local(self) -> tuple[Candidate, ...]:
        """The candidates that policy Local chooses on this node."""
        return tuple([each.candidate for each in self.here if each.local.is_choice])

    @property
    def has_endpoints(self) -> bool:
        """Whether any endpoint on any node is usable: otherwise, and only then, the cluster list is empty."""
        return bool(self.cluster)


class PortSummary(NamedTuple):
    """Facts about all candidates of a port together, on which the verdict about each of them depends."""

    has_ready: bool
    has_local_ready: bool
    far: ChoiceReason
    """Why ready endpoints without a hint for `near` are off the cluster list.  READY if they are on it."""
    near: str
    """The name of this node or of its zone, depending on the hints followed.  "" if no hints are followed."""


class Choices(Interface):
    """A cache of choices (choice.py), which changes no outcome."""

    def choose(self, endpoints: ServiceEndpoints, port: ServicePort) -> Choice:
        """Choose the endpoints that serve a Service port."""


def choose(endpoints: ServiceEndpoints, port: ServicePort, cache: Choices | None = None) -> Choice:
    """Choose the endpoints that serve a Service port.  Given a cache, a port with many endpoints is left to it."""
    left_out = endpoints.left_out if port.protocol is Protocol.TCP else ()
    if cache is not None and not left_out and endpoints.count(port) >= MANY:
        return cache.choose(endpoints, port)
    return decide(candidates_of(endpoints, port), endpoints.node, left_out)


def decide(candidates: Sequence[Candidate], node: Node, left_out: Sequence[Place] = ()) -> Choice:
    """Decide about each candidate for the cluster list and for the local list.

    `left_out` are the endpoints that an extension leaves out (`Extension.left_out`), up to the limit and in this order.
    """
    summary = summary_of(ready_of(candidates), node)
    verdicts = [verdict_of(candidate, summary) for candidate in candidates]
    if left_out:
        verdicts = _without_left_out(verdicts, left_out)
    return Choice(
        tuple(verdicts),
        tuple([each.candidate for each in verdicts if each.cluster.is_choice]),
        tuple([each for each in verdicts if each.candidate.is_local]),
    )


def summary_of(ready: Sequence[Candidate], node: Node) -> PortSummary:
    """Summarize the candidates of a port for a node, given its ready candidates: only these matter."""
    return PortSummary(bool(ready), any(map(_is_local, ready)), *_topology(ready, node))


def verdict_of(candidate: Candidate, summary: PortSummary) -> EndpointVerdict:
    """Judge a candidate, without regard to failures."""
    cluster = local = ChoiceReason.READY
    if not (candidate.is_ready and candidate.weight):
        cluster = _if_not_ready(candidate, has_ready=summary.has_ready)
        local = _if_not_ready(candidate, has_ready=summary.has_local_ready)
    elif summary.near and _is_far(candidate, summary):
        cluster = summary.far
    if not candidate.is_local:
        local = ChoiceReason.OTHER_NODE if candidate.has_node else ChoiceReason.NO_NODE
    return EndpointVerdict(candidate, cluster, local)


def ready_of(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates that are ready for new connections."""
    return [candidate for candidate in candidates if candidate.is_ready and candidate.weight]


def _without_left_out(verdicts: Sequence[EndpointVerdict], left_out: Sequence[Place]) -> list[EndpointVerdict]:
    """The verdicts, after failing endpoints are left out of each list, up to `SHARE_LEFT_OUT`."""
    cluster = _left_out_of([each.candidate for each in verdicts if each.cluster.is_choice], left_out)
    local = _left_out_of([each.candidate for each in verdicts if each.local.is_choice], left_out)
    return [
        EndpointVerdict(
            each.candidate, cluster.get(each.candidate, each.cluster), local.get(each.candidate, each.local)
        )
        for each in verdicts
    ]


def _left_out_of(chosen: Sequence[Candidate], left_out: Sequence[Place]) -> dict[Candidate, ChoiceReason]:
    """The reasons of the failing candidates of a list."""
    places = {candidate.place: candidate for candidate in chosen}
    found = [places[place] for place in left_out if place in places]
    most = len(chosen) // SHARE_LEFT_OUT
    return {
        candidate: ChoiceReason.LEFT_OUT if number < most else ChoiceReason.NEEDED
        for number, candidate in enumerate(found)
    }


def _if_not_ready(candidate: Candidate, *, has_ready: bool) -> ChoiceReason:
    if not candidate.weight:
        return ChoiceReason.DRAINED
    if candidate.is_last_resort:
        return ChoiceReason.TERMINATING if has_ready else ChoiceReason.LAST_RESORT
    return ChoiceReason.NOT_READY


def _topology(ready: Sequence[Candidate], node: Node) -> tuple[ChoiceReason, str]:
    """`PortSummary.far` and `near`: hints are followed only if all ready candidates have them."""
    for reason, near, hints in (
        (ChoiceReason.OTHER_NODE_HINT, node.name, _node_hints),
        (ChoiceReason.OTHER_ZONE_HINT, node.zone, _zone_hints),
    ):
        if near and all(map(hints, ready)) and any(near in names for names in map(hints, ready)):
            return reason, near
    return ChoiceReason.READY, ""


def _is_far(candidate: Candidate, summary: PortSummary) -> bool:
    hints = candidate.node_hints if summary.far is ChoiceReason.OTHER_NODE_HINT else candidate.zone_hints
    return summary.near not in (hints or ())
