"""The UDP flows that conntrack must forget, because the rules no longer send new flows to their endpoint.

The kernel translates the first packet of a flow by the rules, and all further packets in the same way.  UDP has no end,
so a client that keeps its source port keeps its endpoint for as long as it sends, long after the pod is gone.  TCP and
SCTP are left alone: they notice by themselves, and cutting them would end the graceful shutdown of pods (k/k#101607).
Only of Services that ask for it, TCP connections are cut once the pod's address is gone (gone_addresses.py).

* A *front* here is a virtual address and port, or a node's address and node port, that the rules serve (fronts.py).
* A flow to a front is stale if it goes to none of its *usable* endpoints: ready, or serving while they terminate.
  Policies, topology and the readiness of other endpoints choose for new flows only (kube-proxy does the same), so that
  a server that drains keeps its clients until it is done.
* A flow that was never translated, made before there was a Service or an endpoint, is stale once there is an endpoint.
* If no endpoint is left, or the front is gone, every translated flow is stale.

A flow can be stale only if its front has lost an endpoint, or got its first: only then is the front *due*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.objects import ObjectKey, Service, ServicePort
from nftproxy.policy.choosing.candidates import candidates_of
from nftproxy.policy.claims import NODE, Claim
from nftproxy.policy.extension import Settings
from nftproxy.policy.fronts import claimed_fronts, nodeport_addresses
from nftproxy.policy.state import ClusterState


class AddressPort(NamedTuple):
    """The destination of a flow: a front, or an endpoint."""

    address: Address
    port: int
    protocol: Protocol = Protocol.UDP


Endpoints = frozenset[AddressPort]
UdpFronts = dict[AddressPort, Endpoints]
"""UDP fronts, each with its usable endpoints."""
Sweeps = dict[AddressPort, Endpoints | Set[Address]]
"""Fronts to sweep, each with the endpoints that its flows may still go to, for TCP with their addresses.  A set of
addresses may change meanwhile."""

NO_ENDPOINTS: Endpoints = frozenset()


def is_stale(front: AddressPort, endpoint: AddressPort, kept: Endpoints | Set[Address]) -> bool:
    """Whether conntrack must forget a flow to a front that is due.

    Args:
        front: the destination of the flow's original direction.
        endpoint: the source of its replies: the endpoint if it was translated, the front itself if not.
        kept: where it may still go: for UDP the front's usable endpoints, for TCP addresses.
    """
    if front.protocol is Protocol.TCP:
        return endpoint.address not in kept and endpoint != front
    return endpoint not in kept and (bool(kept) or endpoint != front)


def fronts_served(
    state: ClusterState, settings: Settings, family: Family, service: Service, protocol: Protocol
) -> Iterator[tuple[ServicePort, Iterator[AddressPort]]]:
    """The fronts that rules serve in a family, of a Service's ports with this protocol."""
    if all(port.protocol is not protocol for port in service.ports):
        return
    node_addresses = nodeport_addresses(state, settings.config, family)
    for port, fronts in claimed_fronts(state, settings.config, family, service):
        if port.protocol is protocol:
            claims = (claimed.claim for claimed in fronts if not claimed.denial)
            yield port, (front for claim in claims for front in _fronts_of(claim, node_addresses))


def udp_fronts(state: ClusterState, settings: Settings, family: Family, service: Service) -> UdpFronts:
    """The fronts of a Service's UDP ports in one family that rules serve, each with its usable endpoints."""
    served = list(fronts_served(state, settings, family, service, Protocol.UDP))
    if not served:  # as with nearly every Service
        return {}
    endpoints = state.endpoints_of(service, family)
    found: UdpFronts = {}
    for port, fronts in served:
        offered = candidates_of(endpoints, port)
        usable = frozenset(AddressPort(c.address, c.port) for c in offered if c.is_ready or c.is_last_resort)
        found |= dict.fromkeys(fronts, usable)
    return found


def _fronts_of(claim: Claim, node_addresses: Iterable[Address]) -> Iterator[AddressPort]:
    """The destinations of flows to a claim: a node port is a front on each address that serves node ports."""
    for address in node_addresses if claim.address == NODE else (claim.address,):
        yield AddressPort(address, claim.port, claim.protocol)


class Flows:
    """The UDP fronts that the rules serve, and the fronts due to be swept.

    At first all fronts are due, as endpoints may have changed while the agent did not run.
    """

    def __init__(self, settings: Settings, families: Iterable[Family]) -> None:
        self._settings = settings
        self._families = tuple(families)
        self._fronts: dict[ObjectKey, tuple[AddressPort, ...]] = {}
        self._usable: UdpFronts = {}
        self._due: set[AddressPort] = set()
        self._has_swept = False

    def refresh(self, state: ClusterState, services: Iterable[ObjectKey]) -> None:
        """Update the fronts of some Services from the state."""
        services = tuple(services)
        before = self._remove(services)
        after = self._add(state, services)
        fronts = before.keys() | after.keys()
        self._due |= {f for f in fronts if _is_due(before.get(f, NO_ENDPOINTS), after.get(f, NO_ENDPOINTS))}

    def pop_due(self) -> Sweeps:
        """Return the fronts that are due for a sweep, and consider them swept.

        The caller sweeps them once the kernel has the rules for the state of the last `refresh`.
        """
        due, self._due = self._due, set()
        if not self._has_swept:
            self._has_swept = True
            due |= self._usable.keys()
        return {front: self._usable.get(front, NO_ENDPOINTS) for front in due}

    def _remove(self, services: Iterable[ObjectKey]) -> UdpFronts:
        """Remove some Services.  Return their former fronts."""
        gone = [front for key in services for front in self._fronts.pop(key, ())]
        return {front: self._usable.pop(front, NO_ENDPOINTS) for front in gone}

    def _add(self, state: ClusterState, services: Iterable[ObjectKey]) -> UdpFronts:
        """Add some Services anew, if they still exist.  Return their present fronts."""
        entered: UdpFronts = {}
        for service in filter(None, map(state.services.get, services)):
            for family in self._families:
                found = udp_fronts(state, self._settings, family, service)
                if found:
                    self._fronts[service.key] = (*self._fronts.get(service.key, ()), *found)
                    entered |= found
        self._usable |= entered
        return entered


def _is_due(before: Endpoints, after: Endpoints) -> bool:
    """Whether an endpoint was lost, or the first endpoints have come."""
    return not before <= after or (not before and bool(after))
