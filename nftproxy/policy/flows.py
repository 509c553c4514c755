"""The flows of UDP and SCTP that conntrack must forget, because the rules no longer send new flows to their endpoint.

The kernel translates the first packet of a flow by the rules, and all further packets in the same way.  UDP has no end,
so a client that keeps its source port keeps its endpoint for as long as it sends, long after the pod is gone.  So does
an SCTP client, whose new association from the same port is the same flow to conntrack (k/k#101968).  TCP is left alone:
it notices by itself, and cutting it would end the graceful shutdown of pods (k/k#101607).  Only of Services that ask
for it, TCP connections are cut once the pod's address is gone (gone_addresses.py).

* A *front* here is a virtual address and port, or a node's address and node port, that the rules serve (fronts.py).
* A flow to a front is stale if it goes to none of its *kept* endpoints.  For UDP these are ready, or serve while they
  terminate.  An association has state in its endpoint, so for SCTP they are all in the slices, whatever their
  conditions.
* Topology and the readiness of other endpoints choose for new flows only (kube-proxy does the same), so that a server
  that drains keeps its clients until it is done.
* With policy Local a UDP flow is stale if it goes to another node's endpoint, though no new flow would: it began under
  policy Cluster.  External fronts still send the node and its pods to all endpoints.  These flows are the node's own,
  or not masqueraded.
* A flow that was never translated, made before there was a Service or an endpoint, is stale once there is an endpoint.
* If no endpoint is left, or the front is gone, every translated flow is stale.

A flow can be stale only if its front has lost an endpoint, or got its first: only then is the front *due*.

A Service that restricts its clients otherwise than before has all its fronts due for flows that nobody has *answered*,
of TCP too.  Rules judge only the first packet of a flow, so a client that goes on without an answer would never meet
the new rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Set
from typing import NamedTuple

from nftproxy.model.addresses import Address, Family, Network, Protocol, family_of
from nftproxy.model.annotations import PLAIN, Options
from nftproxy.model.objects import ObjectKey, Service, ServicePort, TrafficPolicy
from nftproxy.policy.choosing.verdicts import Candidate, candidates_of
from nftproxy.policy.claims import NODE, Claim
from nftproxy.policy.extension import UNRESTRICTED, Settings
from nftproxy.policy.fronts import ClaimedFront, claimed_fronts, nodeport_addresses
from nftproxy.policy.state import ClusterState


class AddressPort(NamedTuple):
    """The destination of a flow: a front, or an endpoint."""

    address: Address
    port: int
    protocol: Protocol = Protocol.UDP


Endpoints = frozenset[AddressPort]


class Kept(NamedTuple):
    """The endpoints that flows to a front may still go to.

    Flows that are masqueraded, but for those of the `own` addresses, may go to `masqueraded` only.
    """

    endpoints: Endpoints
    masqueraded: Endpoints
    own: frozenset[Address] = frozenset()


LastingFronts = dict[AddressPort, Kept]
"""Fronts of UDP and SCTP, each with its kept endpoints."""


class Unanswered(NamedTuple):
    """All flows to a front that nobody has answered."""

    front: AddressPort

    @property
    def address(self) -> Address:
        """The address of the front."""
        return self.front.address


Sweeps = dict[AddressPort | Unanswered, Kept | Set[Address]]
"""Fronts to sweep, each with the endpoints that its flows may still go to, for TCP with their addresses.  A set of
addresses may change meanwhile.  All flows of `Unanswered` are stale."""

NO_ENDPOINTS = Kept(frozenset(), frozenset())
_EVERY = frozenset(Protocol)
LASTING = frozenset({Protocol.UDP, Protocol.SCTP})
"""The protocols whose flows are swept in every Service."""


class Flow(NamedTuple):
    """An entry of conntrack, to a front.

    `endpoint` is the source of its replies: the endpoint if it was translated, the front itself if not.  `source` is
    the client, and `seen_source` the destination of the replies, which differs if the flow is masqueraded.
    """

    endpoint: AddressPort
    source: Address = Address("")
    seen_source: Address = Address("")


def is_stale(front: AddressPort, flow: Flow, kept: Kept | Set[Address]) -> bool:
    """Whether conntrack must forget a flow to a front that is due.

    Args:
        front: the destination of the flow's original direction.
        flow: the flow.
        kept: where it may still go: for TCP addresses.
    """
    endpoint = flow.endpoint
    if not isinstance(kept, Kept):
        return endpoint.address not in kept and endpoint != front
    is_masqueraded = flow.source != flow.seen_source and flow.source not in kept.own
    if endpoint in (kept.masqueraded if is_masqueraded else kept.endpoints):
        return False
    return bool(kept.endpoints) or endpoint != front


def fronts_served(
    state: ClusterState, settings: Settings, family: Family, service: Service, protocols: Collection[Protocol]
) -> Iterator[tuple[ServicePort, Iterator[tuple[AddressPort, ClaimedFront]]]]:
    """The fronts that rules serve in a family, of a Service's ports with these protocols, each with its claim."""
    if all(port.protocol not in protocols for port in service.ports):
        return
    node_addresses = nodeport_addresses(state, settings.config, family)
    for port, fronts in claimed_fronts(state, settings.config, family, service):
        if port.protocol in protocols:
            held = (claimed for claimed in fronts if not claimed.denial)
            yield port, ((front, each) for each in held for front in _fronts_of(each.claim, node_addresses))


def lasting_fronts(state: ClusterState, settings: Settings, family: Family, service: Service) -> LastingFronts:
    """The fronts of a Service's UDP and SCTP ports in one family that rules serve, each with its kept endpoints."""
    served = list(fronts_served(state, settings, family, service, LASTING))
    if not served:  # as with nearly every Service
        return {}
    endpoints = state.endpoints_of(service, family)
    own = state.own_addresses
    found: LastingFronts = {}
    for port, fronts in served:
        offered = candidates_of(endpoints, port)
        if port.protocol is Protocol.SCTP:
            everywhere = here = _ends(port, offered)
        else:
            usable = [each for each in offered if each.is_ready or each.is_last_resort]
            everywhere, here = _ends(port, usable), _ends(port, (each for each in usable if each.is_local))
        for front, claimed in fronts:
            if claimed.policy is TrafficPolicy.CLUSTER or everywhere == here:
                found[front] = Kept(everywhere, everywhere)
            else:
                found[front] = Kept(everywhere, here, own) if claimed.is_external else Kept(here, here)
    return found


def _ends(port: ServicePort, candidates: Iterable[Candidate]) -> Endpoints:
    return frozenset(AddressPort(each.address, each.port, port.protocol) for each in candidates)


def _fronts_of(claim: Claim, node_addresses: Iterable[Address]) -> Iterator[AddressPort]:
    """The destinations of flows to a claim: a node port is a front on each address that serves node ports."""
    for address in node_addresses if claim.address == NODE else (claim.address,):
        yield AddressPort(address, claim.port, claim.protocol)


class Flows:
    """The fronts of UDP and SCTP that the rules serve, and the fronts due to be swept.

    At first all fronts are due, as endpoints may have changed while the agent did not run.
    """

    def __init__(self, settings: Settings, families: Iterable[Family]) -> None:
        self._settings = settings
        self._families = tuple(families)
        self._fronts: dict[ObjectKey, tuple[AddressPort, ...]] = {}
        self._kept: LastingFronts = {}
        self._due: set[AddressPort] = set()
        self._restricted: dict[ObjectKey, tuple[Restrictions, frozenset[Unanswered]]] = {}
        self._unanswered: set[Unanswered] = set()
        self._has_swept = False
        self.is_due = True
        """Whether `pop_due` may have something to return."""

    def refresh(self, state: ClusterState, services: Iterable[ObjectKey]) -> None:
        """Update the fronts of some Services from the state."""
        services = tuple(services)
        before = self._remove(services)
        after = self._add(state, services)
        for key in services:
            service = state.services.get(key)
            if key in self._restricted or (service and (service.source_ranges or service.options is not PLAIN)):
                self._restrict(state, key, service)
        fronts = before.keys() | after.keys()
        self._due |= {f for f in fronts if _is_due(before.get(f, NO_ENDPOINTS), after.get(f, NO_ENDPOINTS))}
        self.is_due |= bool(self._due or self._unanswered)

    def pop_due(self) -> Sweeps:
        """Return the fronts that are due for a sweep, and consider them swept.

        The caller sweeps them once the kernel has the rules for the state of the last `refresh`.
        """
        due, self._due, self.is_due = self._due, set(), False
        if not self._has_swept:
            self._has_swept = True
            due |= self._kept.keys()
        unanswered, self._unanswered = self._unanswered, set()
        found: Sweeps = {front: self._kept.get(front, NO_ENDPOINTS) for front in due}
        return found | dict.fromkeys(unanswered, NO_ENDPOINTS)

    def _restrict(self, state: ClusterState, key: ObjectKey, service: Service | None) -> None:
        """Note the fronts at which a Service restricts its clients otherwise than before."""
        before = self._restricted.pop(key, None)
        present = restrictions(self._settings, service) if service else None
        if service is None or present is None:
            return
        fronts = self._unanswered_of(state, service)
        self._restricted[key] = present, fronts
        same = before[1] if before and before[0] == present else frozenset()
        self._unanswered |= fronts - same

    def _unanswered_of(self, state: ClusterState, service: Service) -> frozenset[Unanswered]:
        served = (fronts_served(state, self._settings, family, service, _EVERY) for family in self._families)
        ports = itertools.chain.from_iterable(served)
        return frozenset(Unanswered(front) for _, fronts in ports for front, _ in fronts)

    def _remove(self, services: Iterable[ObjectKey]) -> LastingFronts:
        """Remove some Services.  Return their former fronts."""
        gone = [front for key in services for front in self._fronts.pop(key, ())]
        return {front: self._kept.pop(front, NO_ENDPOINTS) for front in gone}

    def _add(self, state: ClusterState, services: Iterable[ObjectKey]) -> LastingFronts:
        """Add some Services anew, if they still exist.  Return their present fronts."""
        entered: LastingFronts = {}
        for service in filter(None, map(state.services.get, services)):
            for family in self._families:
                found = lasting_fronts(state, self._settings, family, service)
                if found:
                    self._fronts[service.key] = (*self._fronts.get(service.key, ()), *found)
                    entered |= found
        self._kept |= entered
        return entered


Restrictions = tuple[tuple[Network, ...], Options]


def restrictions(settings: Settings, service: Service) -> Restrictions | None:
    """The values that decide which clients a Service admits, None if it admits all."""
    families = set(map(family_of, service.cluster_ips))
    asked = settings.extensions_of(service)
    is_restricted = service.source_ranges or any(
        each.restriction(service, family) != UNRESTRICTED for each in asked for family in families
    )
    return (service.source_ranges, service.options) if is_restricted else None


def _is_due(before: Kept, after: Kept) -> bool:
    """Whether an endpoint was lost, or the first endpoints have come."""
    if not before.endpoints <= after.endpoints or not before.masqueraded <= after.masqueraded:
        return True
    return not before.endpoints and bool(after.endpoints)
