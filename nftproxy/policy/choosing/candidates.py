"""The candidates for a Service port: the endpoints of its Service's EndpointSlices, each ip:port once.

Slices and Service ports join by port name and protocol.  A candidate's weight is its EndpointSlice's times its zone's
(annotations, model/annotations.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.annotations import PLAIN, WEIGHT, WEIGHTS
from nftproxy.model.objects import EndpointSlice, EndpointState, Node, ObjectKey, Place, Service, ServicePort

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
