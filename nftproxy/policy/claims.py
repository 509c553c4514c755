"""Who owns a contested address and port.

Each Service *claims* every (address, protocol, port) on which it would be reached, every (protocol, node port), and its
health-check node port, which is a TCP port of the node like any other.  Of several claimants the oldest wins, by
creationTimestamp, then namespace and name: a rule that every node and every restart decides alike.  (kube-proxy lets
the Service win that it happens to iterate last.)

One thing stands above age: an external IP or load balancer IP that is some other Service's ClusterIP, or an address of
the node itself, captures nothing from these (CVE-2020-8554), whatever the port.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec

from nftproxy.model.addresses import Address, Protocol, family_of
from nftproxy.model.objects import ObjectKey, Service, ServicePort

NODE = Address("")
"""Stands for the node in a claim to a node port: these are claimed on all its addresses, in both families."""


class Claim(msgspec.Struct, frozen=True, order=True, gc=False):
    """One address (or `NODE`), protocol and port that can have one owner only."""

    address: Address
    protocol: Protocol
    port: int


class Way(Enum):
    """By what a Service is reached where it claims an address and port."""

    CLUSTER_IP = "ClusterIP"
    EXTERNAL_IP = "external IP or load balancer IP"
    NODE_PORT = "node port"


class Claimant(msgspec.Struct, frozen=True, order=True, gc=False):
    """A Service that claims; the order is that of precedence, in which a ClusterIP stands before an external IP."""

    is_external: bool
    created: int
    key: ObjectKey


def external_addresses(service: Service, *, external_ips: bool) -> tuple[Address, ...]:
    """The Service's external addresses, each once: load balancer IPs, and externalIPs where the node serves these.

    Those of a family in which the Service has no ClusterIP serve nothing, and so claim nothing from others.
    """
    addresses = service.load_balancer_ips + (service.external_ips if external_ips else ())
    families = set(map(family_of, service.cluster_ips))
    return tuple(
        address
        for address in dict.fromkeys(addresses)
        if address not in service.cluster_ips and family_of(address) in families
    )


def port_claims(
    port: ServicePort, cluster_ips: tuple[Address, ...], external_ips: tuple[Address, ...]
) -> Iterator[tuple[Claim, Way]]:
    """What a Service port claims at these addresses of its Service, and by its node port."""
    for address in cluster_ips:
        yield Claim(address, port.protocol, port.port), Way.CLUSTER_IP
    for address in external_ips:
        yield Claim(address, port.protocol, port.port), Way.EXTERNAL_IP
    if port.node_port:
        yield Claim(NODE, port.protocol, port.node_port), Way.NODE_PORT


class Claims:
    """All claims of all Services, kept up to date Service by Service."""

    def __init__(self, *, external_ips: bool) -> None:
        self._external_ips = external_ips
        self._claimants: dict[Claim, tuple[Claimant, ...]] = {}
        self._cluster_ip_holders: dict[Address, set[ObjectKey]] = {}
        self._external_users: dict[Address, set[ObjectKey]] = {}
        self._node_addresses: frozenset[Address] = frozenset()

    def add(self, service: Service) -> set[ObjectKey]:
        """Enter a Service; the other Services whose claims it changes."""
        return self._change(service, present=True)

    def remove(self, service: Service) -> set[ObjectKey]:
        """Take a Service out; the other Services whose claims that changes."""
        return self._change(service, present=False)

    def set_node_addresses(self, addresses: frozenset[Address]) -> None:
        """Say which addresses are the node's own; every Service with external addresses may be concerned."""
        self._node_addresses = addresses

    def winner(self, claim: Claim) -> ObjectKey | None:
        """The Service that owns the address and port, if any claims it."""
        claimants = self._claimants.get(claim)
        return claimants[0].key if claimants else None

    def obstacle(self, address: Address, key: ObjectKey) -> str:
        """Why this external address captures nothing for Service `key`; "" if it may."""
        if address in self._node_addresses:
            return "it is an address of the node itself"
        holders = [holder for holder in self._cluster_ip_holders.get(address, ()) if holder != key]
        return f"it is the ClusterIP of {min(holders)}" if holders else ""

    def _change(self, service: Service, *, present: bool) -> set[ObjectKey]:
        touched: set[ObjectKey] = set()
        external = external_addresses(service, external_ips=self._external_ips)
        for claim, is_external in _claims_of(service, external):
            touched |= self._change_claim(claim, Claimant(is_external, service.created, service.key), present=present)
        for address in service.cluster_ips:
            _change_member(self._cluster_ip_holders, address, service.key, present=present)
            touched |= self._external_users.get(address, set())
        for address in external:
            _change_member(self._external_users, address, service.key, present=present)
        return touched

    def _change_claim(self, claim: Claim, me: Claimant, *, present: bool) -> set[ObjectKey]:
        old = self._claimants.get(claim, ())
        others = tuple(claimant for claimant in old if claimant.key != me.key)
        new = tuple(sorted((*others, me))) if present else others
        if new:
            self._claimants[claim] = new
        else:
            self._claimants.pop(claim, None)
        return {claimant.key for claimant in others}


def _claims_of(service: Service, external: tuple[Address, ...]) -> Iterator[tuple[Claim, bool]]:
    """What a Service claims, and whether it does so by an external address."""
    for port in service.ports:
        for claim, way in port_claims(port, service.cluster_ips, external):
            yield claim, way is Way.EXTERNAL_IP
    if service.health_check_node_port:
        yield Claim(NODE, Protocol.TCP, service.health_check_node_port), False


def _change_member(members: dict[Address, set[ObjectKey]], address: Address, key: ObjectKey, *, present: bool) -> None:
    if present:
        members.setdefault(address, set()).add(key)
    else:
        members[address].discard(key)
        if not members[address]:
            del members[address]
