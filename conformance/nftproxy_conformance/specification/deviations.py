"""The documented deviation from kube-proxy that explains another proxy's treatment of a connection.

A deviation (docs/semantics.md) is a rule of ours that kube-proxy lacks.  For each deviation that a connection can show
there are alternative worlds, in which our rules do what kube-proxy does in the given world.  For example, a contested
front goes to another of its claimants, or an address no longer belongs to another Service.  If the oracle of such a
world allows an outcome, the deviation explains it.  Two deviations at once are tried after each alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from nftproxy.model.addresses import Address, Family, family_of, parse_network
from nftproxy.model.annotations import PLAIN
from nftproxy.model.objects import Endpoints, EndpointSlice, Service
from nftproxy.model.settings import Config, NodePortAddresses
from nftproxy_conformance.lab.outcome import Kind, Outcome, Probe
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import View, World, of_family, place_of, virtual_ips

REJECTED = "D4"
"""We reject TCP by a reset, kube-proxy by an ICMP error.  Any way of rejection is accepted."""
MEMORY = "D5"
"""kube-proxy remembers a client for a Service port, whichever of its fronts the client used."""
OWNERS = "D10"
"""We give a contested front to the older Service, kube-proxy to a claimant that may change at each sync."""
ANNOTATIONS = "D19"
"""Only we have annotations, and words of the configuration."""
ASSOCIATIONS = "D20"
"""kube-proxy lets SCTP associations stay at endpoints that have left."""
FLOWS = "D23"
"""kube-proxy lets UDP flows stay that a new policy doesn't allow, or whose Service has no endpoint."""
RESTRICTIONS = "D21"
"""kube-proxy lets flows go on that nobody has answered."""
OWN_SETTINGS = ("declared", "external_ip_cidrs", "protected_ports")
"""The settings of nftproxy alone that made-up worlds vary."""
_DEFAULTS = Config()
EVERYTHING = {Family.IPV4: parse_network("0.0.0.0/0"), Family.IPV6: parse_network("::/0")}
ELSEWHERE = {Family.IPV4: Address("198.19.0.1"), Family.IPV6: Address("2001:2::2:1")}
"""Addresses of no Service (RFC 2544, RFC 5180)."""
SHOWN = frozenset(
    {"D3", REJECTED, MEMORY, "D8", "D9", OWNERS, "D11", "D15", ANNOTATIONS, ASSOCIATIONS, FLOWS, RESTRICTIONS}
)
"""The deviations that single connections of a lab can show."""


def deviation_of(world: World, probe: Probe, seen: Iterable[Outcome], view: View, earlier: Sequence[World]) -> str:
    """The number of a deviation that allows all outcomes of a connection, two numbers of a pair that does, or "".

    Args:
        world: the world of the trial.
        probe: the connection.
        seen: its outcomes.  If the world allows more, they are all outcomes of many tries.
        view: reduces an outcome to the part that counts.
        earlier: the worlds since the proxy started.
    """
    small = _about(world, probe)
    wanted = set(map(_plainly, seen))
    is_missing_some = wanted < _allowed(small, probe, view)
    alone = _alternatives(small, probe, earlier)
    for deviation, other in itertools.chain([(REJECTED, small)], alone, _pairs(small, probe, earlier)):
        allowed = _allowed(other, probe, view)
        if wanted == allowed or (wanted < allowed and not is_missing_some):
            return deviation if deviation != REJECTED or _is_rejection(wanted) else ""
    return ""


def deviation_of_move(world: World, probe: Probe, seen: Iterable[Outcome], view: View, others: Iterable[Probe]) -> str:
    """The number of a deviation by which a remembered client may be sent to another pod, or "".

    Args:
        world: the world of the trial.
        probe: a connection of the client, who must reach the same pod each time.
        seen: its outcomes at other pods.
        view: reduces an outcome to the part that counts.
        others: the connections that were tried.
    """
    small, moved = _about(world, probe), list(seen)
    wanted = set(map(_plainly, moved))
    owners = [_allowed(each, probe, view) for each in _other_owners(small, probe)]
    if owners and wanted <= _allowed(small, probe, view).union(*owners):
        return OWNERS
    for deviation, other in itertools.chain(_alternatives(small, probe, ()), _pairs(small, probe, ())):
        forgets = OWNERS in deviation or not Oracle(other).remembers(probe)
        if forgets and wanted <= _allowed(other, probe, view):
            return deviation
    same_client = [each for each in others if each.source == probe.source]
    oracles = [Oracle(each) for each in (small, *(other for _, other in _alternatives(small, probe, ())))]
    shared = (_is_shared(each, probe, outcome, same_client) for each in oracles for outcome in moved)
    return MEMORY if any(shared) else ""


def _allowed(world: World, probe: Probe, view: View) -> set[Outcome]:
    return {_plainly(view(outcome)) for outcome in Oracle(world).expected(probe)}


def _is_shared(oracle: Oracle, probe: Probe, seen: Outcome, others: Iterable[Probe]) -> bool:
    """Whether another front of the same Service port, with other endpoints, may have sent the client to a pod."""
    mine, pods = oracle.front_of(place_of(probe)), _pods(oracle, probe)
    for other in others:
        front = oracle.front_of(place_of(other))
        if mine and front and (front.service, front.port) == (mine.service, mine.port):
            reached = _pods(oracle, other)
            if seen.endpoint in reached and reached != pods:
                return True
    return False


def _pods(oracle: Oracle, probe: Probe) -> frozenset[object]:
    return frozenset(outcome.endpoint for outcome in oracle.expected(probe))


def _plainly(outcome: Outcome) -> Outcome:
    """An outcome without the way of a rejection."""
    return Outcome(Kind.REJECTED) if outcome.kind is Kind.REJECTED else outcome


def _is_rejection(seen: Iterable[Outcome]) -> bool:
    return all(outcome.kind is Kind.REJECTED for outcome in seen)


def _about(world: World, probe: Probe) -> World:
    """The part of a world that decides about a connection, as clusters may have thousands of Services."""
    address, ends = Address(probe.address), {probe.address, probe.source}
    serving = {each.service for each in world.slices if any(pod.address in ends for pod in each.endpoints)}
    wanting = [each for each in world.services if each.key in serving or _wants(each, address, probe.port)]
    theirs = {own for each in wanting for own in each.cluster_ips}  # the first holder's source ranges count
    near = [each for each in world.services if each in wanting or not theirs.isdisjoint(each.cluster_ips)]
    keys = {each.key for each in near}
    return world._replace(services=tuple(near), slices=tuple(each for each in world.slices if each.service in keys))


def _wants(service: Service, address: Address, port: int) -> bool:
    """Whether a connection to an address and port may be for a Service."""
    node_ports = {service.health_check_node_port, *(each.node_port for each in service.ports)} - {0}
    return address in virtual_ips(service) or port in node_ports


def _alternatives(world: World, probe: Probe, earlier: Sequence[World]) -> Iterator[tuple[str, World]]:
    """Each deviation that may affect a connection, with a world where our rules do what kube-proxy does."""
    for deviation, worlds in (
        ("D3", _other_entries(world)),
        ("D8", _as_before(world, earlier)),
        ("D9", _all_addresses_serve(world, probe)),
        (OWNERS, _other_owners(world, probe)),
        ("D11", _without_protection(world, probe)),
        ("D15", _without_portless(world, probe)),
        (ANNOTATIONS, _without_own_words(world)),
    ):
        yield from ((deviation, other) for other in worlds)


def _pairs(world: World, probe: Probe, earlier: Sequence[World]) -> Iterator[tuple[str, World]]:
    """Two deviations at once.  Annotations are not named, and may be a third: kube-proxy has none in any case."""
    for start in (world, *_without_own_words(world)):
        for first, between in _alternatives(start, probe, earlier):
            for second, other in _alternatives(between, probe, earlier):
                named = {first, second} - {ANNOTATIONS} or {ANNOTATIONS}
                yield " and ".join(sorted(named, key=lambda each: int(each[1:]))), other


def _other_entries(world: World) -> Iterator[World]:
    """For an address in two slices, either entry counts."""
    for first in (world.slices, world.slices[::-1]):
        once = tuple(_without_repeats(first))
        if {each.endpoints for each in once} != {each.endpoints for each in world.slices}:
            yield world._replace(slices=once)


def _without_repeats(slices: Sequence[EndpointSlice]) -> Iterator[EndpointSlice]:
    """The last entry for an address that isn't terminating counts, else the first (pkg/proxy's cache)."""
    winners: dict[tuple[object, ...], tuple[int, int]] = {}
    for number, each in enumerate(slices):
        for place, pod in enumerate(each.endpoints):
            key = each.service, each.ports, pod.address
            if key not in winners or not pod.terminating:
                winners[key] = number, place
    left = set(winners.values())
    for number, each in enumerate(slices):
        kept = Endpoints.of(pod for place, pod in enumerate(each.endpoints) if (number, place) in left)
        yield structs.replace(each, endpoints=kept)


def _as_before(world: World, earlier: Sequence[World]) -> Iterator[World]:
    """The Node is that of the start, and ServiceCIDRs are those of any earlier world."""
    nodes = [each.node for each in earlier[:1]] + [world.node]
    for node, ranges in itertools.product(nodes, dict.fromkeys(each.service_cidrs for each in earlier)):
        other = world._replace(node=node, service_cidrs=ranges)
        if other != world:
            yield other


def _all_addresses_serve(world: World, probe: Probe) -> Iterator[World]:
    """A family without a node address, or without a range to serve, serves node ports on all local addresses."""
    family, asked = family_of(Address(probe.address)), world.config.node_port_addresses
    serving = of_family(world.node.addresses, family) if asked.primary else of_family(asked.networks, family)
    if not serving:
        everywhere = NodePortAddresses(networks=(EVERYTHING[family],))
        yield world._replace(config=structs.replace(world.config, node_port_addresses=everywhere))


def _other_owners(world: World, probe: Probe) -> Iterator[World]:
    """Any claimant may own a contested front or ClusterIP.  A ClusterIP may be no more than an external address."""
    rivals = [each for each in world.services if _wants(each, Address(probe.address), probe.port)]
    cluster_ips = [each for service in world.services for each in service.cluster_ips]
    is_contested = len(rivals) > 1 or len(set(cluster_ips)) < len(cluster_ips)
    for service in rivals if is_contested else ():
        others = (each for each in world.services if each.key != service.key)
        yield world._replace(services=(structs.replace(service, created=-1), *others))
        yield world._replace(services=(service,))
    for service in rivals:
        if probe.address in service.cluster_ips and probe.address in virtual_ips(_elsewhere(service, probe)):
            others = (each for each in world.services if each.key != service.key)
            yield world._replace(services=(_elsewhere(service, probe), *others))


def _elsewhere(service: Service, probe: Probe) -> Service:
    """The Service with another ClusterIP in place of the connection's address."""
    unused = ELSEWHERE[family_of(Address(probe.address))]
    moved = tuple(unused if each == probe.address else each for each in service.cluster_ips)
    return structs.replace(service, cluster_ips=moved, created=-1)


def _without_protection(world: World, probe: Probe) -> Iterator[World]:
    """An external address captures another Service's ClusterIP, or the node's own ports."""
    config = structs.replace(
        world.config, protected_ports=(), healthz_bind_address="0.0.0.0:1", metrics_bind_address="0.0.0.0:1"
    )
    for service in world.services:
        if probe.address in (*service.external_ips, *service.load_balancer_ips):
            yield world._replace(config=config, services=(service,))


def _without_portless(world: World, probe: Probe) -> Iterator[World]:
    """A Service without ports doesn't count."""
    left = tuple(each for each in world.services if each.ports or probe.address not in each.cluster_ips)
    if left != world.services:
        yield world._replace(services=left)


def _without_own_words(world: World) -> Iterator[World]:
    """No annotation has any effect, nor the words of the configuration that kube-proxy lacks."""
    config = structs.replace(world.config, **{name: getattr(_DEFAULTS, name) for name in OWN_SETTINGS})
    services = tuple(structs.replace(each, options=PLAIN) for each in world.services)
    slices = tuple(structs.replace(each, options=PLAIN) for each in world.slices)
    other = world._replace(config=config, services=services, slices=slices)
    if other != world:
        yield other
