"""From the cluster's state to facts: every policy decision about one Service port, and about the node, is taken here.

The outcome is membership.  Which fronts a Service port has is decided in fronts.py; which sets each of them is in, and
which chain its verdict names, follow from its kind and the traffic policy:

    front                    list for all sources       for local sources and the node    masqueraded
    ClusterIP, Cluster       cluster list               the same                          sources that aren't local
    ClusterIP, Local         local list                 the same                          sources that aren't local
    external, Cluster        cluster list               the same                          always
    external, Local          local list                 cluster list                      the node only

External means externalIPs, load balancer IPs and node ports.  For a front whose list is empty nothing is drawn; then,
or if a packet slips between two generations, the packet is rejected if its front is in `no-endpoints`, and dropped if
not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_network
from typing import NamedTuple

from msgspec.structs import replace

from nftproxy.model.addresses import Address, Family, Protocol, contains, family_of, of_family
from nftproxy.model.annotations import Algorithm
from nftproxy.model.objects import ObjectKey, Place, Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import Config, Settings
from nftproxy.policy.counts import CONNECTIONS, SCREENED, Reason
from nftproxy.policy.endpoints import Candidate, Choice, choice_for, offers
from nftproxy.policy.facts import (
    COUNTED,
    DrawFacts,
    Endings,
    Front,
    ListFacts,
    PortFacts,
    PortScreen,
    Row,
    Slots,
    TableFacts,
)
from nftproxy.policy.fronts import (
    Reach,
    collapsed,
    guarded_addresses,
    has_own_list,
    nodeport_addresses,
    reaches,
    restricting_ranges,
    serves_every_address,
)
from nftproxy.policy.kept import MANY, Kept, KeptPort
from nftproxy.policy.local_sources import local_sources
from nftproxy.policy.numbers import NUMBERS, Draw, as_address, draw_number
from nftproxy.policy.placement import are_in_slots, is_consistent, lane, placed
from nftproxy.policy.screening import NO_LIST, denied_sources, screen_of
from nftproxy.policy.state import ClusterState

HASH_SEED = "0x6e667470"
"""Any constant will do ("nftp"): with none, nft draws another one at each load, and clients would move."""

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

_DRAWS = {
    Algorithm.RANDOM: Draw.RANDOM,
    Algorithm.SOURCE_HASH: Draw.BY_CLIENT,
    Algorithm.SOURCE_HASH_WITH_PORT: Draw.BY_CLIENT_AND_PORT,
    Algorithm.CONSISTENT_HASH: Draw.CONSISTENT,
    Algorithm.CONSISTENT_HASH_WITH_PORT: Draw.CONSISTENT_WITH_PORT,
}

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
        numbers=NUMBERS[family],
        zero=as_address(0, family),
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
        service_cidrs=collapsed(cidr for cidr in state.service_cidrs if family_of(cidr) is family),
        filter_priority=_BEFORE_FILTERS if config.is_canary else _FILTER,
        counted=(CONNECTIONS, *(reason.value for reason in Reason if reason not in SCREENED))
        if config.service_counts
        else (),
        counters=("count-connection",) if config.service_counts else (),
        endings=_endings(config),
        watchers=("watch",) if state.watched else (),
    )


def _endings(config: Config) -> Endings:
    return COUNTED if config.service_counts else Endings()


def port_keys(service: Service) -> list[PortKey]:
    """The owners of what a Service contributes: its ports, or a nameless one if it has none."""
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
    kept: Kept | None = None,
) -> Iterator[tuple[PortKey, PortFacts]]:
    """The facts for each port of a Service in one family, or for one of them; none if it is not of the family.

    `kept` has what was decided before, for who compiles the same Services again and again: it changes no outcome.
    """
    cluster_ips = of_family(service.cluster_ips, family)
    if not cluster_ips:
        return
    if not service.ports:
        yield from ((owner, PortFacts(protocol="tcp", cluster_ips=cluster_ips)) for owner in port_keys(service))
    own = _OwnSources.of(service, state, family)
    denied = denied_sources(service, family, own.list)
    offered = offers(service, state.slices_of(service.key), family)
    for port, claimed in reaches(state, settings.config, family, service):
        if only is not None and port != only:
            continue
        had = [reach for reach in claimed if not reach.denial]
        silent = state.silent_of(service)
        known = kept.port(family, service.key, port, offered) if kept is not None and not silent else None
        if known:
            choice = known.choice.follow(offered, port, state.node)
        else:
            choice = choice_for(port, offered, state.node, silent)
        shaper = _ListShaper(family, port.protocol, service, state.node.name, settings, known)
        # Where nothing serves, everybody is rejected.
        screen = screen_of(service, settings.config, family, had, own.list, denied) if choice.has_endpoints else None
        if screen and screen.denied:
            denied = ()
        facts = _port_facts(cluster_ips, own, had, choice, shaper, screen)
        if service.key in state.watched and port.protocol is Protocol.TCP:
            facts = replace(facts, watched=tuple(reach.front for reach in had))
        if facts.allowed:
            own = own.without_allowed()
        yield PortKey(service.key, port.name, port.protocol), facts


def _port_facts(
    cluster_ips: tuple[Address, ...],
    own: _OwnSources,
    had: list[Reach],
    choice: Choice,
    shaper: _ListShaper,
    screen: PortScreen | None,
) -> PortFacts:
    """The memberships of one port's fronts."""
    services: list[tuple[Front, str]] = []
    short_circuits: list[tuple[Front, str]] = []
    endpoints: list[Slots] = []
    lists: list[ListFacts] = []
    draws: list[DrawFacts] = []
    rows: dict[TrafficPolicy, tuple[Row, ...]] = {}
    for reach in had:
        is_local = reach.policy is TrafficPolicy.LOCAL
        uses = [(services, reach.policy, choice.local if is_local else choice.cluster)]
        if is_local and reach.is_external:
            uses.append((short_circuits, TrafficPolicy.CLUSTER, choice.cluster))
        for numbers, scope, candidates in uses:
            if candidates:
                rows[scope] = rows.get(scope) or shaper.rows(candidates, scope)
                facts = shaper.list(reach.front, scope)
                draw = shaper.draw(facts, scope, len(rows[scope]))
                lists.append(facts)
                draws.append(draw)
                numbers.append((reach.front, draw.of_port))
                endpoints.append(Slots(facts.list, reach.front, rows[scope]))
            elif numbers is services:  # the front is a Service's all the same, and no node port's of another
                numbers.append((reach.front, shaper.nothing))
    external = [reach for reach in had if reach.is_external]
    guarded = tuple((reach.front, own.list) for reach in external if reach.claim.address in own.guarded_ips)
    hairpins = _hairpins(choice)
    # What is translated to where it was sent anyway, a server in the node's own network, counts as not translated.
    own_places = {place for address, port in hairpins for place in (f"{address} . {port}", str(port))}
    known = [reach for reach in had if reach.front.where not in own_places]
    fronts = tuple(reach.front for reach in known)
    lacks_local = shaper.settings.config.service_counts and choice.has_endpoints and not choice.local
    return PortFacts(
        protocol=shaper.protocol.value,
        cluster_ips=cluster_ips,
        services=tuple(services),
        short_circuits=tuple(short_circuits),
        fronts=fronts,
        no_endpoints=() if choice.has_endpoints else fronts,
        none_local=tuple(each.front for each in known if lacks_local and each.policy is TrafficPolicy.LOCAL),
        masqueraded=tuple(reach.front for reach in external if reach.policy is TrafficPolicy.CLUSTER),
        local_policy=tuple(reach.front for reach in external if reach.policy is TrafficPolicy.LOCAL),
        guarded=guarded,
        allowed=tuple((own.list, source) for source in own.allowed) if guarded or (screen and screen.guarded) else (),
        endpoints=tuple(endpoints),
        sticky=tuple(map(_by_pod, endpoints)) if shaper.remembered else (),
        affinities=tuple((reach.front, seconds) for reach in had for _, seconds in shaper.remembered),
        hairpins=hairpins if endpoints else (),
        lists=tuple(dict.fromkeys(lists)),
        draws=tuple(dict.fromkeys(draws)),
        screen=screen,
    )


def _by_pod(slots: Slots) -> Slots:
    """Affinity is to a pod, so an address that serves at two ports is entered once, with the lower one."""
    rows = sorted(slots.rows, key=lambda row: row[1:], reverse=True)
    ports = {address: (slot, address, port) for slot, address, port in rows}
    return Slots(slots.list, slots.front, tuple(reversed(ports.values())))


def _hairpins(choice: Choice) -> tuple[Place, ...]:
    """The endpoints of this node: what one of these sends to itself through a Service needs another source address.

    They are the local list: the cluster list has none that isn't there too.  Who doesn't answer may be left out of one
    list alone, and counts here.
    """
    return tuple(each.candidate.place for each in choice.here if each.local.is_usable)


class _OwnSources(NamedTuple):
    """What loadBalancerSourceRanges admit to which addresses: the list's name, and what is on it.

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
        guarded = guarded_addresses(service, family)
        if not has_own_list(state, service, family):
            return cls(guarded, NO_LIST[family], ())
        own = of_family(state.node.addresses, family)[:1]
        if any(contains(source, address) for source in ranges for address in own):
            ranges += [ip_network(address) for address in of_family(service.load_balancer_ips, family)]
        return cls(guarded, of_family(service.cluster_ips, family)[0], collapsed(ranges))

    def without_allowed(self) -> _OwnSources:
        """The same for the Service's other ports: one of them contributes what is on the list."""
        return self._replace(allowed=())


class _ListShaper(NamedTuple):
    """How lists of one Service port are chosen from: by its protocol, family, affinity and algorithm, on this node."""

    family: Family
    protocol: Protocol
    service: Service
    node: str
    settings: Settings
    kept: KeptPort | None

    @property
    def timeout(self) -> int | None:
        """For how many seconds clients come back to where they were; None if they don't."""
        return self.service.affinity_timeout

    @property
    def remembered(self) -> tuple[tuple[int, str], ...]:
        """For how many seconds clients are remembered, also as an address; nothing if they aren't.

        They are remembered in a map, which the nft of some nodes can't do for IPv6.
        """
        can = self.family is Family.IPV4 or self.settings.capabilities.wide_maps
        return ((self.timeout, as_address(self.timeout, self.family)),) if self.timeout is not None and can else ()

    @property
    def algorithm(self) -> Algorithm:
        """What the Service asks for; but a hash of the client's address, where clients must come back by that alone."""
        asked = self.service.options.algorithm
        if self.timeout is None or self.remembered:
            return asked
        return Algorithm.CONSISTENT_HASH if is_consistent(asked) else Algorithm.SOURCE_HASH

    @property
    def drawn(self) -> Draw:
        """How a slot is drawn."""
        if self.algorithm is Algorithm.ROUND_ROBIN:
            return Draw(Draw.IN_TURN_0.value + lane(str(self.service.key)))
        return _DRAWS[self.algorithm]

    @property
    def nothing(self) -> str:
        """The number of a front that has no endpoint to draw."""
        return as_address(0, self.family)

    def list(self, front: Front, policy: TrafficPolicy) -> ListFacts:
        """The list of endpoints of `front` that a policy asks for."""
        ip, protocol = self.family.value, self.protocol.value
        asked = "" if front.prefix else f"ct original {ip} daddr . "
        endings = _endings(self.settings.config)
        return ListFacts(
            table=self.family.table,
            ip=ip,
            protocol=protocol,
            prefix=front.prefix,
            list="".join(
                [
                    f"{front.prefix}{protocol}-",
                    "local-" if policy is TrafficPolicy.LOCAL else "",
                    "consistent-" if self.drawn.is_consistent else "",
                    "endpoints",
                ]
            ),
            asked=f"{asked}{protocol} dport",
            asked_front=f"{asked}meta l4proto . th dport",
            numbers=NUMBERS[self.family],
            first=as_address(0, self.family),
            race=endings.nodeport_race if front.prefix else endings.race,
            affinities=self.remembered,
        )

    def draw(self, facts: ListFacts, policy: TrafficPolicy, count: int) -> DrawFacts:
        """How one of `count` endpoints of a list is drawn."""
        slots = self._slots(count)
        expression = self._expression(count)
        return DrawFacts(
            table=facts.table,
            ip=facts.ip,
            prefix=facts.prefix,
            list=facts.list,
            suffix=self.drawn.suffix,
            count=count,
            number=self._number(policy, count, is_sticky=False),
            sticky=tuple(self._number(policy, count, is_sticky=True) for _ in self.remembered),
            draw=f"meta l4proto . {expression} map @{slots[0][0]}" if slots else expression,
            slots=slots,
        )

    def _number(self, policy: TrafficPolicy, count: int, *, is_sticky: bool) -> str:
        is_local = policy is TrafficPolicy.LOCAL
        number = draw_number(self.protocol, self.drawn, count, is_local=is_local, is_sticky=is_sticky)
        return as_address(number, self.family)

    def _expression(self, count: int) -> str:
        """What nft calls a number from 0 up to `count`."""
        if self.drawn is Draw.RANDOM:
            return f"numgen random mod {count}"
        if self.drawn.is_in_turn:
            return f"numgen inc mod {count}"
        port = f" . {self.protocol.value} sport" if self.drawn.goes_by_port else ""
        return f"jhash {self.family.value} saddr{port} mod {count} seed {HASH_SEED}"

    def _slots(self, count: int) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
        """What makes an address of a number, where that doesn't fill one: shared up to the next power of two."""
        if self.family is Family.IPV4:
            return ()
        size = 1 << (count - 1).bit_length()
        protocol = self.protocol.value
        rows = tuple((f"{protocol} . {slot}", as_address(slot, self.family)) for slot in range(size))
        return ((f"{protocol}-slots-{size}", rows),)

    def rows(self, candidates: Sequence[Candidate], policy: TrafficPolicy) -> tuple[Row, ...]:
        """The endpoints of a list in their slots, each in as many as its weight and the algorithm give it."""
        if self.kept and len(candidates) >= MANY and are_in_slots(candidates, self.algorithm):
            return self.kept.rows[policy].follow(candidates, self.family)
        places = placed(candidates, self.algorithm, f"{self.node} {self.service.key}")
        return tuple((as_address(slot, self.family), *place) for slot, place in enumerate(places))
