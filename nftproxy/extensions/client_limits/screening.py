"""Restrictions for clients of a Service by its annotations (api/annotation_parsers.py): facts for screen.nft.j2.

Most Services have no such annotation, and cost a single check here.  The rest are members of the same few sets and
maps: a limit is the number that its front has in a map, and all Services with the same number share the chain and the
set of clients for it.

If two Services have the same ClusterIP, their ranges can't be distinguished, and the later Service admits nobody
(fronts.py decides which Service that is).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from itertools import product

from nftproxy.extensions.counts.counted_fronts import SCREENED, UnservedReason
from nftproxy.model.addresses import Address, Family, family_of
from nftproxy.model.annotations import Rate
from nftproxy.model.objects import Service
from nftproxy.model.settings import Config
from nftproxy.policy.claims import NODE
from nftproxy.policy.facts import Front, PortScreen, RateFacts, ScreenFacts
from nftproxy.policy.fronts import ClaimedFront, denies_some, guards_node_ports, serves_every_address
from nftproxy.policy.numbers import as_address
from nftproxy.policy.ranges import range_keys, source_lengths

NO_LIST = {Family.IPV4: Address("0.0.0.0"), Family.IPV6: Address("::")}
"""The list that admits nobody, and denies everybody: no Service has this address."""
_EVERYBODY = {Family.IPV4: ip_network("0.0.0.0/0"), Family.IPV6: ip_network("::/0")}

_RATE_BITS = 17
"""Bits of a rate's number that are the burst: the greatest is 100,000."""

TRANSPORTS = "{ tcp, udp, sctp }"


def screen_of(
    service: Service,
    config: Config,
    family: Family,
    had: Sequence[ClaimedFront],
    own_list: Address,
    denied: tuple[str, ...],
) -> PortScreen | None:
    """The screening of a port's fronts in a family.  None if there is none.

    Args:
        service: the Service of the port.
        config: the configuration.
        family: the fronts' family.
        had: the fronts that the port has.
        own_list: the name of the Service's lists of ranges, `NO_LIST` if it can have none.
        denied: the port's share of the list of denied ranges (`denied_sources`): a single port contributes them all.
    """
    options = service.options
    if not options.screens:
        return None
    fronts = tuple(claimed.front for claimed in had)
    denies = denies_some(service, family)
    guarded = _guarded_node_ports(service, family, had)
    rate, most = options.client_connection_rate, options.client_connections
    rates = (_rate(rate, family),) if rate else ()
    screened = fronts if denies or rate or most else guarded
    if not screened:
        return None
    return PortScreen(
        table=family.table,
        fronts=screened,
        denying=tuple(product(fronts, [own_list])) if denies else (),
        denied=tuple(product([own_list], denied)),
        guarded=tuple(product(guarded, [own_list])),
        rates=tuple(product(fronts, rates)),
        connections=tuple(product(fronts, [most], [as_address(most, family)])) if most else (),
        screen=screen(config, family, rates, (most,) if most else ()),
    )


def screen(config: Config, family: Family, rates: tuple[RateFacts, ...], connections: tuple[int, ...]) -> ScreenFacts:
    """The sets and chains for these limits, and the facts that all limits share."""
    ip = family.value
    asked = f"ct original {ip} daddr . meta l4proto . ct original proto-dst"
    not_admitted = UnservedReason.NOT_ADMITTED.value
    dropped = tuple(reason.value for reason in UnservedReason if reason in SCREENED)
    return ScreenFacts(
        table=family.table,
        ip=ip,
        transports=TRANSPORTS,
        asked=asked,
        lengths=source_lengths(family),
        nodeports=(
            (f"ct status dnat {asked} != @fronts", "ct status & dnat == 0 fib daddr type local")
            if serves_every_address(config, family)
            else (f"ct original {ip} daddr @nodeport-ips",)
        ),
        counted=dropped if config.service_counts else (*dropped, not_admitted),
        dropped=(*dropped, not_admitted),
        rates=rates,
        connections=connections,
    )


def denied_sources(service: Service, family: Family, own_list: Address) -> tuple[str, ...]:
    """The sources that a Service denies in a family, as keys of elements."""
    ranges = [each for each in service.options.denied_source_ranges if family_of(each) is family]
    if not ranges:
        return ()
    if own_list == NO_LIST[family]:
        return range_keys([_EVERYBODY[family]])
    return range_keys(ranges)


def _guarded_node_ports(service: Service, family: Family, had: Sequence[ClaimedFront]) -> tuple[Front, ...]:
    """The node ports to which source ranges apply."""
    return tuple(
        claimed.front for claimed in had if claimed.claim.address == NODE and guards_node_ports(service, family)
    )


def _rate(rate: Rate, family: Family) -> RateFacts:
    bits = (rate.per_second << _RATE_BITS) + rate.burst
    return RateFacts(f"{rate.per_second}-{rate.burst}", rate.per_second, rate.burst, as_address(bits, family))
