"""The endpoints of Services that ask for failover, and those of them that don't answer, as the state knows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nftproxy.extensions.failover.annotations import FAILOVER, Failover
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.model.addresses import Protocol
from nftproxy.model.objects import EndpointSlice, ObjectKey, Place, Service
from nftproxy.policy.state import ClusterState

_NONE = SilentPlaces(())


def silent_places(state: ClusterState) -> SilentPlaces:
    """The endpoints that don't answer this node."""
    found = state.observed.get(SilentPlaces, _NONE)
    assert isinstance(found, SilentPlaces)
    return found


def left_out(state: ClusterState, service: Service) -> Sequence[Place]:
    """The silent endpoints that a Service leaves out, longest silence first."""
    silent, failures = silent_places(state), service.options[FAILOVER]
    return tuple(
        place
        for place in silent.places
        if (Failover.REFUSED if place in silent.refusing else Failover.SILENT) in failures
    )


def watched(state: ClusterState) -> set[ObjectKey]:
    """The Services that leave out silent endpoints."""
    return {*state.users_of(Failover.SILENT), *state.users_of(Failover.REFUSED)}


def watched_places(state: ClusterState) -> dict[Place, list[ObjectKey]]:
    """The endpoints of watched Services, each with these Services.  This takes a while."""
    found: dict[Place, list[ObjectKey]] = {}
    for key in sorted(watched(state)):
        for place in {place for each in state.slices_of(key) for place in _places(each)}:
            found.setdefault(place, []).append(key)
    return found


def concerned(state: ClusterState, before: SilentPlaces | None, after: SilentPlaces) -> Iterator[ObjectKey]:
    """The Services whose endpoints fall silent or answer again.

    The order of the endpoints matters, too: if not all may be left out, the first are.
    """
    changed = {*after.places, *(before.places if before else ())}
    for key in watched(state):
        if any(place in changed for each in state.slices_of(key) for place in _places(each)):
            yield key


def _places(endpoint_slice: EndpointSlice) -> Iterator[Place]:
    """The places at which the endpoints of a slice answer by TCP."""
    for port in endpoint_slice.ports:
        if port.protocol is Protocol.TCP:
            for address in endpoint_slice.endpoints.addresses:
                yield Place(address, port.port)
