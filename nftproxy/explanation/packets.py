"""The packets that try an explanation: a packet for each kind of source with an outcome of its own.

A question may leave the client open, or name a kind of source.  A packet has an address, so each packet gets an address
that is typical of its kind, and its expected outcome is the case of exactly that client.

The plan includes the facts of the node, so that an agent can make a plan for a process without the cluster's objects
(nftproxy/trace).
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Generator, Iterable, Iterator

import msgspec

from nftproxy.explanation.answer import Case, ExplainedPlace
from nftproxy.explanation.answering import explain, explaining
from nftproxy.explanation.clients import Client, clients, kind_of
from nftproxy.explanation.question import Question, Source, SourceKind, ToAddress
from nftproxy.model.addresses import (
    Address,
    Family,
    Network,
    family_of,
    is_loopback,
    is_within,
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
"""Clients outside, from the ranges for documentation (RFC 5737, RFC 3849).  Source ranges are tried with both."""
STRAY_PODS = {
    Family.IPV4: (Address("100.64.0.200"), Address("100.64.0.201")),
    Family.IPV6: (Address("fd00:64::c8"), Address("fd00:64::c9")),
}
"""Pods of a cluster with unknown ranges: in the shared address space (RFC 6598) and a local range (RFC 4193)."""
STAND_INS = {Family.IPV4: Address("192.0.0.8"), Family.IPV6: Address("100::1")}
"""Addresses of a node without a known address: the dummy address (RFC 7600), and an address of the discard prefix
(RFC 6666).  Nothing else has them."""
PODS_INTERFACE, UPLINKS = "cni0", ("eth0", "uplink")
INTERFACE_LENGTH = 15  # characters: IFNAMSIZ - 1
TRIES = 300
"""Addresses of a range that are tried in search of a free address: more than a node has pods."""


class NodeFacts(msgspec.Struct, frozen=True):
    """The facts that a throw-away node copies from the real node.

    `addresses` are the addresses on its interfaces: the main addresses first, and at least an address of each family.
    `pod_networks` are CIDRs.  Packets of its pods come in through `pods_interface`, all other packets through `uplink`.
    """

    addresses: tuple[Address, ...]
    pod_networks: tuple[str, ...] = ()
    pods_interface: str = PODS_INTERFACE
    uplink: str = UPLINKS[0]


class Packet(msgspec.Struct, frozen=True):
    """A packet that opens a connection to a place.  `case` is the expected outcome."""

    place: ExplainedPlace
    kind: SourceKind
    source: Address
    case: Case


class Plan(msgspec.Struct, frozen=True):
    """The packets to send, and the node to send them through."""

    node: NodeFacts
    packets: tuple[Packet, ...]


def plan(pipeline: Pipeline, question: Question, pods: Pods = NO_PODS) -> Plan:
    """Plan the packets for a question.  Loopback addresses get no packet, as no rule serves them.

    Args:
        pipeline: has seen the cluster.
        question: the destination and the source.  Without a source, each kind with an outcome of its own gets a packet.
        pods: names of pods by their addresses.
    """
    return finish(planning(pipeline, question, pods))


def planning(pipeline: Pipeline, question: Question, pods: Pods = NO_PODS) -> Generator[None, None, Plan]:
    """As `plan`, yielding after each place, so that the caller can do other work in between."""
    facts = node_facts(pipeline)
    explanation = yield from explaining(pipeline, question, pods)
    packets: list[Packet] = []
    for place in explanation.places:
        if not is_loopback(place.address):
            packets += _packets(pipeline, facts, place, question.source, pods)
        yield
    strays = {packet.source for packet in packets if packet.kind is SourceKind.POD and not _is_in(facts, packet.source)}
    networks = (*facts.pod_networks, *(str(ipaddress.ip_network(each)) for each in sorted(strays)))
    return Plan(msgspec.structs.replace(facts, pod_networks=networks), tuple(packets))


def _is_in(facts: NodeFacts, address: Address) -> bool:
    """True if an address is one of the node's pods, to which a rejection must be routed back."""
    return is_within(address, [*map(ipaddress.ip_network, facts.pod_networks)])


def node_facts(pipeline: Pipeline) -> NodeFacts:
    """The facts that a copy of the pipeline's node needs."""
    state, own = pipeline.state, pipeline.state.own_addresses
    ordered = dict.fromkeys((*state.node.addresses, *sorted(own)))
    usable = [each for each in ordered if each in own and _is_usable(each)]
    unknown = [STAND_INS[family] for family in Family if not of_family(usable, family)]
    interface = pods_interface(pipeline.settings.config)
    uplink = next(each for each in UPLINKS if not each.startswith(interface.removesuffix("0")))
    return NodeFacts(tuple(usable + unknown), tuple(map(str, state.node.pod_cidrs)), interface, uplink)


def pods_interface(config: Config) -> str:
    """An interface that the rules recognise as a pod's, where detectLocalMode goes by interfaces."""
    match config.detect_local_mode:
        case DetectLocalMode.BRIDGE_INTERFACE:
            return config.bridge_interface
        case DetectLocalMode.INTERFACE_NAME_PREFIX:
            return f"{config.interface_name_prefix}0"[:INTERFACE_LENGTH]
        case _:
            return PODS_INTERFACE


def _is_usable(address: Address) -> bool:
    """True if packets may come from an address: not loopback, link-local, multicast, broadcast or unspecified."""
    try:
        parse_virtual_address(address)
    except ValueError:
        return False
    return True


def _packets(
    pipeline: Pipeline, facts: NodeFacts, place: ExplainedPlace, source: Source | None, pods: Pods
) -> Iterator[Packet]:
    """A packet for each case, from the first source of the case."""
    seen: set[object] = set()
    for client in clients(pipeline, place.family, source, pods):
        for address in _addresses(pipeline, facts, place, client):
            case = _case(pipeline, facts, place, client.kind, address, pods)
            what = case.fate, case.rejection, case.list, case.is_masqueraded, case.endpoints
            if what not in seen:
                seen.add(what)
                yield Packet(place, client.kind, address, case)


def _case(
    pipeline: Pipeline, facts: NodeFacts, place: ExplainedPlace, kind: SourceKind, address: Address, pods: Pods
) -> Case:
    interfaces = {SourceKind.NODE: "", SourceKind.POD: facts.pods_interface}
    source = Source(kind, address, interfaces.get(kind, facts.uplink))
    exactly = Question(ToAddress(place.address, place.protocol, place.port), source)
    return explain(pipeline, exactly, pods).places[0].cases[0]


def _addresses(pipeline: Pipeline, facts: NodeFacts, place: ExplainedPlace, client: Client) -> Iterator[Address]:
    """Addresses for a client: its own, or a typical address of its kind.  Ranges are tried from inside and outside."""
    if client.address:
        yield client.address
        return
    yield _typical(pipeline, facts, place.family, client)
    ranges = (*place.source_ranges, *(cidr for each in place.restrictions for cidr in each.ranges))
    if ranges and client.kind is not SourceKind.NODE:
        inside = (address for cidr in ranges for address in _some(ipaddress.ip_network(cidr)))
        yield from itertools.islice((each for each in inside if kind_of(pipeline, each) is client.kind), 1)
        yield from OUTSIDERS[place.family][1:] if client.kind is SourceKind.OUTSIDE else ()


def _typical(pipeline: Pipeline, facts: NodeFacts, family: Family, client: Client) -> Address:
    state, config = pipeline.state, pipeline.settings.config
    match client.kind:
        case SourceKind.NODE:
            return of_family(facts.addresses, family)[0]
        case SourceKind.OUTSIDE:
            return OUTSIDERS[family][0]
        case SourceKind.POD:
            ranges: Iterable[Network] = (*client.networks, *config.cluster_cidrs)
        case SourceKind.REMOTE_POD:
            ranges = config.cluster_cidrs
    own = [cidr for cidr in state.node.pod_cidrs if family_of(cidr) is family]
    is_near = client.kind is SourceKind.POD and bool(own)

    def is_nobodys(address: Address) -> bool:
        within = any(ipaddress.ip_address(address) in cidr for cidr in own)
        return within is is_near and address not in facts.addresses and not list(state.endpoints_at(address))

    found = itertools.chain.from_iterable(_some(cidr) for cidr in ranges if family_of(cidr) is family)
    free = itertools.chain(filter(is_nobodys, found), STRAY_PODS[family])
    # The two kinds get different addresses even where their ranges are the same: a rejection is routed by address.
    return next(itertools.islice(free, int(client.kind is SourceKind.REMOTE_POD), None))


def _some(network: Network) -> Iterator[Address]:
    """Some addresses of a network, from its end: gateways and the first pods have the addresses at its beginning."""
    last = network.num_addresses - 1
    numbers = range(last - 1, max(0, last - 1 - TRIES), -1) if last > 1 else range(1)
    yield from filter(_is_usable, (Address(str(network[number])) for number in numbers))
