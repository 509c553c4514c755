"""Every combination of what decides about a connection, sent through the kernel and compared with the specification.

The specification is `expected` and the tables above it: they share no code with nftproxy, and say for one cell of the
matrix everything that may become of a connection.  The world is made of one Service per policy and endpoint case, each
with all kinds of addresses, both families and all protocols; so one load of rules covers the whole matrix.  What is not
covered is named: `uncovered` subtracts the cells that were tried from the product of all that there is.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

import pytest

from nftproxy.addresses import Protocol
from nftproxy.config import DetectLocalMode
from nftproxy.lab import DROPPED, PORT_UNREACHABLE, TCP_RESET, Lab, Origin, Outcome, Probe, endpoint, obstacle
from nftproxy.model import ClusterObject, Service, TrafficPolicy
from tests.factories import service, slice_of
from tests.packets.cluster import IP, IP6, Cluster, Ip

# ---- what decides --------------------------------------------------------------------------------------------------


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


class Cell(NamedTuple):
    """One combination."""

    front: Front
    policy: TrafficPolicy
    origin: Origin
    is_ipv6: bool
    protocol: Protocol
    case: Case

    def __str__(self) -> str:
        family = "IPv6" if self.is_ipv6 else "IPv4"
        return (
            f"{self.front.value}, policy {self.policy.value}, from {self.origin.value}, "
            f"{family} {self.protocol.name}, endpoints {self.case.value}"
        )


def all_cells() -> Iterator[Cell]:
    """The full matrix."""
    return itertools.starmap(Cell, itertools.product(Front, TrafficPolicy, Origin, (False, True), Protocol, Case))


def uncovered(cells: Collection[Cell]) -> list[str]:
    """The names of all cells of the matrix that are not among these."""
    return [str(cell) for cell in all_cells() if cell not in cells]


# ---- what is specified ---------------------------------------------------------------------------------------------

HERE, AWAY = {Place.HERE}, {Place.AWAY}
BOTH = HERE | AWAY


class Lists(NamedTuple):
    """Whom policy Cluster may choose, and whom policy Local."""

    cluster: set[Place]
    local: set[Place]


LISTS: Mapping[Case, Lists] = {
    Case.BOTH: Lists(BOTH, HERE),
    Case.HERE: Lists(HERE, HERE),
    Case.AWAY: Lists(AWAY, set()),
    Case.NOWHERE: Lists(set(), set()),
    Case.DRAINING_BOTH: Lists(BOTH, HERE),
    Case.DRAINING_HERE: Lists(AWAY, HERE),
    Case.DRAINING_AWAY: Lists(HERE, HERE),
}

REFUSED = {Protocol.TCP: TCP_RESET, Protocol.UDP: PORT_UNREACHABLE, Protocol.SCTP: PORT_UNREACHABLE}


class Setup(NamedTuple):
    """A configuration: the origins that are local in it, whether it has a detector, and whether it masquerades all."""

    tweaks: Mapping[str, Any]
    local: frozenset[Origin]
    detects: bool = True
    masquerades_all: bool = False


NOBODY: frozenset[Origin] = frozenset()
PODS = frozenset({Origin.POD, Origin.REMOTE_POD})
OWN_PODS = frozenset({Origin.POD})

SETUPS = {
    "ClusterCIDR": Setup({}, PODS),
    "no-detector": Setup({"cluster_cidrs": ()}, NOBODY, detects=False),
    "NodeCIDR": Setup({"detect_local_mode": DetectLocalMode.NODE_CIDR}, OWN_PODS),
    "BridgeInterface": Setup(
        {"detect_local_mode": DetectLocalMode.BRIDGE_INTERFACE, "bridge_interface": "cni0"}, OWN_PODS
    ),
    "InterfaceNamePrefix": Setup(
        {"detect_local_mode": DetectLocalMode.INTERFACE_NAME_PREFIX, "interface_name_prefix": "cni"}, OWN_PODS
    ),
    "masqueradeAll": Setup({"masquerade_all": True}, PODS, masquerades_all=True),
    "masqueradeAll-no-detector": Setup(
        {"masquerade_all": True, "cluster_cidrs": ()}, NOBODY, detects=False, masquerades_all=True
    ),
}


def chosen(cell: Cell, setup: Setup) -> tuple[set[Place], bool]:
    """Whom a connection may reach, and whether it is masqueraded then."""
    lists, is_local = LISTS[cell.case], cell.origin in setup.local
    by_policy = lists.local if cell.policy is TrafficPolicy.LOCAL else lists.cluster
    if cell.front is Front.CLUSTER_IP:
        return by_policy, setup.masquerades_all or (setup.detects and not is_local)
    if cell.policy is TrafficPolicy.CLUSTER:
        return lists.cluster, True
    if is_local:
        return lists.cluster, False
    if cell.origin is Origin.NODE:
        return lists.cluster, True
    return lists.local, False


def expected(cell: Cell, setup: Setup) -> set[Outcome]:
    """Everything that may become of a connection, and does if there are enough of them."""
    places, is_masqueraded = chosen(cell, setup)
    if places:
        return {endpoint(*target(cell, place), masqueraded=is_masqueraded) for place in places}
    return {DROPPED if LISTS[cell.case].cluster else REFUSED[cell.protocol]}


# ---- the world -----------------------------------------------------------------------------------------------------

POLICIES = {TrafficPolicy.CLUSTER: 1, TrafficPolicy.LOCAL: 2}
CASES = {case: number for number, case in enumerate(Case, 1)}
PORTS = {Protocol.TCP: 80, Protocol.UDP: 53, Protocol.SCTP: 3868}
TARGET_PORT = 8000

CONDITIONS: Mapping[Case, Mapping[Place, str]] = {
    Case.BOTH: {Place.HERE: "", Place.AWAY: ""},
    Case.HERE: {Place.HERE: ""},
    Case.AWAY: {Place.AWAY: ""},
    Case.NOWHERE: {Place.HERE: "unready", Place.AWAY: "stopped"},
    Case.DRAINING_BOTH: {Place.HERE: "draining", Place.AWAY: "draining"},
    Case.DRAINING_HERE: {Place.HERE: "draining", Place.AWAY: ""},
    Case.DRAINING_AWAY: {Place.HERE: "", Place.AWAY: "draining"},
}


def virtual(is_ipv6: bool, front: Front, policy: TrafficPolicy, case: Case) -> str:
    """The address of a front, each Service's its own; node ports are all on the node's."""
    number = POLICIES[policy] * 10 + CASES[case]
    if is_ipv6:
        of_kind = {Front.CLUSTER_IP: "fd00:96::", Front.EXTERNAL_IP: "2001:db8:113::e:"}
        return {Front.NODE_PORT: IP6.node}.get(front) or f"{of_kind.get(front, '2001:db8:113::b:')}{number}"
    of_kind = {Front.CLUSTER_IP: "10.96.0.", Front.EXTERNAL_IP: "203.0.113.1"}
    return {Front.NODE_PORT: IP.node}.get(front) or f"{of_kind.get(front, '203.0.113.2')}{number}"


def node_port(policy: TrafficPolicy, case: Case) -> int:
    """The node port of all ports of a Service: they differ in protocol."""
    return 30000 + POLICIES[policy] * 100 + CASES[case]


def target(cell: Cell, place: Place) -> tuple[str, int]:
    """The endpoint of a Service in a place: pods are shared, ports aren't."""
    ip = IP6 if cell.is_ipv6 else IP
    number = POLICIES[cell.policy] * 10 + CASES[cell.case]
    return (ip.here if place is Place.HERE else ip.away), TARGET_PORT + number + PORTS[cell.protocol]


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
    )


def make_slices(policy: TrafficPolicy, case: Case) -> Iterator[ClusterObject]:
    """Its endpoints, a slice of each family."""
    number = TARGET_PORT + POLICIES[policy] * 10 + CASES[case]
    for ip in (IP, IP6):
        where = {Place.HERE: f"{ip.here}@node-a", Place.AWAY: f"{ip.away}@node-b"}
        yield slice_of(
            name(policy, case),
            [f"{where[place]} {conditions}" for place, conditions in CONDITIONS[case].items()],
            ports=[f"{each.value}:{number + PORTS[each]}/{each.value}" for each in Protocol],
            suffix=ip.nft,
        )


def fronts_of(made: Service, policy: TrafficPolicy, case: Case) -> Iterator[tuple[Cell, Probe]]:
    """A probe for every address, port and origin of a Service, read off the Service, and the cell that it is in."""
    kinds: list[tuple[Front, Iterable[str]]] = [
        (Front.CLUSTER_IP, made.cluster_ips),
        (Front.EXTERNAL_IP, made.external_ips),
        (Front.LOAD_BALANCER_IP, made.load_balancer_ips),
        (Front.NODE_PORT, (IP.node, IP6.node)),
    ]
    for (front, addresses), port, origin in itertools.product(kinds, made.ports, Origin):
        number = port.node_port if front is Front.NODE_PORT else port.port
        for address in addresses:
            is_ipv6 = ":" in address
            source = _node_source(is_ipv6) if origin is Origin.NODE else None
            probe = Probe(origin, address, number, port.protocol.value, source)
            yield Cell(front, policy, origin, is_ipv6, port.protocol, case), probe


def _node_source(is_ipv6: bool) -> str:
    """Another address than the one that masquerading gives to what leaves through the uplink."""
    ip: Ip = IP6 if is_ipv6 else IP
    return ip.own


def results(lab: Lab, tweaks: Mapping[str, Any]) -> dict[Cell, set[Outcome]]:
    """What becomes of the connections of every cell."""
    made = {(policy, case): make_service(policy, case) for policy in TrafficPolicy for case in Case}
    slices = [each for policy, case in made for each in make_slices(policy, case)]
    Cluster(lab, *made.values(), *slices, **tweaks)
    cells = [each for (policy, case), one in made.items() for each in fronts_of(one, policy, case)]
    # With two endpoints, 40 connections miss one of them once in 500 thousand million times.
    probes = [(cell, probe) for cell, probe in cells for _ in range(40 if LISTS[cell.case].cluster == BOTH else 3)]
    found: dict[Cell, set[Outcome]] = {}
    for (cell, _), outcome in zip(probes, lab.connect_many(probe for _, probe in probes), strict=True):
        found.setdefault(cell, set()).add(outcome)
    return found


def differences(found: Mapping[Cell, set[Outcome]], setup: Setup) -> list[str]:
    """Where what was found is not what is specified, in words."""
    return [
        f"{cell}: {sorted(map(repr, outcomes))}, not {sorted(map(repr, expected(cell, setup)))}"
        for cell, outcomes in found.items()
        if outcomes != expected(cell, setup)
    ]


# ---- tests ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def matrix_lab() -> Iterator[Lab]:
    """One lab for all configurations; skips them where there can be none."""
    if why := obstacle():
        pytest.skip(why)
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="module", params=SETUPS)
def tried(request: pytest.FixtureRequest, matrix_lab: Lab) -> tuple[Setup, dict[Cell, set[Outcome]]]:
    """A configuration, and what becomes of the connections of every cell in it."""
    setup = SETUPS[request.param]
    matrix_lab.reset()
    for ip in (IP, IP6):
        matrix_lab.add_address(ip.own)
    return setup, results(matrix_lab, setup.tweaks)


def test_connections_go_as_specified(tried: tuple[Setup, dict[Cell, set[Outcome]]]) -> None:
    """In every cell, connections reach exactly the specified endpoints, masqueraded or not, or are refused so."""
    setup, found = tried
    assert differences(found, setup) == []


def test_every_cell_is_tried(tried: tuple[Setup, dict[Cell, set[Outcome]]]) -> None:
    """No combination of front, policy, origin, family, protocol and endpoints is left out."""
    _, found = tried
    assert uncovered(found) == []


def test_a_cell_that_is_left_out_is_named() -> None:
    """The check for completeness names the very cell that nothing covers."""
    missing = Cell(Front.NODE_PORT, TrafficPolicy.LOCAL, Origin.REMOTE_POD, True, Protocol.SCTP, Case.DRAINING_HERE)
    assert uncovered({cell for cell in all_cells() if cell != missing}) == [
        "node port, policy Local, from remote pod, IPv6 SCTP, endpoints terminating here, ready away"
    ]


def test_a_cell_that_behaves_otherwise_is_named() -> None:
    """The comparison names a cell whose outcome isn't the specified one, and both outcomes."""
    cell = Cell(Front.CLUSTER_IP, TrafficPolicy.CLUSTER, Origin.POD, False, Protocol.TCP, Case.NOWHERE)
    assert differences({cell: {DROPPED}}, SETUPS["ClusterCIDR"]) == [
        "ClusterIP, policy Cluster, from pod, IPv4 TCP, endpoints none that is usable: "
        "['<DROPPED>'], not ['<REJECTED (tcp-reset)>']"
    ]
