"""The draw of an endpoint for a Service port: the list, the numbers that are drawn, and the rows.

The proxy draws at random, by the weights of endpoints.  An extension may draw otherwise (`Extension.drawn`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from zlib import crc32

import msgspec

from nftproxy.model.addresses import Family, Protocol
from nftproxy.model.annotations import PLAIN
from nftproxy.model.objects import Place, Service, ServicePort, TrafficPolicy
from nftproxy.policy.choosing.slots import IN_ORDER, in_preferred_slots
from nftproxy.policy.choosing.verdicts import Candidate
from nftproxy.policy.choosing.weights import by_weight
from nftproxy.policy.extension import Drawn, DrawnPort, Settings
from nftproxy.policy.facts import DrawFacts, Endings, Front, ListFacts, Row
from nftproxy.policy.numbers import NUMBERS, Draw, as_address, draw_number, slot_addresses
from nftproxy.policy.state import ClusterState

HASH_SEED = "0x6e667470"
"""Any constant will do ("nftp"): without a seed, nft picks a random seed at each load, and clients would move."""

CACHED = 4096
"""Most entries in each cache of lists and draws.  A cluster needs some dozens, but every new affinity timeout and every
new number of endpoints adds more."""

_BY_CHANCE, _BY_CLIENT = Drawn(Draw.RANDOM), Drawn(Draw.BY_CLIENT)


def is_hashed(family: Family, service: Service, settings: Settings) -> bool:
    """Whether a hash of the client's address must bring clients back (sessionAffinity).

    Clients are remembered in a map, which the nft of some nodes doesn't support for IPv6.
    """
    return service.affinity_timeout is not None and not _has_maps(family, settings)


def _has_maps(family: Family, settings: Settings) -> bool:
    return family is Family.IPV4 or settings.capabilities.wide_maps


def placed(candidates: Sequence[Candidate]) -> Sequence[Place]:
    """The endpoint in each row of a list that is drawn by weight alone.

    Args:
        candidates: the list, which isn't empty.  All weights are 1 or more.
    """
    is_even = len({candidate.weight for candidate in candidates}) == 1
    return in_slots([candidate.place for candidate in candidates] if is_even else by_weight(candidates))


def in_slots(places: Sequence[Place]) -> Sequence[Place]:
    """The endpoints of a list in the order of their slots (choosing/slots.py).

    Args:
        places: the endpoints in the order of their addresses.  A repeated endpoint gets as many slots.
    """
    if len(places) <= IN_ORDER:
        return places
    return in_preferred_slots(places, [crc32(address.encode(), port) for address, port in places])


class Drawing:
    """The draws of a Service port in a family, on a node."""

    def __init__(
        self,
        family: Family,
        service: Service,
        port: ServicePort,
        node_name: str,
        settings: Settings,
        state: ClusterState,
    ) -> None:
        self._family = family
        timeout = service.affinity_timeout if _has_maps(family, settings) else None
        self.remembered = ((timeout, as_address(timeout, family)),) if timeout is not None else ()
        """The seconds for which clients are remembered, also as an address.  Empty if they aren't."""
        must_hash = is_hashed(family, service, settings)
        drawn = _BY_CLIENT if must_hash else _BY_CHANCE
        if service.options is not PLAIN:
            given = DrawnPort(family, service, port, node_name, state, must_hash)
            drawn = settings.drawn(given) or drawn
        self._rows = drawn.rows
        self._method = _Method(family, port.protocol, drawn.draw, self.remembered, settings.endings)
        self.nothing = as_address(0, family)
        """The number of a front that has no endpoint to draw."""

    def list(self, front: Front, policy: TrafficPolicy) -> ListFacts:
        """The list of endpoints of `front` that a policy asks for."""
        return _list(self._method, front.prefix, policy)

    def draw(self, front: Front, policy: TrafficPolicy, count: int) -> DrawFacts:
        """The draw among `count` rows of the list of `front` that a policy asks for."""
        return _draw(self._method, front.prefix, policy, count)

    def rows(self, candidates: Sequence[Candidate], policy: TrafficPolicy) -> tuple[Row, ...]:
        """The endpoints of a list in their slots, each in as many slots as its weight and the draw give it."""
        places = self._rows(candidates, policy) if self._rows else placed(candidates)
        slots = slot_addresses(len(places), self._family)
        return tuple([(slot, address, port) for slot, (address, port) in zip(slots, places, strict=False)])


class _Method(msgspec.Struct, frozen=True):
    """How endpoints are drawn: all that matters to lists and draws, which most Service ports share."""

    family: Family
    protocol: Protocol
    draw: Draw
    remembered: tuple[tuple[int, str], ...]
    endings: Endings


@functools.lru_cache(maxsize=CACHED)
def _list(method: _Method, prefix: str, policy: TrafficPolicy) -> ListFacts:
    ip, protocol = method.family.value, method.protocol.value
    asked = "" if prefix else f"ct original {ip} daddr . "
    scope = "local-" if policy is TrafficPolicy.LOCAL else ""
    consistent = "consistent-" if method.draw.is_consistent else ""
    return ListFacts(
        table=method.family.table,
        ip=ip,
        protocol=protocol,
        prefix=prefix,
        list=f"{prefix}{protocol}-{scope}{consistent}endpoints",
        asked=f"{asked}{protocol} dport",
        asked_front=f"{asked}meta l4proto . th dport",
        numbers=NUMBERS[method.family],
        first=as_address(0, method.family),
        race=method.endings.nodeport_race if prefix else method.endings.race,
        affinities=method.remembered,
    )


@functools.lru_cache(maxsize=CACHED)
def _draw(method: _Method, prefix: str, policy: TrafficPolicy, count: int) -> DrawFacts:
    facts = _list(method, prefix, policy)
    slots = _slots(method, count)
    expression, how = _expression(method, count)
    number = _number(method, policy, count, is_sticky=False)
    sticky = tuple(_number(method, policy, count, is_sticky=True) for _ in method.remembered)
    return DrawFacts(
        table=facts.table,
        ip=facts.ip,
        prefix=prefix,
        list=facts.list,
        suffix=method.draw.suffix,
        count=count,
        number=number,
        sticky=sticky,
        draw=f"meta l4proto . {expression} map @{slots[0][0]}" if slots else expression,
        how=how,
        slots=slots,
        of_port=sticky[0] if sticky else number,
    )


def _number(method: _Method, policy: TrafficPolicy, count: int, *, is_sticky: bool) -> str:
    is_local = policy is TrafficPolicy.LOCAL
    number = draw_number(method.protocol, method.draw, count, is_local=is_local, is_sticky=is_sticky)
    return as_address(number, method.family)


def _expression(method: _Method, count: int) -> tuple[str, str]:
    """The nft expression for a number from 0 up to `count`, and the same in words."""
    if method.draw is Draw.RANDOM:
        return f"numgen random mod {count}", f"draws one of {count} slots"
    if method.draw.is_in_turn:
        return f"numgen inc mod {count}", f"takes the next of {count} slots in turn"
    port, by = (f" . {method.protocol.value} sport", " and port") if method.draw.goes_by_port else ("", "")
    hashed = f"jhash {method.family.value} saddr{port} mod {count} seed {HASH_SEED}"
    return hashed, f"chooses one of {count} slots by the client's address{by}"


def _slots(method: _Method, count: int) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Return the name and rows of the map from a drawn number to the IPv6 address that stands for a slot.

    nft draws numbers of 4 bytes, which are addresses in IPv4.  Counts up to the same power of 2 share a map.
    """
    if method.family is Family.IPV4:
        return ()
    return _numbered(method.protocol, slot_addresses(count, method.family))


@functools.lru_cache(maxsize=64)
def _numbered(protocol: Protocol, slots: tuple[str, ...]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    rows = tuple((f"{protocol.value} . {slot}", address) for slot, address in enumerate(slots))
    return ((f"{protocol.value}-slots-{len(slots)}", rows),)
