"""Every combination of the facts that decide about a connection, sent through the kernel and held to the specification.

The specification is the oracle of the conformance suite.  The world has a Service for each policy and endpoint case,
with all kinds of addresses, both families and all protocols.  So a single load of rules covers the whole matrix.
`uncovered` names the cells that were not tried, by subtracting the tried cells from the product of all facts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

import pytest
from nftproxy_conformance.lab import DROPPED, PING, TCP_RESET, Lab, Origin, Outcome, Probe, obstacle
from nftproxy_conformance.lab.topology import DEFAULT_SOURCES, LOAD_BALANCER_CIDR
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.subjects.rendered import end_gone

from nftproxy.extensions.external_addresses.fields import ExternalAddresses, Ping
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.objects import EndpointSlice, Service, TrafficPolicy
from nftproxy.model.objects import Place as EndpointPlace
from nftproxy.model.settings import DetectLocalMode
from tests.support.cluster import IP, IP6, Cluster, Ip
from tests.support.factories import addresses, networks, node, service, settings, slice_of

# ---- the facts that decide -----------------------------------------------------------------------------------------


class Front(Enum):
    """The kinds of addresses at which a Service is reached."""

    CLUSTER_IP = "ClusterIP"
    EXTERNAL_IP = "externalIP"
    LOAD_BALANCER_IP = "load balancer IP"
    NODE_PORT = "node port"


class Place(Enum):
    """Where an endpoint is."""

    HERE = "on this node"
    AWAY = "on another node"


class Case(Enum):
    """Which endpoints there are, in the notation of `factories.endpoint` less the address."""

    BOTH = "ready here and away"
    HERE = "ready here only"
    AWAY = "ready away only"
    NOWHERE = "none that is usable"
    DRAINING_BOTH = "terminating here and away"
    DRAINING_HERE = "terminating here, ready away"
    DRAINING_AWAY = "ready here, terminating away"
    FAILOVER = "ready here and away, of a Service with failover"
    SILENT_HERE = "ready here and away, silent here, of a Service with failover"


class Packet(Enum):
    """The first packets of connections to a Service's port of each protocol, and packets to no port of a Service."""

    TCP = "tcp"
    UDP = "udp"
    SCTP = "sctp"
    OTHER_PORT = "tcp to another port"
    PING = "ping"


class Cell(NamedTuple):
    """A combination of the facts."""

    front: Front
    policy: TrafficPolicy
    origin: Origin
    is_ipv6: bool
    packet: Packet
    case: Case

    def __str__(self) -> str:
        family = "IPv6" if self.is_ipv6 else "IPv4"
        return (
            f"{self.front.value}, policy {self.policy.value}, from {self.origin.value}, "
            f"{family} {self.packet.value}, endpoints {self.case.value}"
        )


def all_cells() -> Iterator[Cell]:
    """The full matrix."""
    return itertools.starmap(Cell, itertools.product(Front, TrafficPolicy, Origin, (False, True), Packet, Case))


def uncovered(cells: Collection[Cell]) -> list[str]:
    """The names of all cells of the matrix that are not among these."""
    return [str(cell) for cell in all_cells() if cell not in cells]


# ---- the configurations --------------------------------------------------------------------------------------------

SETUPS: Mapping[str, Mapping[str, Any]] = {
    "ClusterCIDR": {},
    "no-detector": {"cluster_cidrs": ()},
    "NodeCIDR": {"detect_local_mode": DetectLocalMode.NODE_CIDR},
    "BridgeInterface": {"detect_local_mode": DetectLocalMode.BRIDGE_INTERFACE, "bridge_interface": "cni0"},
    "InterfaceNamePrefix": {"detect_local_mode": DetectLocalMode.INTERFACE_NAME_PREFIX, "interface_name_prefix": "cni"},
    "answers-and-closed": {
        "ping": Ping.ANSWER,
        "external_addresses": ExternalAddresses.CLOSED,
        "external_ip_cidrs": networks([LOAD_BALANCER_CIDR, "2001:db8:113::/48"]),
    },
    "masqueradeAll": {"masquerade_all": True},
    "masqueradeAll-no-detector": {"masquerade_all": True, "cluster_cidrs": ()},
}

QUICK = {"ClusterCIDR", "answers-and-closed"}
"""The configurations that are tried by default."""


# ---- the world -----------------------------------------------------------------------------------------------------

POLICIES = {TrafficPolicy.CLUSTER: 1, TrafficPolicy.LOCAL: 2}
CASES = {case: number for number, case in enumerate(Case, 1)}
PORTS = {Protocol.TCP: 80, Protocol.UDP: 53, Protocol.SCTP: 3868}
TARGET_PORT = 8000
OWN = frozenset(addresses(each for ip in (IP, IP6) for each in (ip.node, ip.own, ip.gateway)))

CONDITIONS: Mapping[Case, Mapping[Place, str]] = {
    Case.BOTH: {Place.HERE: "", Place.AWAY: ""},
    Case.HERE: {Place.HERE: ""},
    Case.AWAY: {Place.AWAY: ""},
    Case.NOWHERE: {Place.HERE: "unready", Place.AWAY: "stopped"},
    Case.DRAINING_BOTH: {Place.HERE: "draining", Place.AWAY: "draining"},
    Case.DRAINING_HERE: {Place.HERE: "draining", Place.AWAY: ""},
    Case.DRAINING_AWAY: {Place.HERE: "", Place.AWAY: "draining"},
    Case.FAILOVER: {Place.HERE: "", Place.AWAY: ""},
    Case.SILENT_HERE: {Place.HERE: "", Place.AWAY: ""},
}


def virtual(is_ipv6: bool, front: Front, policy: TrafficPolicy, case: Case) -> str:
    """The address of a front.  Each Service has its own, but node ports are all on the node's."""
    number = POLICIES[policy] * 10 + CASES[case]
    if is_ipv6:
        of_kind = {Front.CLUSTER_IP: "fd00:96::", Front.EXTERNAL_IP: "2001:db8:113::e:"}
        return {Front.NODE_PORT: IP6.node}.get(front) or f"{of_kind.get(front, '2001:db8:113::b:')}{number}"
    of_kind = {Front.CLUSTER_IP: "10.96.0.", Front.EXTERNAL_IP: "203.0.113.1"}
    return {Front.NODE_PORT: IP.node}.get(front) or f"{of_kind.get(front, '203.0.113.2')}{number}"


def node_port(policy: TrafficPolicy, case: Case) -> int:
    """The node port of all ports of a Service: they differ in protocol."""
    return 30000 + POLICIES[policy] * 100 + CASES[case]


def name(policy: TrafficPolicy, case: Case) -> str:
    """The name of a Service."""
    return f"matrix/{policy.value}-{case.name}".lower().replace("_", "-")


def make_service(policy: TrafficPolicy, case: Case) -> Service:
    """A Service with all kinds of fronts."""

    def both(front: Front) -> list[str]:
        return [virtual(is_ipv6, front, policy, case) for is_ipv6 in (False, True)]

    return service(
        name(policy, case),
        type="LoadBalancer",
        cluster_ips=both(Front.CLUSTER_IP),
        external_ips=both(Front.EXTERNAL_IP),
        load_balancer_ips=both(Front.LOAD_BALANCER_IP),
        ports=[f"{each.value}:{PORTS[each]}:{node_port(policy, case)}/{each.value}" for each in Protocol],
        internal_policy=policy,
        external_policy=policy,
        annotations={"failover": "silent,refused,gone"} if case in (Case.FAILOVER, Case.SILENT_HERE) else {},
    )


def first_port(policy: TrafficPolicy, case: Case) -> int:
    """The number to which the target ports of a Service add its ports."""
    return TARGET_PORT + POLICIES[policy] * 10 + CASES[case]


def silent_places() -> tuple[EndpointPlace, ...]:
    """The endpoints that don't answer."""
    ports = [first_port(policy, Case.SILENT_HERE) + PORTS[Protocol.TCP] for policy in TrafficPolicy]
    return tuple(EndpointPlace(Address(ip.here), port) for ip in (IP, IP6) for port in ports)


def make_slices(policy: TrafficPolicy, case: Case, *gone: Place) -> Iterator[EndpointSlice]:
    """The EndpointSlices of the cell, one of each family, without endpoints at some places."""
    number = first_port(policy, case)
    for ip in (IP, IP6):
        where = {Place.HERE: f"{ip.here}@node-a", Place.AWAY: f"{ip.away}@node-b"}
        yield slice_of(
            name(policy, case),
            [f"{where[place]} {conditions}" for place, conditions in CONDITIONS[case].items() if place not in gone],
            ports=[f"{each.value}:{number + PORTS[each]}/{each.value}" for each in Protocol],
            suffix=ip.nft,
        )


def fronts_of(made: Service, policy: TrafficPolicy, case: Case) -> Iterator[tuple[Cell, Probe]]:
    """A probe for every address, packet and origin of a Service, read off the Service, and the cell that it is in."""
    kinds: list[tuple[Front, Iterable[str]]] = [
        (Front.CLUSTER_IP, made.cluster_ips),
        (Front.EXTERNAL_IP, made.external_ips),
        (Front.LOAD_BALANCER_IP, made.load_balancer_ips),
        (Front.NODE_PORT, (IP.node, IP6.node)),
    ]
    for (front, virtuals), origin in itertools.product(kinds, Origin):
        is_node_port = front is Front.NODE_PORT
        packets = {
            Packet(port.protocol.value): (port.node_port if is_node_port else port.port, port.protocol.value)
            for port in made.ports
        }
        packets |= {Packet.OTHER_PORT: (9999, "tcp"), Packet.PING: (0, PING)}
        for address, (packet, to) in itertools.product(virtuals, packets.items()):
            is_ipv6 = ":" in address
            probe = Probe(origin, address, *to, source_from(origin, is_ipv6))
            yield Cell(front, policy, origin, is_ipv6, packet, case), probe


def source_from(origin: Origin, is_ipv6: bool) -> str:
    """The usual source.  The node's differs from the address that masquerading gives to connections on the uplink."""
    ip: Ip = IP6 if is_ipv6 else IP
    return ip.own if origin is Origin.NODE else DEFAULT_SOURCES[origin][is_ipv6]


def make_world() -> dict[tuple[TrafficPolicy, Case], Service]:
    """The Services, by policy and case."""
    return {(policy, case): make_service(policy, case) for policy in TrafficPolicy for case in Case}


def oracle_of(tweaks: Mapping[str, Any], *gone: Place) -> Oracle:
    """The oracle for the connections of all cells in a configuration, without endpoints at some places."""
    made = make_world()
    slices = tuple(each for policy, case in made for each in make_slices(policy, case, *gone))
    config = settings(**tweaks).config
    return Oracle(World(node(), config, tuple(made.values()), slices, interfaces=OWN, silent=silent_places()))


class Tried(NamedTuple):
    """The expected and the found outcomes of the connections of a cell.

    `refusals` has for each endpoint that refused whether the client is to hear of that, and whether it does.  `later`
    has the expected and the found outcome of the next packet of established connections once endpoints away are gone.
    """

    expected: frozenset[Outcome]
    found: set[Outcome]
    refusals: set[tuple[bool, bool]]
    later: set[tuple[Outcome, Outcome]]


def results(lab: Lab, tweaks: Mapping[str, Any]) -> dict[Cell, Tried]:
    """The outcomes of the connections of every cell."""
    oracle = oracle_of(tweaks)
    cluster = Cluster(lab, *oracle.world.services, *oracle.world.slices, SilentPlaces(silent_places()), **tweaks)
    cells = {cell: probe for key, made in make_world().items() for cell, probe in fronts_of(made, *key)}
    tried = {cell: Tried(oracle.expected(probe), set(), set(), set()) for cell, probe in cells.items()}
    # With two endpoints, 40 connections miss an endpoint once in 500 thousand million times.
    probes = [each for each in cells.items() for _ in range(40 if len(tried[each[0]].expected) > 1 else 3)]
    outcomes = dict[tuple[Cell, Outcome], Outcome]()
    for (cell, _), outcome in zip(probes, lab.connect_many(probe for _, probe in probes), strict=True):
        tried[cell].found.add(outcome)
        if cell.packet is Packet.TCP and outcome.endpoint:
            outcomes[cell, outcome] = outcome
    for by_icmp in (True, False):
        heard = lab.refuse_many(list(outcomes.values()), by_icmp=by_icmp)
        for (cell, outcome), each in zip(outcomes, heard, strict=True):
            assert outcome.endpoint
            passes = oracle.passes_refusal(cells[cell], outcome.endpoint)
            tried[cell].refusals.add((passes, each is not None))
    end_some(lab, cluster, oracle_of(tweaks, Place.AWAY), cells, tried)
    return tried


def end_some(
    lab: Lab, cluster: Cluster, after: Oracle, cells: Mapping[Cell, Probe], tried: Mapping[Cell, Tried]
) -> None:
    """Establish connections, let endpoints go, and send the next packets."""
    lab.forget()
    wanted = {probe: cell for cell, probe in cells.items() if cell.packet is Packet.TCP}
    established = lab.establish(each for each in lab.connect_many([*wanted] * 8) if each.endpoint)
    cluster.put(*after.world.slices)
    end_gone(cluster.pipeline, lab.node, 0.0)
    for outcome, seen in zip(established, lab.next_packets(established), strict=True):
        assert outcome.probe
        cell = wanted[dataclasses.replace(outcome.probe, sport=None)]
        tried[cell].later.add((after.next_packet(outcome), seen))


def differences(tried: Mapping[Cell, Tried]) -> list[str]:
    """The cells with outcomes that differ from the specification, in words."""
    return [
        f"{cell}: {sorted(map(repr, found))}, not {sorted(map(repr, expected))}"
        for cell, (expected, found, *_) in tried.items()
        if found != expected
    ]


# ---- tests ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def matrix_lab() -> Iterator[Lab]:
    """A lab for all configurations.  Skips them where there can be none."""
    if why := obstacle():
        pytest.skip(why)
    with Lab() as lab:
        yield lab


@pytest.fixture(
    scope="module",
    params=[each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in SETUPS],
)
def tried(request: pytest.FixtureRequest, matrix_lab: Lab) -> dict[Cell, Tried]:
    """The outcomes of the connections of every cell in a configuration."""
    matrix_lab.reset()
    for ip in (IP, IP6):
        matrix_lab.add_address(ip.own)
    return results(matrix_lab, SETUPS[request.param])


def test_connections_go_as_specified(tried: dict[Cell, Tried]) -> None:
    """In every cell, connections reach exactly the specified endpoints, masqueraded or not, or are refused so."""
    assert differences(tried) == []


def test_refusals_pass_as_specified(tried: dict[Cell, Tried]) -> None:
    """In every cell clients hear of a refusal, except of Services with failover while another endpoint does better."""
    assert {
        str(cell): each.refusals for cell, each in tried.items() if {(True, False), (False, True)} & each.refusals
    } == {}
    assert {cell.case for cell, each in tried.items() if (False, False) in each.refusals} == {Case.FAILOVER}


def test_connections_end_as_specified(tried: dict[Cell, Tried]) -> None:
    """In every cell, connections to endpoints that are gone go on, and end if the Service has failover."""
    assert {str(cell): each.later for cell, each in tried.items() if any(due != seen for due, seen in each.later)} == {}
    ended = {cell.case for cell, each in tried.items() if any(not due.endpoint for due, _ in each.later)}
    assert ended == {Case.FAILOVER, Case.SILENT_HERE}
    assert {cell.origin for cell, each in tried.items() if each.later} == {*Origin} - {Origin.NODE}


def test_every_cell_is_tried(tried: dict[Cell, Tried]) -> None:
    """No combination of front, policy, origin, family, packet and endpoints is left out."""
    assert uncovered(tried) == []


def test_a_cell_that_is_left_out_is_named() -> None:
    """The check for completeness names the very cell that nothing covers."""
    missing = Cell(Front.NODE_PORT, TrafficPolicy.LOCAL, Origin.REMOTE_POD, True, Packet.SCTP, Case.DRAINING_HERE)
    assert uncovered({cell for cell in all_cells() if cell != missing}) == [
        "node port, policy Local, from remote pod, IPv6 sctp, endpoints terminating here, ready away"
    ]


def test_a_cell_that_behaves_otherwise_is_named() -> None:
    """The comparison names a cell with an unspecified outcome, and both outcomes."""
    cell = Cell(Front.CLUSTER_IP, TrafficPolicy.CLUSTER, Origin.POD, False, Packet.TCP, Case.NOWHERE)
    assert differences({cell: Tried(frozenset({TCP_RESET}), {DROPPED}, set(), set())}) == [
        "ClusterIP, policy Cluster, from pod, IPv4 tcp, endpoints none that is usable: "
        "['<DROPPED>'], not ['<REJECTED (tcp-reset)>']"
    ]
