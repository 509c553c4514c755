"""The packets that show what an explanation says: one for each kind of source that fares differently.

A question may leave the client open, or name a kind of source; a packet can't.  So each packet gets an address that is
typical of its kind, and the case that the kernel is held to is the one for exactly that client.

Whoever sends them (nftproxy/trace) needs to know what the node is like: that is part of the plan, so that an agent can
make it for a process that knows nothing of the cluster.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Generator, Iterable, Iterator

import msgspec

from nftproxy.explanation.answer import Case, Place
from nftproxy.explanation.clients import Client, clients, kind_of, own_addresses
from nftproxy.explanation.explain import explain, explaining
from nftproxy.explanation.question import Kind, Question, Source, ToAddress
from nftproxy.model.addresses import (
    Address,
    Family,
    Network,
    contains,
    family_of,
    is_loopback,
    of_family,
    parse_virtual_address,
)
from nftproxy.model.pods import NO_PODS, Pods
from nftproxy.model.settings import Config, DetectLocalMode
from nftproxy.model.steps import finish
from nftproxy.pipeline import Pipeline

OUTSIDERS = {
    Family.IPV4: (Address("198.51.100.200"), Address("192.0.2.200")),
    Family.IPV6: (Address("2001:db8:100::c8"), Address("2001:db8:200::c8")),
}
"""Clients outside, of the ranges for documentation (RFC 5737, RFC 3849); the second where source ranges decide."""
STRAY_PODS = {
    Family.IPV4: (Address("100.64.0.200"), Address("100.64.0.201")),
    Family.IPV6: (Address("fd00:64::c8"), Address("fd00:64::c9")),
}
"""Pods of a cluster whose ranges aren't known: in the shared address space (RFC 6598), and a local one (RFC 4193)."""
STAND_INS = {Family.IPV4: Address("192.0.0.8"), Family.IPV6: Address("100::1")}
"""What a node is called whose address isn't known: the dummy address (RFC 7600), and one of the prefix that discards
(RFC 6666), which nothing else has."""
PODS_INTERFACE, UPLINKS = "cni0", ("eth0", "uplink")
INTERFACE_LENGTH = 15  # characters: IFNAMSIZ - 1
TRIES = 300
"""Addresses of a range that are looked at for one that is nobody's: more than a node has pods."""


class NodeFacts(msgspec.Struct, frozen=True):
    """What a throw-away node must have of the real one.

    `addresses` are those on its interfaces, the main ones first, and at least one of each family; `pod_networks` are
    CIDRs.  Packets of its pods come in through `pods_interface`, all others through `uplink`.
    """

    addresses: tuple[Address, ...]
    pod_networks: tuple[str, ...] = ()
    pods_interface: str = PODS_INTERFACE
    uplink: str = UPLINKS[0]


class Packet(msgspec.Struct, frozen=True):
    """A packet that opens a connection to a place, from a source of which kind and address are known.

    `case` is what must become of it.
    """

    place: Place
    kind: Kind
    source: Address
    case: Case


class Plan(msgspec.Struct, frozen=True):
    """What to send, and through what kind of node."""

    node: NodeFacts
    packets: tuple[Packet, ...]


def plan(pipeline: Pipeline, question: Question, pods: Pods = NO_PODS) -> Plan:
    """The packets that a question is about; none to loopback addresses, where no rule serves.

    Args:
        pipeline: has seen the cluster.
        question: to where, and from whom; without a source, from each kind that fares differently.
        pods: names of pods by their addresses.
    """
    return finish(planning(pipeline, question, pods))


def planning(pipeline: Pipeline, question: Question, pods: Pods = NO_PODS) -> Generator[None, None, Plan]:
    """As `plan`, stopping after each place, so that others may have their turn."""
    facts = node_facts(pipeline)
    explanation = yield from explaining(pipeline, question, pods)
    packets: list[Packet] = []
    for place in explanation.places:
        if not is_loopback(place.address):
            packets += _packets(pipeline, facts, place, question.source, pods)
        yield
    strays = {packet.source for packet in packets if packet.kind is Kind.POD and not _is_in(facts, packet.source)}
    networks = (*facts.pod_networks, *(str(ipaddress.ip_network(each)) for each in sorted(strays)))
    return Plan(msgspec.structs.replace(facts, pod_networks=networks), tuple(packets))


def _is_in(facts: NodeFacts, address: Address) -> bool:
    """Whether what is for an address goes to the node's pods: a rejection must find back to a pod."""
    return any(contains(ipaddress.ip_network(cidr), address) for cidr in facts.pod_networks)


def node_facts(pipeline: Pipeline) -> NodeFacts:
    """What a copy of the pipeline's node must have."""
    state, own = pipeline.state, own_addresses(pipeline.state)
    ordered = dict.fromkeys((*state.node.addresses, *sorted(own)))
    usable = [each for each in ordered if each in own and _is_usable(each)]
    unknown = [STAND_INS[family] for family in Family if not of_family(usable, family)]
    interface = pods_interface(pipeline.settings.config)
    uplink = next(each for each in UPLINKS if not each.startswith(interface.removesuffix("0")))
    return NodeFacts(tuple(usable + unknown), tuple(map(str, state.node.pod_cidrs)), interface, uplink)


def pods_interface(config: Config) -> str:
    """An interface that the rules take for that of a pod, if they go by interfaces (detectLocalMode)."""
    match config.detect_local_mode:
        case DetectLocalMode.BRIDGE_INTERFACE:
            return config.bridge_interface
        case DetectLocalMode.INTERFACE_NAME_PREFIX:
            return f"{config.interface_name_prefix}0"[:INTERFACE_LENGTH]
        case _:
            return PODS_INTERFACE


def _is_usable(address: Address) -> bool:
    """Whether packets may come from it: neither loopback nor link-local, multicast, broadcast or unspecified."""
    try:
        parse_virtual_address(address)
    except ValueError:
        return False
    return True


def _packets(pipeline: Pipeline, facts: NodeFacts, place: Place, source: Source | None, pods: Pods) -> Iterator[Packet]:
    """A packet for each case, from the first source that it is about."""
    seen: set[object] = set()
    for client in clients(pipeline, place.family, source, pods):
        for address in _addresses(pipeline, facts, place, client):
            case = _case(pipeline, facts, place, client.kind, address, pods)
            what = case.fate, case.rejection, case.list, case.is_masqueraded, case.endpoints
            if what not in seen:
                seen.add(what)
                yield Packet(place, client.kind, address, case)


def _case(pipeline: Pipeline, facts: NodeFacts, place: Place, kind: Kind, address: Address, pods: Pods) -> Case:
    interfaces = {Kind.NODE: "", Kind.POD: facts.pods_interface}
    source = Source(kind, address, interfaces.get(kind, facts.uplink))
    exactly = Question(ToAddress(place.address, place.protocol, place.port), source)
    return explain(pipeline, exactly, pods).places[0].cases[0]


def _addresses(pipeline: Pipeline, facts: NodeFacts, place: Place, client: Client) -> Iterator[Address]:
    """Addresses for a client: its own, or one that is typical of its kind; where ranges decide, in and out of these."""
    if client.address:
        yield client.address
        return
    yield _typical(pipeline, facts, place.family, client)
    ranges = (*place.source_ranges, *place.denied_ranges)
    if ranges and client.kind is not Kind.NODE:
        inside = (address for cidr in ranges for address in _some(ipaddress.ip_network(cidr)))
        yield from itertools.islice((each for each in inside if kind_of(pipeline, each) is client.kind), 1)
        yield from OUTSIDERS[place.family][1:] if client.kind is Kind.OUTSIDE else ()


def _typical(pipeline: Pipeline, facts: NodeFacts, family: Family, client: Client) -> Address:
    state, config = pipeline.state, pipeline.settings.config
    match client.kind:
        case Kind.NODE:
            return of_family(facts.addresses, family)[0]
        case Kind.OUTSIDE:
            return OUTSIDERS[family][0]
        case Kind.POD:
            ranges: Iterable[Network] = (*client.networks, *config.cluster_cidrs)
        case Kind.REMOTE_POD:
            ranges = config.cluster_cidrs
    own = [cidr for cidr in state.node.pod_cidrs if family_of(cidr) is family]
    is_near = client.kind is Kind.POD and bool(own)

    def is_nobodys(address: Address) -> bool:
        within = any(ipaddress.ip_address(address) in cidr for cidr in own)
        return within is is_near and address not in facts.addresses and not list(state.endpoints_at(address))

    found = itertools.chain.from_iterable(_some(cidr) for cidr in ranges if family_of(cidr) is family)
    free = itertools.chain(filter(is_nobodys, found), STRAY_PODS[family])
    # Where both kinds may have the same addresses, each has one of its own: a rejection goes where the address is.
    return next(itertools.islice(free, int(client.kind is Kind.REMOTE_POD), None))


def _some(network: Network) -> Iterator[Address]:
    """Some addresses of a network, the last ones first: those at its beginning are gateways and the first pods."""
    last = network.num_addresses - 1
    numbers = range(last - 1, max(0, last - 1 - TRIES), -1) if last > 1 else range(1)
    yield from filter(_is_usable, (Address(str(network[number])) for number in numbers))
