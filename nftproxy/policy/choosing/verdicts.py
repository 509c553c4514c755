"""The rules by which candidates serve a Service port on this node, and the reason for each candidate.

A single pass makes two lists: the *cluster list* (policy Cluster) and the *local list* (policy Local).  Each candidate
gets a `ChoiceReason` for each list, and a list consists of the candidates whose reason `is_choice`.  So an operator's
explanation and the kernel's rules can't differ.  Sources: KEP-1669 (terminating endpoints), KEP-2433 and KEP-3015
(topology by hints), KEP-2086 (internalTrafficPolicy).

A candidate of weight 0 is drained: it gets no new connection, so everything is decided as if it weren't there.
Its existing flows continue (flows.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

import msgspec

from nftproxy.model.objects import Node, Place
from nftproxy.policy.choosing.candidates import Candidate


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
