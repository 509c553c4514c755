"""Whose connections the kernel counts: which Service port has a front, and by what kind of address.

The kernel counts by front (counts.nft.j2): it knows no Services.  An entry of the sets is an address, protocol and
port, or a protocol and node port, and whoever reads it asks here whose that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from nftproxy.model.addresses import Family, Protocol
from nftproxy.model.objects import ObjectKey, Service, ServicePort
from nftproxy.model.settings import Config
from nftproxy.policy.claims import NODE, Claim
from nftproxy.policy.fronts import reaches
from nftproxy.policy.state import ClusterState

CONNECTIONS = "connections"
"""What is counted beside the reasons: connections that an endpoint got."""


class Reason(Enum):
    """Why no endpoint got a packet; the value is in the name of the set that counts it."""

    NO_ENDPOINT = "no-endpoint"
    NONE_LOCAL = "none-local"
    NOT_ADMITTED = "not-admitted"
    RACE = "race"
    DENIED = "denied"
    OVER_RATE = "over-rate"
    OVER_CONNECTIONS = "over-connections"


SCREENED = frozenset({Reason.DENIED, Reason.OVER_RATE, Reason.OVER_CONNECTIONS})
"""The reasons that annotations give (screening.py): they are counted wherever a Service has such."""


class FrontKind(Enum):
    """By what a Service port is reached; the value is its label in metrics."""

    CLUSTER_IP = "cluster_ip"
    EXTERNAL_IP = "external_ip"
    LOAD_BALANCER = "load_balancer"
    NODE_PORT = "node_port"


class ServiceFront(NamedTuple):
    """A Service port and a kind of fronts, counted together; `port` is the port's name, or number if it has none."""

    service: ObjectKey
    port: str
    protocol: Protocol
    kind: FrontKind


class CountedFronts:
    """Whose each front is, kept up to date Service by Service: of all if that is configured, else of those screened."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._owners: dict[Claim, ServiceFront] = {}
        self._claims: dict[ObjectKey, dict[Claim, ServiceFront]] = {}
        self._fronts = Counter[ServiceFront]()

    def owner(self, claim: Claim) -> ServiceFront | None:
        """Whose an address and port, or a node port, is now."""
        return self._owners.get(claim)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to count."""
        return not self._fronts

    def exists(self, front: ServiceFront) -> bool:
        """Whether there is such a Service port that is reached in this way."""
        return front in self._fronts

    def update(self, state: ClusterState, services: Iterable[ObjectKey], families: Iterable[Family]) -> None:
        """Follow what has become of some Services; a front may have passed from one of them to another."""
        services, families = list(services), list(families)
        for key in services:
            for claim, front in self._claims.pop(key, {}).items():
                if self._owners.get(claim) == front:
                    del self._owners[claim]
                self._count(front, -1)
        for key in services:
            service = state.services.get(key)
            if service and (self._config.service_counts or service.options.screens):
                self._add(state, service, families)

    def _add(self, state: ClusterState, service: Service, families: Iterable[Family]) -> None:
        had = {
            reach.claim: _front(service, port, reach.claim)
            for family in families
            for port, claimed in reaches(state, self._config, family, service)
            for reach in claimed
            if not reach.denial
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
    """The kind of a front; an address that is both an external IP and the load balancer's is the latter's."""
    if claim.address == NODE:
        return FrontKind.NODE_PORT
    if claim.address in service.cluster_ips:
        return FrontKind.CLUSTER_IP
    return FrontKind.LOAD_BALANCER if claim.address in service.load_balancer_ips else FrontKind.EXTERNAL_IP
