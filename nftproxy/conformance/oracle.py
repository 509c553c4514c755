"""What must become of a new connection: docs/semantics.md once more, as code that knows nothing of rules.

Rendered rules are compared with it, so it shares no code with what renders them: no claims, no choosing, no compiling.
It takes each connection by itself and looks at the whole cluster for it, slowly and in plain sight.

What it leaves to parsing is what is no Service or endpoint at all: headless, ExternalName, another proxy's, bad values.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, TypeVar

from nftproxy.lab.outcome import DROPPED, NODE, PORT_UNREACHABLE, TCP_RESET, UNTOUCHED, Outcome, Probe, endpoint
from nftproxy.lab.topology import PODS, UPLINK, Origin
from nftproxy.model.addresses import Address, Family, Network, Protocol, contains, family_of, is_loopback
from nftproxy.model.annotations import Algorithm, GuardedFronts, SilentEndpoints
from nftproxy.model.objects import (
    Endpoint,
    EndpointSlice,
    Node,
    ObjectKey,
    Service,
    ServiceCIDR,
    ServicePort,
    TrafficPolicy,
)
from nftproxy.model.settings import Config, DetectLocalMode

Value = TypeVar("Value", Address, Network)

ANY_ADDRESS = Address("")
"""Stands for the node's addresses in the place of a node port."""

REJECTED = {Protocol.TCP: TCP_RESET, Protocol.UDP: PORT_UNREACHABLE, Protocol.SCTP: PORT_UNREACHABLE}
INTERFACES = {Origin.POD: PODS, Origin.NODE: "", Origin.OUTSIDE: UPLINK, Origin.REMOTE_POD: UPLINK}

BY_ADDRESS = (Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH)
"""Who sends all connections of one client to one endpoint, as long as the list is the same."""

View = Callable[[Outcome], Outcome]
"""What of an outcome counts."""

Targets = frozenset[tuple[Address, int]]
"""Addresses and ports of endpoints."""


class World(NamedTuple):
    """All that decides about connections: a cluster, the node that they come to, and its configuration.

    `interfaces` are the addresses on the node's interfaces, loopback left out.  Where the proxy doesn't know
    them (`knows_interfaces`), as `render` doesn't, the Node's own addresses stand in.  `silent` are the endpoints that
    don't answer TCP connections from this node, the one that has been silent for longest first.
    """

    node: Node
    config: Config = Config()
    services: tuple[Service, ...] = ()
    slices: tuple[EndpointSlice, ...] = ()
    service_cidrs: tuple[ServiceCIDR, ...] = ()
    interfaces: frozenset[Address] = frozenset()
    knows_interfaces: bool = True
    silent: tuple[tuple[Address, int], ...] = ()


class Place(NamedTuple):
    """Where a Service port may be reached: an address, or any of the node's, with protocol and port."""

    address: Address
    protocol: Protocol
    port: int


class Front(NamedTuple):
    """A Service port at a place of its own; a `port` of None is a health-check node port, where no rule serves."""

    service: Service
    port: ServicePort | None
    policy: TrafficPolicy
    is_external: bool


class Lists(NamedTuple):
    """The endpoints that policy Cluster and policy Local choose from, and which of these are on this node.

    `weights` are those of all endpoints that take new connections.
    """

    cluster: Targets
    local: Targets
    here: Targets
    weights: Mapping[tuple[Address, int], int]


class Oracle:
    """What must become of connections in one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.fronts = _fronts(world)
        self._lists: dict[tuple[ObjectKey, ServicePort, Family], Lists] = {}

    def expected(self, probe: Probe) -> frozenset[Outcome]:
        """All that may become of a new connection, and does if there are enough of them; it must have a source."""
        place = place_of(probe)
        front = self.front_of(place)
        if front is None or front.port is None:
            return frozenset({self._unserved(place)})
        if self.fronts.get(place) is front and not self._is_admitted(front.service, place.address, _source(probe)):
            return frozenset({DROPPED})
        lists = self.lists(front.service, front.port, family_of(place.address))
        chosen, hides_source = self._chosen(front, lists, probe)
        if chosen and self.forbids(probe):
            return frozenset({DROPPED})
        if chosen:
            return self._arrivals(probe, place.protocol, chosen, hides_source)
        return frozenset({DROPPED if lists.cluster else REJECTED[place.protocol]})

    def forbids(self, probe: Probe) -> bool:
        """Whether annotations of the Service that is asked say that this client gets no endpoint, whichever it is."""
        place, source = place_of(probe), _source(probe)
        front = self.front_of(place)
        assert front
        service, family = front.service, family_of(place.address)
        denied = _of(family, service.options.denied_ranges)
        if denied and (not self._has_own_cluster_ip(service, family) or any(contains(each, source) for each in denied)):
            return True
        is_node_port = self.fronts.get(place) is not front
        is_asked = is_node_port and GuardedFronts.NODE_PORTS in service.options.source_ranges_for
        return is_asked and not self._is_in_ranges(service, family, source)

    def front_of(self, place: Place) -> Front | None:
        """Whose a place is: a Service's address goes before a node port."""
        front = self.fronts.get(place)
        if front is None and self.serves_node_ports(place.address):
            front = self.fronts.get(place._replace(address=ANY_ADDRESS))
        if front is None or family_of(place.address) not in map(family_of, front.service.cluster_ips):
            return None
        return front

    def remembers(self, probe: Probe) -> bool:
        """Whether a client that connects like this again must reach the same pod: by affinity, or by its hash."""
        front = self.front_of(place_of(probe))
        return front is not None and (
            front.service.affinity_timeout is not None or front.service.options.algorithm in BY_ADDRESS
        )

    def least_share(self, probe: Probe, expected: Collection[Outcome]) -> float:
        """Which part of new connections like this one the endpoint gets that gets fewest."""
        place = place_of(probe)
        front = self.front_of(place)
        if front is None or front.port is None:
            return 1 / len(expected)
        weights = self.lists(front.service, front.port, family_of(place.address)).weights
        reached = [weights[Address(each.endpoint.ip), each.endpoint.port] for each in expected if each.endpoint]
        return min(reached) / sum(reached)

    def draws_evenly(self, probe: Probe) -> bool:
        """Whether all endpoints have the same chance each time, which neither weights nor hashes of clients leave."""
        expected = self.expected(probe)
        return not self.remembers(probe) and self.least_share(probe, expected) == 1 / len(expected)

    def serves_node_ports(self, address: Address) -> bool:
        """Whether rules serve node ports on an address (nodePortAddresses); never on loopback, asked for or not."""
        node, family, asked = self.world.node, family_of(address), self.world.config.node_port_addresses
        if is_loopback(address):
            return False
        if asked.primary and address in _of(family, node.addresses)[:1]:
            return True
        if any(cidr.prefixlen == 0 for cidr in _of(family, asked.networks)):
            return address in self.world.interfaces
        present = self.world.interfaces if self.world.knows_interfaces else node.addresses
        return address in present and any(contains(cidr, address) for cidr in asked.networks)

    def _unserved(self, place: Place) -> Outcome:
        """The outcome of a connection to no Service port: a ClusterIP rejects, what may become one drops."""
        if any(place.address in service.cluster_ips for service in self.world.services):
            return REJECTED[place.protocol]
        if any(contains(cidr, place.address) for each in self.world.service_cidrs for cidr in each.cidrs):
            return DROPPED
        is_own = place.address in self.world.interfaces or is_loopback(place.address)
        return NODE if is_own else UNTOUCHED

    def _is_admitted(self, service: Service, address: Address, source: Address) -> bool:
        """Whether the source ranges let a client at an address of a Service: a load balancer IP, or what else is asked.

        ClusterIPs are never guarded.
        """
        guards_external = GuardedFronts.EXTERNAL_IPS in service.options.source_ranges_for
        guarded = service.load_balancer_ips + (service.external_ips if guards_external else ())
        if address not in guarded or address in service.cluster_ips:
            return True
        return self._is_in_ranges(service, family_of(address), source)

    def _is_in_ranges(self, service: Service, family: Family, source: Address) -> bool:
        ranges = _of(family, service.source_ranges)
        if not ranges or any(each.prefixlen == 0 for each in ranges):
            return True
        if not self._has_own_cluster_ip(service, family):
            return False
        own = _of(family, self.world.node.addresses)[:1]
        if source in service.load_balancer_ips and any(contains(each, node) for each in ranges for node in own):
            return True
        return any(contains(each, source) for each in ranges)

    def _has_own_cluster_ip(self, service: Service, family: Family) -> bool:
        """Whether no Service that comes first has the same ClusterIP, which distinguishes source ranges."""
        (mine,) = _of(family, service.cluster_ips)
        holders = [each for each in self.world.services if mine in each.cluster_ips]
        return min(holders, key=lambda each: (each.created, each.key)) == service

    def _chosen(self, front: Front, lists: Lists, probe: Probe) -> tuple[Targets, bool]:
        """The endpoints that a connection may be sent to, and whether its source is hidden from them."""
        is_local = self._is_local(probe)
        by_policy = lists.local if front.policy is TrafficPolicy.LOCAL else lists.cluster
        if not front.is_external:
            return by_policy, self.world.config.masquerade_all or is_local is False
        if front.policy is TrafficPolicy.CLUSTER:
            return lists.cluster, True
        if is_local:
            return lists.cluster, False
        return (lists.cluster, True) if probe.origin is Origin.NODE else (lists.local, False)

    def _is_local(self, probe: Probe) -> bool | None:
        """Whether the source is a pod of this cluster or node (detectLocalMode); None: there is no way to know."""
        config, source = self.world.config, _source(probe)
        match config.detect_local_mode:
            case DetectLocalMode.BRIDGE_INTERFACE:
                return INTERFACES[probe.origin] == config.bridge_interface
            case DetectLocalMode.INTERFACE_NAME_PREFIX:
                return INTERFACES[probe.origin].startswith(config.interface_name_prefix)
            case DetectLocalMode.NODE_CIDR:
                ranges = self.world.node.pod_cidrs
            case DetectLocalMode.CLUSTER_CIDR:
                ranges = config.cluster_cidrs
        own = _of(family_of(source), ranges)[:1]
        return contains(own[0], source) if own else None

    def _arrivals(self, probe: Probe, protocol: Protocol, targets: Targets, hides_source: bool) -> frozenset[Outcome]:
        """The outcomes at endpoints.  What came in and is for the node itself keeps its source: it is sent nowhere."""
        itself = frozenset(
            target for target in targets if target[0] == probe.source and (*target, protocol) in self._here
        )
        is_own = probe.origin is Origin.NODE
        delivered = frozenset(target for target in targets if target[0] in self.world.interfaces and not is_own)
        return _outcomes(targets, (targets if hides_source else itself) - delivered)

    @functools.cached_property
    def _here(self) -> frozenset[tuple[Address, int, Protocol]]:
        """The endpoints on this node of any Service: a pod is where it is, whatever Service leads to it."""
        served = {(front.service, front.port) for front in self.fronts.values() if front.port}
        return frozenset(
            (*target, port.protocol)
            for service, port in served
            for family in set(map(family_of, service.cluster_ips))
            for target in self.lists(service, port, family).here
        )

    @functools.cached_property
    def _slices(self) -> Mapping[tuple[ObjectKey, Family], Sequence[EndpointSlice]]:
        """The slices of each Service in each family."""
        found: dict[tuple[ObjectKey, Family], list[EndpointSlice]] = defaultdict(list)
        for each in self.world.slices:
            found[each.service, each.family].append(each)
        return found

    def lists(self, service: Service, port: ServicePort, family: Family) -> Lists:
        """The endpoints of a Service port in a family."""
        key = service.key, port, family
        if key not in self._lists:
            mine = self._slices[service.key, family]
            found = _lists(_entries(service, mine, port, self.world.node.name), self.world.node)
            self._lists[key] = self._answering(found) if _leaves_out_silent(service, port) else found
        return self._lists[key]

    def _answering(self, lists: Lists) -> Lists:
        """The lists without the silent, of whom the first ones go, until half of the list has gone."""

        def those(targets: Targets) -> Targets:
            gone = [each for each in self.world.silent if each in targets]
            return targets - set(gone[: len(targets) // 2])

        return lists._replace(cluster=those(lists.cluster), local=those(lists.local))


@functools.lru_cache(maxsize=1024)
def _outcomes(targets: Targets, masqueraded: Targets) -> frozenset[Outcome]:
    return frozenset(endpoint(*target, masqueraded=target in masqueraded) for target in targets)


# Who has which place


def _fronts(world: World) -> dict[Place, Front]:
    """Each place with the Service port that has it: ClusterIPs first, then the oldest, then by name."""
    cluster_ips = {address for service in world.services for address in service.cluster_ips}
    claims = [(place, front) for service in world.services for place, front in _claims(world, service, cluster_ips)]

    def precedence(claim: tuple[Place, Front]) -> tuple[object, ...]:
        place, front = claim
        service = front.service
        is_guest = front.is_external and place.address != ANY_ADDRESS
        return is_guest, service.created, service.key.namespace, service.key.name, front.port is None

    found: dict[Place, Front] = {}
    for place, front in sorted(claims, key=precedence):
        if not _is_the_nodes(world, place, front, found.get(place._replace(address=ANY_ADDRESS))):
            found.setdefault(place, front)
    return found


def _is_the_nodes(world: World, place: Place, front: Front, node_port: Front | None) -> bool:
    """Whether a place at an external address is the node's own: its ports that are protected or others' node ports."""
    if not front.is_external or place.address not in world.node.addresses:
        return False
    is_others = node_port is not None and node_port.service.key != front.service.key
    return is_others or place.port in _protected_ports(world.config)


def _protected_ports(config: Config) -> set[int]:
    """What no external address takes from the node: what is configured, and where the proxy itself answers."""
    own = {int(place.rpartition(":")[2]) for place in (config.healthz_bind_address, config.metrics_bind_address)}
    return own.union(*(range(ports.first, ports.last + 1) for ports in config.protected_ports))


def _claims(world: World, service: Service, cluster_ips: Set[Address]) -> Iterator[tuple[Place, Front]]:
    """Every place that a Service asks for and may have; an external address is no ClusterIP of any Service."""
    families = set(map(family_of, service.cluster_ips))
    wanted = service.load_balancer_ips + _allowed_external_ips(world.config, service)
    external = {address for address in wanted if family_of(address) in families} - cluster_ips
    for port in service.ports:
        for address in service.cluster_ips:
            yield Place(address, port.protocol, port.port), Front(service, port, service.internal_policy, False)
        for address in external:
            yield Place(address, port.protocol, port.port), Front(service, port, service.external_policy, True)
        if port.node_port:
            yield Place(ANY_ADDRESS, port.protocol, port.node_port), Front(service, port, service.external_policy, True)
    if service.health_check_node_port:
        place = Place(ANY_ADDRESS, Protocol.TCP, service.health_check_node_port)
        yield place, Front(service, None, service.external_policy, True)


def _allowed_external_ips(config: Config, service: Service) -> tuple[Address, ...]:
    """The externalIPs that may be served at all."""
    if not config.allow_service_external_ips:
        return ()
    cidrs = config.external_ip_cidrs
    return tuple(a for a in service.external_ips if not cidrs or any(contains(cidr, a) for cidr in cidrs))


# Which endpoints serve


class _Entry(NamedTuple):
    """An endpoint as a slice has it, with what it weighs there."""

    endpoint: Endpoint
    weight: int


def _entries(
    service: Service, slices: Iterable[EndpointSlice], port: ServicePort, node_name: str
) -> dict[tuple[Address, int], _Entry]:
    """The endpoints of a Service port, each address and port once, by the entry that is best."""

    def rank(entry: _Entry) -> tuple[object, ...]:
        endpoint = entry.endpoint
        is_local = endpoint.node_name == node_name
        hints = endpoint.node_hints or (), endpoint.zone_hints or ()
        return not endpoint.terminating, endpoint.ready, endpoint.serving, is_local, hints, -entry.weight

    found: dict[tuple[Address, int], _Entry] = {}
    for each in slices:
        for number in (p.port for p in each.ports if (p.name, p.protocol) == (port.name, port.protocol)):
            for pod in each.endpoints:
                place = pod.address, number
                entry = _Entry(pod, _weight(service, each, pod))
                found[place] = max(found.get(place, entry), entry, key=rank)
    return found


def _weight(service: Service, of_slice: EndpointSlice, endpoint: Endpoint) -> int:
    """How many connections an endpoint gets in comparison with others: by its slice, and by its zone."""
    own = 100 if of_slice.options.weight is None else of_slice.options.weight
    return own * next((weight for zone, weight in service.options.weights if zone == endpoint.zone), 1)


def _lists(all_entries: dict[tuple[Address, int], _Entry], node: Node) -> Lists:
    weights = {place: entry.weight for place, entry in all_entries.items() if entry.weight > 0}
    entries = {place: all_entries[place].endpoint for place in weights}

    def those(matches: Callable[[Endpoint], bool]) -> set[tuple[Address, int]]:
        return {place for place, entry in entries.items() if matches(entry)}

    ready = those(lambda entry: entry.ready)
    draining = those(lambda entry: not entry.ready and entry.serving and entry.terminating)
    here = those(lambda entry: entry.node_name == node.name)
    cluster = _near({place: entries[place] for place in ready}, node) or draining
    local = ready & here or draining & here
    return Lists(frozenset(cluster), frozenset(local), frozenset((cluster | local) & here), weights)


def _leaves_out_silent(service: Service, port: ServicePort) -> bool:
    return service.options.silent_endpoints is SilentEndpoints.LEAVE_OUT and port.protocol is Protocol.TCP


def _near(ready: dict[tuple[Address, int], Endpoint], node: Node) -> set[tuple[Address, int]]:
    """The ready endpoints that topology leaves: by node, else by zone, if all have hints and one fits; else all."""
    by_node = node.name, {place: entry.node_hints or () for place, entry in ready.items()}
    by_zone = node.zone, {place: entry.zone_hints or () for place, entry in ready.items()}
    for own, hints in (by_node, by_zone):
        near = {place for place, names in hints.items() if own and own in names}
        if near and all(hints.values()):
            return near
    return set(ready)


def _of(family: Family, values: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(value for value in values if family_of(value) is family)


def virtual_ips(service: Service) -> tuple[Address, ...]:
    """All addresses at which clients may ask for a Service: ClusterIPs, external IPs, load balancer IPs."""
    return (*service.cluster_ips, *service.external_ips, *service.load_balancer_ips)


def place_of(probe: Probe) -> Place:
    """Where a connection goes."""
    return Place(Address(probe.address), Protocol(probe.protocol.lower()), probe.port)


def _source(probe: Probe) -> Address:
    assert probe.source, "whether a source is local depends on it"
    return Address(probe.source)
