"""Restrictions for clients of a Service by its annotations (api/annotation_parsers.py): facts for its templates.

Services with such an annotation are members of the same few sets and
maps: a limit is the number that its front has in a map, and all Services with the same number share the chain and the
set of clients for it.

If two Services have the same ClusterIP, their ranges can't be distinguished, and the later Service admits nobody
(fronts.py decides which Service that is).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from itertools import product

import msgspec

from nftproxy.extensions.client_limits.annotations import (
    CONNECTION_RATE,
    CONNECTIONS,
    DENIED_RANGES,
    RANGES_FOR,
    GuardedFronts,
)
from nftproxy.model.addresses import Address, Family, family_of, of_family
from nftproxy.model.annotations import Rate
from nftproxy.model.objects import Service
from nftproxy.model.unserved_reasons import RESTRICTED, UnservedReason
from nftproxy.policy.claims import NODE
from nftproxy.policy.extension import AddToPort, CompiledPort, CompiledService, Restriction, Settings
from nftproxy.policy.facts import Addition, Endings, Front, Part
from nftproxy.policy.fronts import ClaimedFront, restricting_ranges, serves_every_address
from nftproxy.policy.numbers import as_address
from nftproxy.policy.ranges import NO_LIST, range_keys, source_lengths

PORT, SHARED = "extensions/client_limits/port.nft.j2", "extensions/client_limits/shared.nft.j2"

_EVERYBODY = {Family.IPV4: ip_network("0.0.0.0/0"), Family.IPV6: ip_network("::/0")}

_RATE_BITS = 17
"""Bits of a rate's number that are the burst: the greatest is 100,000."""

TRANSPORTS = "{ tcp, udp, sctp }"


class RateFacts(msgspec.Struct, frozen=True, gc=False):
    """A limit of new connections: `per_second`, and `burst` in a row.

    `number` stands for both, written as an address.  `name` is in the names of its set and chain.
    """

    name: str
    per_second: int
    burst: int
    number: str


class ScreenFacts(msgspec.Struct, frozen=True):
    """The rules that screen clients in a family, with the sets and chains for some limits.  Service ports share them.

    `transports` is nft's set of the protocols that have ports, `asked` the front that a packet asked for, in packet
    fields.  `lengths` is as in TableFacts.  `nodeports` are the matches for packets that asked for a node port of
    the node.  `counted` are the reasons that have sets to count packets here, `dropped` the reasons that have a chain
    to drop them.  `rates` and `connections` are the limits, the latter in connections.
    """

    table: str
    ip: str
    transports: str
    asked: str
    lengths: tuple[tuple[str, int], ...]
    nodeports: tuple[str, ...]
    counted: tuple[str, ...]
    dropped: tuple[str, ...]
    rates: tuple[RateFacts, ...] = ()
    connections: tuple[int, ...] = ()


class PortScreen(msgspec.Struct, frozen=True, gc=False):
    """The screening of a Service port's clients, as memberships.

    `fronts` are the screened fronts.  `denying` and `guarded` are rows of (front, list of ranges), where `guarded` has
    node ports alone.  `denied` and `allowed` are rows of (list, key of a range).  `rates` are rows of (front, limit),
    `connections` of (front, limit, the same as an address).
    """

    fronts: tuple[Front, ...]
    denying: tuple[tuple[Front, Address], ...] = ()
    denied: tuple[tuple[Address, str], ...] = ()
    guarded: tuple[tuple[Front, Address], ...] = ()
    allowed: tuple[tuple[Address, str], ...] = ()
    rates: tuple[tuple[Front, RateFacts], ...] = ()
    connections: tuple[tuple[Front, int, str], ...] = ()


def ports(given: CompiledService) -> AddToPort:
    """Return a function that adds the screening of a port's fronts.  A single port contributes the lists of ranges."""
    denied, allowed = denied_sources(given.service, given.family, given.own_list), given.allowed

    def add(port: CompiledPort) -> Addition | None:
        nonlocal denied, allowed
        if not port.choice.has_endpoints:  # every client is rejected, so there is nothing to screen
            return None
        facts = _screening(given, port.had, denied, allowed)
        if facts is None:
            return None
        denied, allowed = () if facts.denied else denied, () if facts.allowed else allowed
        limits = screen(
            given.settings,
            given.family,
            tuple(dict.fromkeys(rate for _, rate in facts.rates)),
            tuple(dict.fromkeys(most for _, most, _ in facts.connections)),
        )
        return Addition(Part(PORT, facts), (Part(SHARED, limits),))

    return add


def _screening(
    given: CompiledService, had: Sequence[ClaimedFront], denied: tuple[str, ...], allowed: tuple[str, ...]
) -> PortScreen | None:
    """The screening of a port's fronts.  None if there is none.

    Args:
        given: the Service.
        had: the fronts that the port has.
        denied: the port's share of the list of denied ranges.
        allowed: its share of the list of source ranges.
    """
    service, family, own_list = given.service, given.family, given.own_list
    options = service.options
    fronts = tuple(claimed.front for claimed in had)
    denies = denies_some(service, family)
    guarded = _guarded_node_ports(service, family, had)
    rate, most = options[CONNECTION_RATE], options[CONNECTIONS]
    rates = (_rate(rate, family),) if rate else ()
    screened = fronts if denies or rate or most else guarded
    if not screened:
        return None
    return PortScreen(
        fronts=screened,
        denying=tuple(product(fronts, [own_list])) if denies else (),
        denied=tuple(product([own_list], denied)),
        guarded=tuple(product(guarded, [own_list])),
        allowed=tuple(product([own_list], allowed)) if guarded else (),
        rates=tuple(product(fronts, rates)),
        connections=tuple(product(fronts, [most], [as_address(most, family)])) if most else (),
    )


def screen(
    settings: Settings, family: Family, rates: tuple[RateFacts, ...], connections: tuple[int, ...]
) -> ScreenFacts:
    """The sets and chains for these limits, and the facts that all limits share.

    The set that counts packets that aren't admitted is left out if the verdict for these packets counts them.
    """
    are_counted = settings.endings.not_admitted != Endings().not_admitted
    ip = family.value
    asked = f"ct original {ip} daddr . meta l4proto . ct original proto-dst"
    not_admitted = UnservedReason.NOT_ADMITTED.value
    dropped = tuple(reason.value for reason in UnservedReason if reason in RESTRICTED)
    return ScreenFacts(
        table=family.table,
        ip=ip,
        transports=TRANSPORTS,
        asked=asked,
        lengths=source_lengths(family),
        nodeports=(
            (f"ct status dnat {asked} != @fronts", "ct status & dnat == 0 fib daddr type local")
            if serves_every_address(settings.config, family)
            else (f"ct original {ip} daddr @nodeport-ips",)
        ),
        counted=dropped if are_counted else (*dropped, not_admitted),
        dropped=(*dropped, not_admitted),
        rates=rates,
        connections=connections,
    )


def denied_sources(service: Service, family: Family, own_list: Address) -> tuple[str, ...]:
    """The sources that a Service denies in a family, as keys of elements."""
    ranges = [each for each in service.options[DENIED_RANGES] if family_of(each) is family]
    if not ranges:
        return ()
    if own_list == NO_LIST[family]:
        return range_keys([_EVERYBODY[family]])
    return range_keys(ranges)


def denies_some(service: Service, family: Family) -> bool:
    """Whether a Service denies ranges of a family."""
    return any(family_of(each) is family for each in service.options[DENIED_RANGES])


def restriction(service: Service, family: Family) -> Restriction:
    """The clients that a Service excludes by annotations, and the addresses to which they extend source ranges."""
    extended = service.options[RANGES_FOR]
    external_ips = service.external_ips if GuardedFronts.EXTERNAL_IPS in extended else ()
    node_ports = (NODE,) if GuardedFronts.NODE_PORTS in extended else ()
    return Restriction((*of_family(external_ips, family), *node_ports), denies_some(service, family))


def _guards_node_ports(service: Service, family: Family) -> bool:
    """Whether an annotation applies source ranges to a Service's node ports."""
    return GuardedFronts.NODE_PORTS in service.options[RANGES_FOR] and bool(restricting_ranges(service, family))


def _guarded_node_ports(service: Service, family: Family, had: Sequence[ClaimedFront]) -> tuple[Front, ...]:
    """The node ports to which source ranges apply."""
    return tuple(
        claimed.front for claimed in had if claimed.claim.address == NODE and _guards_node_ports(service, family)
    )


def _rate(rate: Rate, family: Family) -> RateFacts:
    bits = (rate.per_second << _RATE_BITS) + rate.burst
    return RateFacts(f"{rate.per_second}-{rate.burst}", rate.per_second, rate.burst, as_address(bits, family))
