"""From the cluster's state to facts: every policy decision about one Service port, and about the node, is taken here.

The outcome is membership.  Which fronts a Service port has is decided in fronts.py; which sets each of them is in, and
which chain its verdict names, follow from its kind and the traffic policy:

    front                    list for all sources       for local sources and the node    masqueraded
    ClusterIP, Cluster       cluster list               the same                          sources that aren't local
    ClusterIP, Local         local list                 the same                          sources that aren't local
    external, Cluster        cluster list               the same                          always
    external, Local          local list                 cluster list                      the node only

External means externalIPs, load balancer IPs and node ports.  A front whose list is empty has no count of endpoints
there; then, or if a packet slips between two generations, the packet is rejected if its front is in `no-endpoints`, and
dropped if not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, collapse_addresses, ip_network
from typing import NamedTuple

from nftproxy.model.addresses import Address, Family, Network, Protocol, contains, family_of, of_family
from nftproxy.model.objects import ObjectKey, Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import Config, Settings
from nftproxy.policy.counts import CONNECTIONS, Reason
from nftproxy.policy.endpoints import Candidate, Choice, choice_for, offers
from nftproxy.policy.facts import COUNTED, DrawFacts, Endings, Front, ListFacts, PortFacts, Slots, TableFacts
from nftproxy.policy.fronts import (
    Reach,
    has_own_list,
    nodeport_addresses,
    reaches,
    restricting_ranges,
    serves_every_address,
)
from nftproxy.policy.local_sources import local_sources
from nftproxy.policy.state import ClusterState

HASH_SEED = "0x6e667470"
"""Any constant will do ("nftp"): with none, nft draws another one at each load, and clients would move."""

# Addresses that nothing on a network has, so that numbers can stand in their place: "this network" (RFC 1122), and what
# was once for IPv4-compatible addresses (RFC 4291, 2.5.5.1), each with room for more endpoints than a cluster has.
_NUMBERS = {Family.IPV4: "0.0.0.0/8", Family.IPV6: "::/96"}

# How connections are masqueraded.  A random port now and then meets a TIME_WAIT that an earlier connection left in the
# pod, and whose entry in connection tracking is gone, since a client that uses a port again replaces the entry.  To
# the pod the peer's clock then seems to run backwards, since timestamps have an offset for each client, with newer
# kernels for each connection ("tcp: secure_seq: add back ports to TS offset": Linux 7.0, 6.12.94 and others).  So it
# ignores the SYN (PAWS, RFC 7323, 5.3).  A client that keeps its ports meets nothing but its own past.  Other
# protocols have no such past, and random ports, which spread evenly, are free for longer: docs/performance.md has the
# figures.
_TCP_KEEPS_ITS_PORT = ("meta l4proto tcp", "masquerade")
_RANDOM_PORTS = ("", "masquerade fully-random")

# kube-proxy's chains that drop what goes to a ClusterIP that it doesn't know are at 0 (nftables mode, 1.36): ours come
# first for Services that it leaves alone, so that these are rejected whichever proxy was started last.
_FILTER, _BEFORE_FILTERS = 0, -1

_LOOPBACK = {Family.IPV4: "127.0.0.0/8", Family.IPV6: "::1"}


class PortKey(NamedTuple):
    """What identifies a Service port: it owns one block of each family's generation."""

    service: ObjectKey
    name: str
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.service}:{self.name}" if self.name else str(self.service)


def compile_table(state: ClusterState, settings: Settings, family: Family) -> TableFacts:
    """The facts for the skeleton of one family's table."""
    config = settings.config
    ip = family.value
    bit = 1 << config.masquerade_bit
    everywhere = serves_every_address(config, family)
    local = local_sources(state.node, config, family)
    return TableFacts(
        table=family.table,
        ip=ip,
        protocols=tuple(protocol.value for protocol in Protocol),
        mark=f"{bit:#x}",
        unmark=f"{bit ^ 0xFFFFFFFF:#x}",
        masquerades=(_RANDOM_PORTS,) if config.masquerade_fully_random else (_TCP_KEEPS_ITS_PORT, _RANDOM_PORTS),
        local_sources=(local.match(family),) if local else (),
        masqueraded_sources=("",) if config.masquerade_all else (local.match(family, "!= "),) if local else (),
        nodeport_matches=(
            (f"{ip} daddr != {_LOOPBACK[family]} fib daddr type local",)
            if everywhere
            else (f"{ip} daddr @nodeport-ips",)
        ),
        remembered_nodeports=("",) if everywhere else (f"ct original {ip} daddr @nodeport-ips",),
        nodeport_addresses=() if everywhere else nodeport_addresses(state, config, family),
        service_cidrs=_collapsed(cidr for cidr in state.service_cidrs if family_of(cidr) is family),
        filter_priority=_BEFORE_FILTERS if config.is_canary else _FILTER,
        counted=(CONNECTIONS, *(reason.value for reason in Reason)) if config.service_counts else (),
        counters=("count-connection",) if config.service_counts else (),
        endings=_endings(config),
    )


def _endings(config: Config) -> Endings:
    return COUNTED if config.service_counts else Endings()


def _collapsed(networks: Iterable[Network]) -> tuple[str, ...]:
    """Networks of one family with overlaps merged, as the kernel's interval sets want them."""
    return tuple(_network_text(network) for network in collapse_addresses(networks))  # type: ignore[type-var]


def _network_text(network: Network) -> str:
    """As nft prints it: a network of one address is that address."""
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


def port_keys(service: Service) -> list[PortKey]:
    """The owners of what a Service contributes: its ports, or a nameless one if it has none."""
    return [PortKey(service.key, port.name, port.protocol) for port in service.ports] or [
        PortKey(service.key, "", Protocol.TCP)
    ]


def compile_service(
    state: ClusterState, settings: Settings, family: Family, service: Service, only: ServicePort | None = None
) -> Iterator[tuple[PortKey, PortFacts]]:
    """The facts for each port of a Service in one family, or for one of them; none if it is not of the family."""
    cluster_ips = of_family(service.cluster_ips, family)
    if not cluster_ips:
        return
    if not service.ports:
        yield from ((owner, PortFacts(protocol="tcp", cluster_ips=cluster_ips)) for owner in port_keys(service))
    own = _OwnSources.of(service, state, family)
    offered = offers(service, state.slices_of(service.key), family)
    for port, claimed in reaches(state, settings.config, family, service):
        if only is not None and port != only:
            continue
        had = [reach for reach in claimed if not reach.denial]
        choice = choice_for(port, offered, state.node)
        shaper = _ListShaper(family, port.protocol.value, service.affinity_timeout, settings)
        facts = _port_facts(cluster_ips, own, had, choice, shaper)
        if facts.allowed:
            own = own.without_allowed()
        yield PortKey(service.key, port.name, port.protocol), facts


def _port_facts(
    cluster_ips: tuple[Address, ...], own: _OwnSources, had: list[Reach], choice: Choice, shaper: _ListShaper
) -> PortFacts:
    """The memberships of one port's fronts."""
    services: list[tuple[Front, str]] = []
    short_circuits: list[tuple[Front, str]] = []
    counts: list[tuple[str, Front, str]] = []
    endpoints: list[Slots] = []
    lists: list[ListFacts] = []
    draws: list[DrawFacts] = []
    for reach in had:
        is_local = reach.policy is TrafficPolicy.LOCAL
        uses = [(services, "local-" if is_local else "", choice.local if is_local else choice.cluster)]
        if is_local and reach.is_external:
            uses.append((short_circuits, "", choice.cluster))
        for verdicts, scope, candidates in uses:
            facts = shaper.list(reach.front, scope)
            lists.append(facts)
            verdicts.append((reach.front, facts.chain))
            if candidates:
                draw = shaper.draw(facts, len(candidates))
                draws.append(draw)
                counts.append((facts.list, reach.front, draw.number))
                endpoints.append(Slots(facts.list, reach.front, _rows(candidates)))
    external = [reach for reach in had if reach.is_external]
    guarded = tuple((reach.front, own.list) for reach in external if reach.claim.address in own.guarded_ips)
    hairpins = _hairpins(choice)
    # What is translated to where it was sent anyway, a server in the node's own network, counts as not translated.
    own_places = {place for address, port in hairpins for place in (f"{address} . {port}", str(port))}
    known = [reach for reach in had if reach.front.where not in own_places]
    fronts = tuple(reach.front for reach in known)
    lacks_local = shaper.settings.config.service_counts and choice.has_endpoints and not choice.local
    return PortFacts(
        protocol=shaper.protocol,
        cluster_ips=cluster_ips,
        services=tuple(services),
        short_circuits=tuple(short_circuits),
        fronts=fronts,
        no_endpoints=() if choice.has_endpoints else fronts,
        none_local=tuple(each.front for each in known if lacks_local and each.policy is TrafficPolicy.LOCAL),
        masqueraded=tuple(reach.front for reach in external if reach.policy is TrafficPolicy.CLUSTER),
        local_policy=tuple(reach.front for reach in external if reach.policy is TrafficPolicy.LOCAL),
        guarded=guarded,
        allowed=tuple((own.list, source) for source in own.allowed) if guarded else (),
        counts=tuple(counts),
        endpoints=tuple(endpoints),
        sticky=tuple(map(_by_pod, endpoints)) if shaper.remembers else (),
        affinities=tuple((reach.front, shaper.remember_chain) for reach in had if shaper.remembers),
        hairpins=hairpins if endpoints else (),
        lists=tuple(dict.fromkeys(lists)),
        draws=tuple(dict.fromkeys(draws)),
    )


def _rows(candidates: Sequence[Candidate]) -> tuple[tuple[int, Address, int], ...]:
    return tuple((slot, candidate.address, candidate.port) for slot, candidate in enumerate(candidates))


def _by_pod(slots: Slots) -> Slots:
    """Affinity is to a pod, so an address that serves at two ports is entered once."""
    ports = {address: (slot, address, port) for slot, address, port in reversed(slots.rows)}
    return Slots(slots.list, slots.front, tuple(reversed(ports.values())))


def _hairpins(choice: Choice) -> tuple[tuple[Address, int], ...]:
    """The endpoints of this node: what one of these sends to itself through a Service needs another source address.

    They are the local list: the cluster list has none that isn't there too.
    """
    return tuple((candidate.address, candidate.port) for candidate in choice.local)


_NO_LIST = {Family.IPV4: Address("0.0.0.0"), Family.IPV6: Address("::")}
"""The list that admits nobody: no Service has this address."""


class _OwnSources(NamedTuple):
    """What loadBalancerSourceRanges admit to which load balancer addresses: the list's name, and what is on it.

    All addresses and ports of a Service have one list, so that ports don't multiply the ranges.
    """

    guarded_ips: tuple[Address, ...]
    list: Address
    allowed: tuple[str, ...]

    @classmethod
    def of(cls, service: Service, state: ClusterState, family: Family) -> _OwnSources:
        """The restriction of one Service in one family.

        A range that holds the node's own address admits the load balancer addresses too: what the node sends to them
        may carry them as its source (kube-proxy does the same).
        """
        ranges = restricting_ranges(service, family)
        load_balancer_ips = of_family(service.load_balancer_ips, family) if ranges else ()
        if not has_own_list(state, service, family):
            return cls(load_balancer_ips, _NO_LIST[family], ())
        own = of_family(state.node.addresses, family)[:1]
        if any(contains(source, address) for source in ranges for address in own):
            ranges += [ip_network(address) for address in load_balancer_ips]
        return cls(load_balancer_ips, of_family(service.cluster_ips, family)[0], _collapsed(ranges))

    def without_allowed(self) -> _OwnSources:
        """The same for the Service's other ports: one of them contributes what is on the list."""
        return self._replace(allowed=())


class _ListShaper(NamedTuple):
    """How lists of one Service port are chosen from: its protocol, family and affinity."""

    family: Family
    protocol: str
    timeout: int | None
    settings: Settings

    @property
    def remembers(self) -> bool:
        """Whether clients are remembered in a map, which the nft of some nodes can't do for IPv6."""
        return self.timeout is not None and (self.family is Family.IPV4 or self.settings.capabilities.wide_maps)

    @property
    def remember_chain(self) -> str:
        """The chain that remembers where a client of this port was sent."""
        return f"remember-{self.protocol}-{self.timeout}"

    @property
    def hashes(self) -> bool:
        """Whether clients stick to a pod by a hash of their address, where they can't be remembered."""
        return self.timeout is not None and not self.remembers

    def list(self, front: Front, scope: str) -> ListFacts:
        """The list of endpoints of `front`; `scope` is "local-" for the local one."""
        ip = self.family.value
        address = "" if front.prefix else f"{ip} daddr . "
        asked = "" if front.prefix else f"ct original {ip} daddr . "
        endings = _endings(self.settings.config)
        return ListFacts(
            table=self.family.table,
            ip=ip,
            protocol=self.protocol,
            list=f"{front.prefix}{self.protocol}-{scope}endpoints",
            where=f"{address}{self.protocol} dport",
            asked=f"{asked}{self.protocol} dport",
            numbers=_NUMBERS[self.family],
            suffix="-by-client" if self.hashes else "",
            race=endings.nodeport_race if front.prefix else endings.race,
            affinities=(self.timeout,) if self.timeout is not None and self.remembers else (),
        )

    def draw(self, facts: ListFacts, count: int) -> DrawFacts:
        """How one of `count` endpoints of a list is drawn."""
        by_client = f"jhash {facts.ip} saddr mod {count} seed {HASH_SEED}"
        return DrawFacts(
            table=facts.table,
            ip=facts.ip,
            protocol=facts.protocol,
            list=facts.list,
            where=facts.where,
            suffix=facts.suffix,
            race=facts.race,
            count=count,
            number=_number(count, self.family),
            draw=by_client if self.hashes else f"numgen random mod {count}",
        )


def _number(count: int, family: Family) -> str:
    """A number as the address that has it for a value."""
    return str(IPv4Address(count) if family is Family.IPV4 else IPv6Address(count))
