"""The owner of each front that the kernel counts: its Service port, and the kind of its address.

The kernel counts by front (counts/table.nft.j2), not by Service.  An entry of the sets is an address, protocol and
port, or a protocol and node port.  The reader of an entry looks its Service up here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from nftproxy.extensions.counts.fields import SERVICE_COUNTS
from nftproxy.model.addresses import Family, Protocol
from nftproxy.model.objects import ObjectKey, Service, ServicePort
from nftproxy.model.settings import Config
from nftproxy.policy.claims import NODE, Claim
from nftproxy.policy.extension import Change
from nftproxy.policy.fronts import claimed_fronts
from nftproxy.policy.state import ClusterState

CONNECTIONS = "connections"
"""The name of the count of served connections.  The other counts have the names of reasons (`UnservedReason`)."""


class FrontKind(Enum):
    """The kind of address by which a Service port is reached.  The value is its label in metrics."""

    CLUSTER_IP = "cluster_ip"
    EXTERNAL_IP = "external_ip"
    LOAD_BALANCER = "load_balancer"
    NODE_PORT = "node_port"


class ServiceFront(NamedTuple):
    """A Service port and a kind of fronts, counted together.  `port` is the port's name, or number if unnamed."""

    service: ObjectKey
    port: str
    protocol: Protocol
    kind: FrontKind


class CountedFronts:
    """The owner of each counted front: of all Services if so configured, else of Services that screen clients."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._counts_all = config[SERVICE_COUNTS]
        self._owners: dict[Claim, ServiceFront] = {}
        self._claims: dict[ObjectKey, dict[Claim, ServiceFront]] = {}
        self._fronts = Counter[ServiceFront]()

    def owner(self, claim: Claim) -> ServiceFront | None:
        """The present owner of an address and port, or of a node port."""
        return self._owners.get(claim)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to count."""
        return not self._fronts

    def exists(self, front: ServiceFront) -> bool:
        """Whether the Service port exists, and has a front of this kind."""
        return front in self._fronts

    def refresh(self, change: Change) -> None:
        """Update the fronts of some Services.  A front may have passed from one Service to another."""
        state, services, families = change.state, change.claiming, change.without_rules.keys()
        for key in services:
            for claim, front in self._claims.pop(key, {}).items():
                if self._owners.get(claim) == front:
                    del self._owners[claim]
                self._count(front, -1)
        for key in services:
            service = state.services.get(key)
            if service and (self._counts_all or service.options.restricts):
                self._add(state, service, families)

    def _add(self, state: ClusterState, service: Service, families: Iterable[Family]) -> None:
        had = {
            claimed.claim: _front(service, port, claimed.claim)
            for family in families
            for port, fronts in claimed_fronts(state, self._config, family, service)
            for claimed in fronts
            if not claimed.denial
        }
        self._owners |= had
        self._claims[service.key] = had
        for front in had.values():
            self._count(front, 1)

    def _count(self, front: ServiceFront, number: int) -> None:
        self._fronts[front] += number
        if not self._fronts[front]:
            del self._fronts[front]


def _front(service: Service, port: ServicePort, claim: Claim) -> ServiceFront:
    return ServiceFront(service.key, port.name or str(port.port), port.protocol, _kind(service, claim))


def _kind(service: Service, claim: Claim) -> FrontKind:
    """The kind of a front.  An address that is an external IP and a load balancer IP counts as the latter."""
    if claim.address == NODE:
        return FrontKind.NODE_PORT
    if claim.address in service.cluster_ips:
        return FrontKind.CLUSTER_IP
    return FrontKind.LOAD_BALANCER if claim.address in service.load_balancer_ips else FrontKind.EXTERNAL_IP
