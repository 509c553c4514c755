"""The documented deviation from kube-proxy that explains another proxy's treatment of a connection.

A deviation (docs/semantics.md) is a rule of ours that kube-proxy lacks.  For each deviation that a connection can show
there are alternative worlds, in which our rules do what kube-proxy does in the given world.  For example, a contested
front goes to another of its claimants, or an address no longer belongs to another Service.  If the oracle of such a
world allows an outcome, the deviation explains it.  Each deviation is also tried without annotations, as kube-proxy
ignores those of the Service that captures a connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from nftproxy.model.addresses import Address, Family, family_of, parse_network
from nftproxy.model.annotations import PLAIN, PLAIN_SLICE
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.model.settings import Config, NodePortAddresses
from nftproxy_conformance.lab.outcome import Kind, Outcome, Probe
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.world import View, World, virtual_ips

REJECTED = "D4"
"""We reject TCP by a reset, kube-proxy by an ICMP error.  Any way of rejection is accepted."""
ANNOTATIONS = "D19"
"""Only we have annotations, and words of the configuration."""
OWN_SETTINGS = (
    "algorithm",
    "external_addresses",
    "external_ip_cidrs",
    "failover",
    "ping",
    "protected_ports",
    "service_counts",
)
"""The settings of nftproxy alone that made-up worlds vary."""
_DEFAULTS = Config()
EVERYTHING = {Family.IPV4: parse_network("0.0.0.0/0"), Family.IPV6: parse_network("::/0")}
SHOWN = frozenset({"D3", REJECTED, "D8", "D9", "D10", "D11", "D15", ANNOTATIONS})
"""The deviations that single connections of a lab can show."""


def deviation_of(world: World, probe: Probe, seen: Iterable[Outcome], view: View, earlier: Sequence[World]) -> str:
    """The number of a deviation that allows all outcomes of a connection, or "".

    Args:
        world: the world of the trial.
        probe: the connection.
        seen: its outcomes.
        view: reduces an outcome to the part that counts.
        earlier: the worlds since the proxy started.
    """
    small = _about(world, probe)
    plain = (each for other in _without_own_words(small) for each in _alternatives(other, probe, earlier))
    for deviation, other in itertools.chain([(REJECTED, small)], _alternatives(small, probe, earlier), plain):
        allowed = {_plainly(view(outcome)) for outcome in Oracle(other).expected(probe)}
        if {_plainly(outcome) for outcome in seen} <= allowed:
            return deviation if deviation != REJECTED or _is_rejection(seen) else ""
    return ""


def _plainly(outcome: Outcome) -> Outcome:
    """An outcome without the way of a rejection."""
    return Outcome(Kind.REJECTED) if outcome.kind is Kind.REJECTED else outcome


def _is_rejection(seen: Iterable[Outcome]) -> bool:
    return all(outcome.kind is Kind.REJECTED for outcome in seen)


def _about(world: World, probe: Probe) -> World:
    """The part of a world that decides about a connection, as clusters may have thousands of Services."""
    addresses = {probe.address, probe.source}
    serving = {each.service for each in world.slices if any(pod.address in addresses for pod in each.endpoints)}
    near = [each for each in world.services if each.key in serving or _wants(each, Address(probe.address), probe.port)]
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
        ("D10", _other_owners(world, probe)),
        ("D11", _without_protection(world, probe)),
        ("D15", _without_portless(world, probe)),
        (ANNOTATIONS, _without_own_words(world)),
    ):
        yield from ((deviation, other) for other in worlds)


def _other_entries(world: World) -> Iterator[World]:
    """For an address in two slices, either entry counts."""
    for first in (world.slices, world.slices[::-1]):
        yield world._replace(slices=tuple(_without_repeats(first)))


def _without_repeats(slices: Iterable[EndpointSlice]) -> Iterator[EndpointSlice]:
    known: set[tuple[object, ...]] = set()
    for each in slices:
        left = [pod for pod in each.endpoints if (each.service, each.ports, pod.address) not in known]
        known |= {(each.service, each.ports, pod.address) for pod in left}
        yield structs.replace(each, endpoints=tuple(left))


def _as_before(world: World, earlier: Sequence[World]) -> Iterator[World]:
    """The Node is that of the start, and ServiceCIDRs are those of any earlier world."""
    nodes = [each.node for each in earlier[:1]] + [world.node]
    for node, ranges in itertools.product(nodes, dict.fromkeys(each.service_cidrs for each in earlier)):
        other = world._replace(node=node, service_cidrs=ranges)
        if other != world:
            yield other


def _all_addresses_serve(world: World, probe: Probe) -> Iterator[World]:
    """A family without a node address serves node ports on all local addresses."""
    family = family_of(Address(probe.address))
    if not any(family_of(each) is family for each in world.node.addresses):
        everywhere = NodePortAddresses(networks=(EVERYTHING[family],))
        yield world._replace(config=structs.replace(world.config, node_port_addresses=everywhere))


def _other_owners(world: World, probe: Probe) -> Iterator[World]:
    """A contested front goes to any of its claimants."""
    rivals = [each for each in world.services if _wants(each, Address(probe.address), probe.port)]
    for service in rivals if len(rivals) > 1 else ():
        others = (each for each in world.services if each.key != service.key)
        yield world._replace(services=(structs.replace(service, created=-1), *others))
        yield world._replace(services=(service,))


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
    slices = tuple(structs.replace(each, options=PLAIN_SLICE) for each in world.slices)
    other = world._replace(config=config, services=services, slices=slices)
    if other != world:
        yield other
