"""From the cluster's state to facts: every policy decision about one Service port is taken here.

The outcome is membership.  fronts.py decides which fronts a Service port has.  The sets of each front, and the chain
that its verdict names, follow from its kind and the traffic policy:

    front                    list for all sources       for local sources and the node    masqueraded
    ClusterIP, Cluster       cluster list               the same                          sources that aren't local
    ClusterIP, Local         local list                 the same                          sources that aren't local
    external, Cluster        cluster list               the same                          always
    external, Local          local list                 cluster list                      the node only

External means externalIPs, load balancer IPs and node ports.  A front with an empty list draws nothing.  Then, or if a
packet slips between two generations, the packet is rejected if its front is in `no-endpoints`, and dropped if not.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any, NamedTuple

from nftproxy.model.addresses import Address, Family, Protocol, is_within, of_family
from nftproxy.model.annotations import PLAIN
from nftproxy.model.objects import ObjectKey, Place, Service, ServicePort, TrafficPolicy
from nftproxy.policy.choosing.choice import ChoiceCache
from nftproxy.policy.choosing.verdicts import Choice, choose
from nftproxy.policy.claims import NODE, Claim
from nftproxy.policy.drawing import Drawing
from nftproxy.policy.extension import UNRESTRICTED, AddToPort, CompiledPort, CompiledService, Extension, Settings
from nftproxy.policy.facts import PortFacts, Row, Slots
from nftproxy.policy.fronts import (
    ClaimedFront,
    claimed_fronts,
    has_own_list,
    restricting_ranges,
)
from nftproxy.policy.ranges import NO_LIST, range_keys
from nftproxy.policy.restrictions import guarded_addresses, restriction
from nftproxy.policy.state import ClusterState

MOST_KNOWN = 10_000
"""Fronts that are known of all Services together, at some 0.5 kB each."""


class PortKey(NamedTuple):
    """The identity of a Service port, which owns a block of each family's generation."""

    service: ObjectKey
    name: str
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.service}:{self.name}" if self.name else str(self.service)


def port_keys(service: Service) -> list[PortKey]:
    """The owners of a Service's blocks: its ports, or a nameless port if it has none."""
    return [PortKey(service.key, port.name, port.protocol) for port in service.ports] or [
        PortKey(service.key, "", Protocol.TCP)
    ]


def compile_service(
    state: ClusterState,
    settings: Settings,
    family: Family,
    service: Service,
    *,
    only: ServicePort | None = None,
    cache: ChoiceCache | None = None,
    known: KnownFronts | None = None,
) -> Iterator[tuple[PortKey, PortFacts]]:
    """Yield the facts for each port of a Service in a family, or only for the port `only`.

    A Service without a ClusterIP in the family yields nothing.

    `cache` and `known` save time if the same Services are compiled again and again.  They change no outcome.
    """
    cluster_ips = of_family(service.cluster_ips, family)
    if not cluster_ips:
        return
    if not service.ports:
        yield from ((owner, PortFacts(protocol="tcp", cluster_ips=cluster_ips)) for owner in port_keys(service))
    extensions = settings.everywhere if service.options is PLAIN else settings.extensions_of(service)
    own = _OwnSources.of(service, state, extensions, family)
    adding: list[AddToPort] = []
    if extensions:
        given = CompiledService(state, settings, family, service, own.list, own.allowed, own.guarded_ips)
        adding = [each.ports(given) for each in extensions if each.ports]
    endpoints = state.endpoints_of(service, family)
    claimed = None if known is None else known.of.get((family, service.key))
    if claimed is None:
        claimed = tuple(claimed_fronts(state, settings.config, family, service))
        if known is not None:
            known.put(family, service.key, claimed)
    for port, fronts in claimed:
        if only is not None and port != only:
            continue
        had = [each for each in fronts if not each.denial]
        choice = choose(endpoints, port, cache)
        drawing = Drawing(family, service, port, state.node.name, settings, state)
        compiler = _PortCompiler(own, choice, drawing, state.own_addresses)
        fields: dict[str, Any] = compiler.collected(had)
        if adding:
            compiled = CompiledPort(port, had, choice, compiler.untranslated(had))
            fields["additions"] = tuple(filter(None, [add(compiled) for add in adding]))
        facts = PortFacts(port.protocol.value, cluster_ips, **fields)
        if facts.allowed:
            own = own.without_allowed()
        yield PortKey(service.key, port.name, port.protocol), facts


ClaimedFronts = tuple[tuple[ServicePort, list[ClaimedFront]], ...]
"""The ports of a Service, each with the fronts that it claims in a family."""


class KnownFronts:
    """The fronts that Services claim in a family, as long as nothing but their EndpointSlices changes.

    Those that were found first are evicted.  A Service with more than `MOST_KNOWN` fronts is never known.
    """

    def __init__(self) -> None:
        self.of: dict[tuple[Family, ObjectKey], ClaimedFronts] = {}
        self.count = 0

    def put(self, family: Family, service: ObjectKey, found: ClaimedFronts) -> None:
        """Note the fronts of a Service, which aren't known."""
        self.of[family, service] = found
        self.count += _count(found)
        while self.count > MOST_KNOWN:
            self._forget(next(iter(self.of)))

    def drop(self, services: Iterable[ObjectKey]) -> None:
        """Forget the fronts of Services that may have other claims or other fronts."""
        for family in Family if self.of else ():
            for each in services:
                if (family, each) in self.of:
                    self._forget((family, each))

    def _forget(self, key: tuple[Family, ObjectKey]) -> None:
        self.count -= _count(self.of.pop(key))


def _count(found: ClaimedFronts) -> int:
    """The number of fronts."""
    return sum([len(fronts) for _, fronts in found])


class _PortCompiler(NamedTuple):
    """Finds the sets and maps in which a port's fronts are members."""

    own: _OwnSources
    choice: Choice
    drawing: Drawing
    own_addresses: Collection[Address]

    def collected(self, had: Sequence[ClaimedFront]) -> dict[str, tuple[Any, ...]]:
        """The memberships of all fronts that the port has, by field of PortFacts."""
        found = defaultdict[str, list[Any]](list)
        rows = {policy: self._rows(policy) for policy in {policy for claimed in had for _, policy in claimed.lists}}
        untranslated = self.untranslated(had)
        for claimed in had:
            is_translated = claimed.claim not in untranslated
            for field, member in itertools.chain(self._drawn(claimed, rows), self._sets(claimed, is_translated)):
                found[field].append(member)
        if self.drawing.remembered:
            found["sticky"] = list(map(_by_pod, found["endpoints"]))
        if found["endpoints"]:
            found["hairpins"] = self._hairpins()
        if found["guarded"]:
            found["allowed"] = [(self.own.list, source) for source in self.own.allowed]
        shared = {field: tuple(dict.fromkeys(found.pop(field, ()))) for field in ("lists", "draws")}
        return {field: tuple(members) for field, members in found.items()} | shared

    def _rows(self, policy: TrafficPolicy) -> tuple[Row, ...]:
        candidates = self.choice.local if policy is TrafficPolicy.LOCAL else self.choice.cluster
        return self.drawing.rows(candidates, policy) if candidates else ()

    def untranslated(self, had: Sequence[ClaimedFront]) -> Collection[Claim]:
        """The external fronts that are an endpoint's own address and port, as of a server in the node's network.

        DNAT to the packet's own destination doesn't count as translation.
        """
        claims = [each.claim for each in had if each.is_external]
        ports = {claim.port for claim in claims}
        drawn = itertools.chain(self.choice.cluster, self.choice.local) if ports else ()
        places = {each.place for each in drawn if each.place.port in ports}
        own_ports = {place.port for place in places if place.address in self.own_addresses}
        return {
            claim
            for claim in claims
            if (claim.port in own_ports if claim.address == NODE else Place(claim.address, claim.port) in places)
        }

    def _hairpins(self) -> list[Place]:
        """This node's endpoints: a packet from an endpoint to itself, through a Service, needs another source address.

        They are the local list: the cluster list has no other endpoints of this node.  A silent endpoint may be left
        out of one list alone, and counts here.
        """
        return [each.candidate.place for each in self.choice.here if each.local.is_usable]

    def _drawn(
        self, claimed: ClaimedFront, rows: Mapping[TrafficPolicy, tuple[Row, ...]]
    ) -> Iterator[tuple[str, object]]:
        """The lists that a front draws from."""
        front = claimed.front
        for field, policy in claimed.lists:
            if rows[policy]:
                facts = self.drawing.list(front, policy)
                draw = self.drawing.draw(front, policy, len(rows[policy]))
                yield field, (front, draw.of_port)
                yield "lists", facts
                yield "draws", draw
                yield "endpoints", Slots(facts.list, front, rows[policy])
            elif field == "services":  # the Service owns the front, so it mustn't match as another's node port
                yield field, (front, self.drawing.nothing)

    def _sets(self, claimed: ClaimedFront, is_translated: bool) -> Iterator[tuple[str, object]]:
        """The sets and plain maps that a front is in."""
        front, is_local = claimed.front, claimed.policy is TrafficPolicy.LOCAL
        if is_translated:
            yield "fronts", front
            if not self.choice.has_endpoints:
                yield "no_endpoints", front
        if claimed.is_external:
            yield "local_policy" if is_local else "masqueraded", front
            if claimed.claim.address != NODE and claimed.claim.address in self.own.guarded_ips:
                yield "guarded", (front, self.own.list)
        for _, address in self.drawing.remembered:
            yield "affinities", (front, address)


def _by_pod(slots: Slots) -> Slots:
    """Affinity is to a pod, so an address that serves at two ports is entered once, with the lower port.

    The rows keep the order of their slots, in which few rows move as endpoints come or go.
    """
    found: dict[str, Row] = {}
    for row in slots.rows:
        _, address, port = row
        known = found.get(address)
        if known is None or port < known[2]:
            found[address] = row
    return Slots(slots.list, slots.front, tuple(found.values()))


class _OwnSources(NamedTuple):
    """The loadBalancerSourceRanges of a Service: the addresses guarded, the list's name, and the sources on it.

    All addresses and ports of a Service share a list, so that ports don't multiply the ranges.
    """

    guarded_ips: tuple[Address, ...]
    list: Address
    allowed: tuple[str, ...]

    @classmethod
    def of(cls, service: Service, state: ClusterState, extensions: Sequence[Extension], family: Family) -> _OwnSources:
        """The restriction of a Service in a family.

        A range that contains the node's own address admits the load balancer addresses too: packets from the node to
        these addresses may have them as their source (kube-proxy does the same).
        """
        added = restriction(extensions, service, family) if extensions else UNRESTRICTED
        if not service.source_ranges and not added.denies:  # as with nearly every Service
            return cls((), NO_LIST[family], ())
        ranges = restricting_ranges(service, family)
        guarded = guarded_addresses(service, family, added)
        if not has_own_list(state, service, family):
            return cls(guarded, NO_LIST[family], ())
        own = of_family(state.node.addresses, family)[:1]
        if any(is_within(address, ranges) for address in own):
            ranges += [ip_network(address) for address in of_family(service.load_balancer_ips, family)]
        return cls(guarded, of_family(service.cluster_ips, family)[0], range_keys(ranges))

    def without_allowed(self) -> _OwnSources:
        """This restriction without the sources on the list, which only a single port of the Service contributes."""
        return self._replace(allowed=())
