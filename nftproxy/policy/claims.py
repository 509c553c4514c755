"""Who owns a contested address and port.

Each Service *claims* every (address, protocol, port) on which it would be reached, every (protocol, node port), and its
health-check node port, which is a TCP port of the node like any other.  Of several claimants the oldest wins, by
creationTimestamp, then namespace and name.  So every node decides alike, and so does every restart.  (In kube-proxy the
last Service of its iteration wins, in no particular order.)

Some rules come before age (CVE-2020-8554).  An external IP or load balancer IP captures nothing from another Service's
ClusterIP, whatever the port, and never the API server as this agent reaches it.  On the node's own addresses it
captures no protected port, and no other Service's node port.

Adding or removing a Service costs in proportion to its own claims, not to the number of other claimants: `pop_affected`
returns only the Services that win or lose something by it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from nftproxy.model.addresses import Address, Protocol, family_of, host_port, is_within, port_text
from nftproxy.model.codes import Code
from nftproxy.model.keys import KeyEnum
from nftproxy.model.objects import ObjectKey, Service, ServicePort
from nftproxy.model.settings import Config

NODE = Address("")
"""Stands for the node in a claim to a node port: node ports are claimed on all its addresses, in both families."""


Place = TypeVar("Place", Address, "Claim")


class Claim(msgspec.Struct, frozen=True, order=True, gc=False):
    """An address (or `NODE`), protocol and port that can have a single owner only."""

    address: Address
    protocol: Protocol
    port: int

    def __str__(self) -> str:
        """The claim for people: 203.0.113.25:25/TCP, or node:30080/TCP for a node port."""
        return port_text(host_port(self.address or "node", self.port), self.protocol.value)


class ClaimKind(KeyEnum):
    """The kind of address by which a Service is reached at a claim."""

    CLUSTER_IP = "ClusterIP"
    EXTERNAL_IP = "external IP or load balancer IP"
    NODE_PORT = "node port"


class Denial(KeyEnum):
    """Why a Service doesn't get a claim.  The value is a sentence with a placeholder for the holder."""

    TAKEN = "it belongs to {}, which takes precedence"
    CLUSTER_IP = "it is the ClusterIP of {}"
    PROTECTED = "the port is protected on the node's own addresses (nftproxy.protectedPorts)"
    API_SERVER = "this node reaches the API server there"
    NODE_PORT = "on the node's own addresses the port is a node port of {}"
    NOT_ALLOWED = "the address is in none of nftproxy.externalIPCIDRs"
    CLOSED = "it admits nobody: source ranges need a ClusterIP that no other Service has, and {} has the same"

    def sentence(self, holder: ObjectKey | None = None) -> str:
        """The reason in words.  `holder` names the Service that has the claim, which not everyone may know."""
        return self.value.format(f"Service {holder}" if holder else "another Service")

    @property
    def code(self) -> Code:
        """The code under which it is reported."""
        return _CODES[self]


_CODES = {
    Denial.TAKEN: Code.CONFLICT_TAKEN,
    Denial.CLUSTER_IP: Code.CONFLICT_CLUSTER_IP,
    Denial.PROTECTED: Code.CONFLICT_PROTECTED,
    Denial.API_SERVER: Code.CONFLICT_API_SERVER,
    Denial.NODE_PORT: Code.CONFLICT_NODE_PORT,
    Denial.NOT_ALLOWED: Code.EXTERNAL_IP_NOT_ALLOWED,
    Denial.CLOSED: Code.CONFLICT_SHARED_CLUSTER_IP,
}


class Claimant(msgspec.Struct, frozen=True, order=True, gc=False):
    """A Service that claims.  Claimants sort by precedence, in which a ClusterIP stands before an external IP."""

    is_external: bool
    created: int
    key: ObjectKey


def external_addresses(service: Service, config: Config) -> tuple[Address, ...]:
    """The Service's external addresses, each once: load balancer IPs, and externalIPs where the node serves these.

    In a family without a ClusterIP of the Service, its external addresses serve nothing, and so claim nothing.
    """
    if not service.load_balancer_ips and not service.external_ips:
        return ()
    addresses = (*service.load_balancer_ips, *(ip for ip in _external_ips(service, config) if _is_allowed(ip, config)))
    families = set(map(family_of, service.cluster_ips))
    return tuple(
        address
        for address in dict.fromkeys(addresses)
        if address not in service.cluster_ips and family_of(address) in families
    )


def denied_external_ips(service: Service, config: Config) -> tuple[Address, ...]:
    """The Service's externalIPs that the node doesn't serve, and that are no load balancer IPs."""
    denied = (ip for ip in _external_ips(service, config) if not _is_allowed(ip, config))
    return tuple(ip for ip in dict.fromkeys(denied) if ip not in service.load_balancer_ips + service.cluster_ips)


def _external_ips(service: Service, config: Config) -> tuple[Address, ...]:
    return service.external_ips if config.allow_service_external_ips else ()


def _is_allowed(address: Address, config: Config) -> bool:
    return not config.external_ip_cidrs or is_within(address, config.external_ip_cidrs)


def port_claims(
    port: ServicePort, cluster_ips: tuple[Address, ...], external: tuple[Address, ...]
) -> Iterator[tuple[Claim, ClaimKind]]:
    """The claims of a Service port: to these addresses of its Service, and to its node port."""
    for address in cluster_ips:
        yield Claim(address, port.protocol, port.port), ClaimKind.CLUSTER_IP
    for address in external:
        yield Claim(address, port.protocol, port.port), ClaimKind.EXTERNAL_IP
    if port.node_port:
        yield Claim(NODE, port.protocol, port.node_port), ClaimKind.NODE_PORT


class Claims:
    """All claims of all Services, kept up to date Service by Service."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._protected_ports = frozenset(_protected_ports(config))
        self._claimants: dict[Claim, tuple[Claimant, ...]] = {}
        self._cluster_ip_holders: dict[Address, tuple[Claimant, ...]] = {}
        self._external_users: dict[Address, set[ObjectKey]] = {}
        self._proxied_for: dict[Address, set[ObjectKey]] = {}
        self._node_addresses: frozenset[Address] = frozenset()
        self._api_servers: frozenset[tuple[Address, int]] = frozenset()
        self._touched: set[ObjectKey] = set()
        self._changed_places: set[Address | Claim] = set()
        self.has_changed = False
        """Whether claims have changed since the last `pop_affected`."""

    def add(self, service: Service) -> None:
        """Add the claims of a Service."""
        self._change(service, present=True)

    def remove(self, service: Service) -> None:
        """Remove the claims of a Service, which must be as it was added."""
        self._change(service, present=False)

    def pop_affected(self) -> set[ObjectKey]:
        """The Services that win or lose a claim by the changes since the last call."""
        touched, self._touched, self.has_changed = self._touched, set(), False
        for place in self._changed_places:
            if isinstance(place, Claim):
                touched.update(claimant.key for claimant in self._claimants.get(place, ()))
            else:
                touched |= self._external_users.get(place, set())
        self._changed_places.clear()
        return touched

    def set_node_addresses(self, addresses: frozenset[Address]) -> None:
        """Set the node's own addresses.  Every Service with external addresses may be affected."""
        self._node_addresses = addresses

    def set_api_servers(self, places: frozenset[tuple[Address, int]]) -> None:
        """Set the API server's addresses and ports.  No Service gets an external address there, by any protocol."""
        changed, self._api_servers = self._api_servers ^ places, places
        self.has_changed = True
        self._changed_places |= {Claim(address, protocol, port) for address, port in changed for protocol in Protocol}
        if self._config.external_ip_cidrs:
            self._changed_places |= {address for address, _ in changed}

    def winner(self, claim: Claim) -> ObjectKey | None:
        """The Service that owns the address and port: the first claimant that no other Service keeps from it."""
        claimants = self._claimants.get(claim)
        if not claimants:
            return None
        if claim.address in self._node_addresses and claimants[0].is_external:
            own = self._owner_of_node_port(claim)
            if own is not None and _has(claimants, msgspec.structs.replace(own, is_external=True)):
                return own.key
        return claimants[0].key

    def denial(self, claim: Claim, kind: ClaimKind, key: ObjectKey) -> Denial | None:
        """Why Service `key` doesn't get a claim of its own.  None if it does."""
        # A Service never claims its own ClusterIP as an external address (external_addresses).
        if kind is ClaimKind.EXTERNAL_IP and claim.address in self._cluster_ip_holders:
            return Denial.CLUSTER_IP
        if kind is ClaimKind.EXTERNAL_IP and (claim.address, claim.port) in self._api_servers:
            return Denial.API_SERVER
        if kind is ClaimKind.EXTERNAL_IP and claim.address in self._node_addresses:
            if claim.port in self._protected_ports:
                return Denial.PROTECTED
            own = self._owner_of_node_port(claim)
            if own is not None and own.key != key:
                return Denial.NODE_PORT
        return None if self.winner(claim) == key else Denial.TAKEN

    def holder(self, claim: Claim, denial: Denial) -> ObjectKey | None:
        """The Service that holds a claim denied for this reason.  None if no Service does."""
        match denial:
            case Denial.TAKEN:
                return self.winner(claim)
            case Denial.CLUSTER_IP:
                return self.cluster_ip_owner(claim.address)
            case Denial.NODE_PORT:
                return self.winner(_on_node(claim))
            case Denial.PROTECTED | Denial.API_SERVER | Denial.NOT_ALLOWED | Denial.CLOSED:
                return None

    def cluster_ip_owner(self, address: Address) -> ObjectKey | None:
        """The first Service with this ClusterIP.  The API of a cluster allows only one, manifests may have several."""
        holders = self._cluster_ip_holders.get(address)
        return holders[0].key if holders else None

    def gets_all(self, service: Service) -> bool:
        """True for a Service that claims ClusterIPs alone, which no other Service has.  It can't lose anything."""
        if service.external_ips or service.load_balancer_ips or service.health_check_node_port:
            return False
        if any(port.node_port for port in service.ports):
            return False
        return all(len(self._cluster_ip_holders.get(ip, ())) == 1 for ip in service.cluster_ips)

    def is_services_alone(self, address: Address) -> bool:
        """Whether nothing but Services uses an external address, so that its other ports may be closed.

        The configuration must vouch for it by a range, since authors of Services can claim any address.  It is
        neither the node's nor the API server's, and no load balancer takes packets to it by itself (ipMode Proxy).
        """
        return (
            is_within(address, self._config.external_ip_cidrs)
            and address not in self._node_addresses
            and address not in self._proxied_for
            and all(address != server for server, _ in self._api_servers)
        )

    def external_users(self, address: Address) -> list[ObjectKey]:
        """The Services with this external address, in the order of their names."""
        return sorted(self._external_users.get(address, ()))

    def _owner_of_node_port(self, claim: Claim) -> Claimant | None:
        claimants = self._claimants.get(_on_node(claim))
        return claimants[0] if claimants else None

    def _change(self, service: Service, *, present: bool) -> None:
        self.has_changed = True
        external = external_addresses(service, self._config)
        inside, outside = (Claimant(is_external, service.created, service.key) for is_external in (False, True))
        for claim, is_external in _claims_of(service, external):
            self._change_claim(claim, outside if is_external else inside, present=present)
        for address in service.cluster_ips:
            self._change_holder(address, inside, present=present)
        for address in external:
            _change_member(self._external_users, address, service.key, present=present)
        for address in service.proxied_ips if self._config.external_ip_cidrs else ():
            _change_member(self._proxied_for, address, service.key, present=present)
            self._changed_places.add(address)

    def _change_holder(self, address: Address, me: Claimant, *, present: bool) -> None:
        before = self.cluster_ip_owner(address)
        _set(self._cluster_ip_holders, address, me, present=present)
        after = self.cluster_ip_owner(address)
        self._touched |= {each for each in (before, after) if each is not None and each != me.key and before != after}
        if (before is None) != (after is None):
            self._changed_places.add(address)

    def _change_claim(self, claim: Claim, me: Claimant, *, present: bool) -> None:
        before = self.winner(claim)
        _set(self._claimants, claim, me, present=present)
        after = self.winner(claim)
        if before != after:
            self._touched |= {each for each in (before, after) if each is not None and each != me.key}
            if claim.address == NODE:
                own_places = (Claim(address, claim.protocol, claim.port) for address in self._node_addresses)
                self._changed_places |= {place for place in own_places if place in self._claimants}


def _protected_ports(config: Config) -> Iterator[int]:
    """The ports protected by the configuration, and the ports on which the proxy itself answers."""
    for ports in config.protected_ports:
        yield from range(ports.first, ports.last + 1)
    for own in (config.healthz_bind_address, config.metrics_bind_address):
        yield int(own.rpartition(":")[2])


def _on_node(claim: Claim) -> Claim:
    return Claim(NODE, claim.protocol, claim.port)


def _place_of(claimants: tuple[Claimant, ...], me: Claimant) -> tuple[int, bool]:
    """The index of a claimant in the order of precedence, and whether it is there."""
    place = bisect.bisect_left(claimants, me)
    return place, claimants[place : place + 1] == (me,)


def _has(claimants: tuple[Claimant, ...], me: Claimant) -> bool:
    return _place_of(claimants, me)[1]


def _with(claimants: tuple[Claimant, ...], me: Claimant, *, present: bool) -> tuple[Claimant, ...]:
    """The claimants with `me` added or removed."""
    place, is_there = _place_of(claimants, me)
    kept = (claimants[:place], claimants[place + is_there :])
    return (*kept[0], me, *kept[1]) if present else kept[0] + kept[1]


def _claims_of(service: Service, external: tuple[Address, ...]) -> Iterator[tuple[Claim, bool]]:
    """The claims of a Service, each with True if it is for an external address."""
    for port in service.ports:
        for claim, kind in port_claims(port, service.cluster_ips, external):
            yield claim, kind is ClaimKind.EXTERNAL_IP
    if service.health_check_node_port:
        yield Claim(NODE, Protocol.TCP, service.health_check_node_port), False


def _set(members: dict[Place, tuple[Claimant, ...]], place: Place, me: Claimant, *, present: bool) -> None:
    changed = _with(members.get(place, ()), me, present=present)
    if changed:
        members[place] = changed
    else:
        members.pop(place, None)


def _change_member(members: dict[Address, set[ObjectKey]], address: Address, key: ObjectKey, *, present: bool) -> None:
    if present:
        members.setdefault(address, set()).add(key)
    else:
        members[address].discard(key)
        if not members[address]:
            del members[address]
