"""The expected outcomes of a new connection: docs/semantics.md as code, independent of nft rules.

Trials compare rendered rules with it, so it shares no code with the rendering: no claims, no choosing, no compiling.
It takes each connection by itself and searches the whole cluster for it, slowly and plainly.

Parsing has already removed objects that don't count: headless and ExternalName Services, another proxy's Services, and
bad values.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from nftproxy.extensions.algorithms.annotations import ALGORITHM, Algorithm
from nftproxy.extensions.algorithms.fields import DEFAULT_ALGORITHM
from nftproxy.extensions.client_limits.annotations import DENIED_RANGES, RANGES_FOR, GuardedFronts
from nftproxy.extensions.external_addresses.fields import EXTERNAL_ADDRESSES, PINGS, ExternalAddresses, Ping
from nftproxy.extensions.failover.annotations import Failover
from nftproxy.model.addresses import Address, Family, Protocol, contains, family_of, is_loopback
from nftproxy.model.objects import EndpointSlice, ObjectKey, Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import DetectLocalMode
from nftproxy_conformance.lab.outcome import (
    ANSWERED,
    DROPPED,
    NODE,
    PING,
    PORT_UNREACHABLE,
    TCP_RESET,
    UNTOUCHED,
    Outcome,
    Probe,
    endpoint,
)
from nftproxy_conformance.lab.topology import INTERFACES, Origin
from nftproxy_conformance.specification.endpoints import Lists, Targets, failures_of, lists_of
from nftproxy_conformance.specification.fronts import ANY_ADDRESS, Front, fronts_of
from nftproxy_conformance.specification.world import Destination, World, of_family, place_of, source_of

REJECTED = {Protocol.TCP: TCP_RESET, Protocol.UDP: PORT_UNREACHABLE, Protocol.SCTP: PORT_UNREACHABLE}

BY_ADDRESS = (Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH)
"""The algorithms that send all connections of a client to the same endpoint, as long as the list is the same."""


class Oracle:
    """The expected outcomes of connections in a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.fronts = fronts_of(world)
        self._lists: dict[tuple[ObjectKey, ServicePort, Family], Lists] = {}

    def expected(self, probe: Probe) -> frozenset[Outcome]:
        """All possible outcomes of a new connection or a ping, which must have a source."""
        if probe.protocol == PING:
            return frozenset({self._pinged(probe)})
        place = place_of(probe)
        front = self.front_of(place)
        if front is None or front.port is None:
            return frozenset({self._unserved(place)})
        if self.fronts.get(place) is front and not self._is_admitted(front.service, place.address, source_of(probe)):
            return frozenset({DROPPED})
        lists = self.lists(front.service, front.port, family_of(place.address))
        chosen, hides_source = self._chosen(front, lists, probe)
        if chosen and self.forbids(probe):
            return frozenset({DROPPED})
        if chosen:
            return self._arrivals(probe, place.protocol, chosen, hides_source)
        return frozenset({DROPPED if lists.cluster else REJECTED[place.protocol]})

    def passes_refusal(self, probe: Probe, target: tuple[str, int]) -> bool:
        """True if the client hears when an endpoint refuses its TCP connection, by a reset or an ICMP error."""
        place = place_of(probe)
        front = self.front_of(place)
        if front is None or front.port is None or Failover.REFUSED not in failures_of(self.world, front.service):
            return True
        lists = self.lists(front.service, front.port, family_of(place.address))
        is_local = front.policy is TrafficPolicy.LOCAL
        used = ([lists.local] if is_local else []) + ([lists.cluster] if front.is_external or not is_local else [])
        well = [each - lists.silent for each in used]
        passing = [each & lists.silent for each in used] + [each for each in well if len(each) == 1]
        return not any(well) or any(target in each for each in passing)

    def ends(self, place: Destination, endpoint_address: Address) -> bool:
        """True if an established TCP connection at a place ends, as its endpoint is gone."""
        front = self.front_of(place)
        is_asked = front is not None and Failover.GONE in failures_of(self.world, front.service)
        served = {service.key for service in self.world.services}
        slices = [each for each in self.world.slices if each.service in served]
        return is_asked and all(endpoint_address != pod.address for each in slices for pod in each.endpoints)

    def next_packet(self, outcome: Outcome) -> Outcome:
        """The outcome of the next packet of an established TCP connection to an endpoint, by its outcome so far."""
        probe = outcome.probe
        assert probe
        assert outcome.endpoint
        if not self.ends(place_of(probe), Address(outcome.endpoint.ip)):
            return outcome
        return DROPPED if self.expected(probe) == {DROPPED} else TCP_RESET

    def forbids(self, probe: Probe) -> bool:
        """True if the Service's annotations forbid the connection for this client."""
        place, source = place_of(probe), source_of(probe)
        front = self.front_of(place)
        assert front
        service, family = front.service, family_of(place.address)
        denied = of_family(service.options[DENIED_RANGES], family)
        if denied and (not self._has_own_cluster_ip(service, family) or any(contains(each, source) for each in denied)):
            return True
        is_node_port = self.fronts.get(place) is not front
        is_asked = is_node_port and GuardedFronts.NODE_PORTS in service.options[RANGES_FOR]
        return is_asked and not self._is_in_ranges(service, family, source)

    def front_of(self, place: Destination) -> Front | None:
        """The owner of a place, or None.  A Service's address goes before a node port."""
        front = self.fronts.get(place)
        if front is None and self.serves_node_ports(place.address):
            front = self.fronts.get(place._replace(address=ANY_ADDRESS))
        if front is None or family_of(place.address) not in map(family_of, front.service.cluster_ips):
            return None
        return front

    def checked(self, place: Destination) -> int | None:
        """The number of pods in the answer of a health-check node port, None if nothing answers health checks there."""
        front = self.front_of(place)
        if front is None or front.port is not None or not self.serves_node_ports(place.address):
            return None
        service, family = front.service, family_of(place.address)
        lists = [self.lists(service, port, family) for port in service.ports]
        return len({address for each in lists for address, _ in each.checked})

    def remembers(self, probe: Probe) -> bool:
        """True if the client's next connection must reach the same pod, by affinity or by its hash."""
        front = self.front_of(place_of(probe))
        return front is not None and (
            front.service.affinity_timeout is not None
            or front.service.options.get(ALGORITHM, self.world.config[DEFAULT_ALGORITHM]) in BY_ADDRESS
        )

    def least_share(self, probe: Probe, expected: Collection[Outcome]) -> float:
        """The smallest share of an endpoint among new connections like this."""
        place = place_of(probe)
        front = self.front_of(place)
        if front is None or front.port is None:
            return 1 / len(expected)
        weights = self.lists(front.service, front.port, family_of(place.address)).weights
        reached = [weights[Address(each.endpoint.ip), each.endpoint.port] for each in expected if each.endpoint]
        return min(reached) / sum(reached)

    def draws_evenly(self, probe: Probe) -> bool:
        """True if all endpoints have the same chance each time, without weights or hashes of clients."""
        expected = self.expected(probe)
        return not self.remembers(probe) and self.least_share(probe, expected) == 1 / len(expected)

    def serves_node_ports(self, address: Address) -> bool:
        """True if rules serve node ports on an address (nodePortAddresses).  They never do on loopback."""
        node, family, asked = self.world.node, family_of(address), self.world.config.node_port_addresses
        if is_loopback(address):
            return False
        if asked.primary and address in of_family(node.addresses, family)[:1]:
            return True
        if any(cidr.prefixlen == 0 for cidr in of_family(asked.networks, family)):
            return address in self.world.interfaces
        present = self.world.interfaces if self.world.knows_interfaces else node.addresses
        return address in present and any(contains(cidr, address) for cidr in asked.networks)

    def _unserved(self, place: Destination) -> Outcome:
        """The outcome of a connection to no Service port: rejected at a ClusterIP, dropped at an unused ClusterIP."""
        if any(place.address in service.cluster_ips for service in self.world.services):
            return REJECTED[place.protocol]
        if self.closes(place.address):
            return REJECTED[place.protocol]
        if self._is_allocatable(place.address):
            return DROPPED
        is_own = place.address in self.world.interfaces or is_loopback(place.address)
        return NODE if is_own else UNTOUCHED

    def _pinged(self, probe: Probe) -> Outcome:
        """The outcome of a ping.  The node answers for its own addresses, whatever Services claim them."""
        address = Address(probe.address)
        if address in self.world.interfaces or self.answers_ping(probe.origin, address, source_of(probe)):
            return ANSWERED
        if any(address in service.cluster_ips for service in self.world.services):
            return PORT_UNREACHABLE
        if self.closes(address) or (self.world.config[PINGS] is Ping.ANSWER and self._can_be_closed(address)):
            return PORT_UNREACHABLE
        return DROPPED if self._is_allocatable(address) else UNTOUCHED

    def _is_allocatable(self, address: Address) -> bool:
        return any(contains(cidr, address) for each in self.world.service_cidrs for cidr in each.cidrs)

    def closes(self, address: Address) -> bool:
        """True if ports without a Service are closed at an external address."""
        return self.world.config[EXTERNAL_ADDRESSES] is ExternalAddresses.CLOSED and self._can_be_closed(address)

    def _can_be_closed(self, address: Address) -> bool:
        """True for an external address that nothing but Services may have."""
        if address in self.world.interfaces or not self._is_services_alone(address):
            return False
        return any(each.address == address and front.is_external for each, front in self.fronts.items())

    def _is_services_alone(self, address: Address) -> bool:
        proxied = {each for service in self.world.services for each in service.proxied_ips}
        is_vouched = any(contains(cidr, address) for cidr in self.world.config.external_ip_cidrs)
        return is_vouched and address not in proxied and address not in self.world.node.addresses

    def answers_ping(self, origin: Origin, address: Address, source: Address) -> bool:
        """True if a virtual address answers a ping: a Service there has a usable endpoint for this client."""
        if self.world.config[PINGS] is not Ping.ANSWER or not self._answering(family_of(address)):
            return False
        return any(
            self._answers(front, Probe(origin, address, place.port, place.protocol.value, source))
            for place, front in self.fronts.items()
            if place.address == address and (not front.is_external or self._is_services_alone(address))
        )

    def _answering(self, family: Family) -> bool:
        """True if the node has an address that answers pings."""
        present = self.world.interfaces if self.world.knows_interfaces else self.world.node.addresses
        return any(each in present for each in of_family(self.world.node.addresses, family))

    def _answers(self, front: Front, probe: Probe) -> bool:
        family = family_of(Address(probe.address))
        if front.port is None or of_family(front.service.options[DENIED_RANGES], family):
            return False
        if not self._is_admitted(front.service, Address(probe.address), source_of(probe)):
            return False
        return bool(self._chosen(front, self.lists(front.service, front.port, family), probe)[0])

    def _is_admitted(self, service: Service, address: Address, source: Address) -> bool:
        """True if source ranges admit a client.  They guard load balancer IPs, on request external IPs, never
        ClusterIPs.
        """
        guards_external = GuardedFronts.EXTERNAL_IPS in service.options[RANGES_FOR]
        guarded = service.load_balancer_ips + (service.external_ips if guards_external else ())
        if address not in guarded or address in service.cluster_ips:
            return True
        return self._is_in_ranges(service, family_of(address), source)

    def _is_in_ranges(self, service: Service, family: Family, source: Address) -> bool:
        ranges = of_family(service.source_ranges, family)
        if not ranges or any(each.prefixlen == 0 for each in ranges):
            return True
        if not self._has_own_cluster_ip(service, family):
            return False
        own = of_family(self.world.node.addresses, family)[:1]
        if source in service.load_balancer_ips and any(contains(each, node) for each in ranges for node in own):
            return True
        return any(contains(each, source) for each in ranges)

    def _has_own_cluster_ip(self, service: Service, family: Family) -> bool:
        """True if no earlier Service has the same ClusterIP, which distinguishes source ranges."""
        (mine,) = of_family(service.cluster_ips, family)
        holders = [each for each in self.world.services if mine in each.cluster_ips]
        return min(holders, key=lambda each: (each.created, each.key)) == service

    def _chosen(self, front: Front, lists: Lists, probe: Probe) -> tuple[Targets, bool]:
        """The possible endpoints of a connection, and whether its source is hidden."""
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
        """True if the source is a pod of this cluster or node (detectLocalMode), None if that is unknown."""
        config, source = self.world.config, source_of(probe)
        match config.detect_local_mode:
            case DetectLocalMode.BRIDGE_INTERFACE:
                return INTERFACES[probe.origin] == config.bridge_interface
            case DetectLocalMode.INTERFACE_NAME_PREFIX:
                return INTERFACES[probe.origin].startswith(config.interface_name_prefix)
            case DetectLocalMode.NODE_CIDR:
                ranges = self.world.node.pod_cidrs
            case DetectLocalMode.CLUSTER_CIDR:
                ranges = config.cluster_cidrs
        own = of_family(ranges, family_of(source))[:1]
        return contains(own[0], source) if own else None

    def _arrivals(self, probe: Probe, protocol: Protocol, targets: Targets, hides_source: bool) -> frozenset[Outcome]:
        """The outcomes at endpoints.  A packet to the node's own network isn't sent on, so it keeps its source."""
        itself = frozenset(
            target for target in targets if target[0] == probe.source and (*target, protocol) in self._here
        )
        is_own = probe.origin is Origin.NODE
        delivered = frozenset(target for target in targets if target[0] in self.world.interfaces and not is_own)
        return _outcomes(targets, (targets if hides_source else itself) - delivered)

    @functools.cached_property
    def _here(self) -> frozenset[tuple[Address, int, Protocol]]:
        """The endpoints on this node, of all Services."""
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
            self._lists[key] = lists_of(self.world, service, self._slices[service.key, family], port)
        return self._lists[key]


@functools.lru_cache(maxsize=1024)
def _outcomes(targets: Targets, masqueraded: Targets) -> frozenset[Outcome]:
    return frozenset(endpoint(*target, masqueraded=target in masqueraded) for target in targets)
