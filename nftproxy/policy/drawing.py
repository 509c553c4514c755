"""The draw of an endpoint for a Service port: the list, the algorithm, and the rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from nftproxy.extensions.algorithms.placement import NO_FACTORS, is_consistent, lane, placed
from nftproxy.extensions.least_connections.factors import Factors, ListKey
from nftproxy.extensions.least_connections.known_factors import factors_of
from nftproxy.model.addresses import Family, Protocol
from nftproxy.model.annotations import Algorithm, algorithm_for
from nftproxy.model.objects import Service, ServicePort, TrafficPolicy
from nftproxy.policy.choosing.candidates import Candidate
from nftproxy.policy.extension import Settings
from nftproxy.policy.facts import DrawFacts, Endings, Front, ListFacts, Row
from nftproxy.policy.numbers import NUMBERS, Draw, as_address, draw_number, slot_addresses
from nftproxy.policy.state import ClusterState

HASH_SEED = "0x6e667470"
"""Any constant will do ("nftp"): without a seed, nft picks a random seed at each load, and clients would move."""

CACHED = 4096
"""Most entries in each cache of lists and draws.  A cluster needs some dozens, but every new affinity timeout and every
new number of endpoints adds more."""

_DRAWS = {
    Algorithm.RANDOM: Draw.RANDOM,
    Algorithm.LEAST_CONNECTIONS: Draw.RANDOM,
    Algorithm.SOURCE_HASH: Draw.BY_CLIENT,
    Algorithm.SOURCE_HASH_WITH_PORT: Draw.BY_CLIENT_AND_PORT,
    Algorithm.CONSISTENT_HASH: Draw.CONSISTENT,
    Algorithm.CONSISTENT_HASH_WITH_PORT: Draw.CONSISTENT_WITH_PORT,
}


def algorithm_of(family: Family, service: Service, protocol: Protocol, settings: Settings) -> Algorithm:
    """The algorithm that chooses endpoints for a Service in a family.

    Clients are remembered in a map, which the nft of some nodes doesn't support for IPv6.  There a hash of the client's
    address must bring them back.
    """
    algorithm = algorithm_for(service.options, protocol)
    if service.affinity_timeout is None or _has_maps(family, settings):
        return algorithm
    return Algorithm.CONSISTENT_HASH if is_consistent(algorithm) else Algorithm.SOURCE_HASH


def _has_maps(family: Family, settings: Settings) -> bool:
    return family is Family.IPV4 or settings.capabilities.wide_maps


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
        self._placement_key = f"{node_name} {service.key}"
        timeout = service.affinity_timeout if _has_maps(family, settings) else None
        self.remembered = ((timeout, as_address(timeout, family)),) if timeout is not None else ()
        """The seconds for which clients are remembered, also as an address.  Empty if they aren't."""
        self._algorithm = algorithm = algorithm_of(family, service, port.protocol, settings)
        self._factors: dict[TrafficPolicy, Factors] = {}
        if algorithm is Algorithm.LEAST_CONNECTIONS:
            factors = factors_of(state)
            keys = {policy: ListKey(service.key, port.name, family, policy) for policy in TrafficPolicy}
            self._factors = {policy: factors[key] for policy, key in keys.items() if key in factors}
        if algorithm is Algorithm.ROUND_ROBIN:
            draw = Draw(Draw.IN_TURN_0.value + lane(str(service.key)))
        else:
            draw = _DRAWS[algorithm]
        self._method = _Method(family, port.protocol, draw, self.remembered, settings.endings)
        self.nothing = as_address(0, family)
        """The number of a front that has no endpoint to draw."""

    def list(self, front: Front, policy: TrafficPolicy) -> ListFacts:
        """The list of endpoints of `front` that a policy asks for."""
        return _list(self._method, front.prefix, policy)

    def draw(self, front: Front, policy: TrafficPolicy, count: int) -> DrawFacts:
        """The draw among `count` rows of the list of `front` that a policy asks for."""
        return _draw(self._method, front.prefix, policy, count)

    def rows(self, candidates: Sequence[Candidate], policy: TrafficPolicy) -> tuple[Row, ...]:
        """The endpoints of a list in their slots, each in as many slots as its weight and the algorithm give it."""
        factors = self._factors.get(policy, NO_FACTORS)
        places = placed(candidates, self._algorithm, self._placement_key, factors)
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
    return DrawFacts(
        table=facts.table,
        ip=facts.ip,
        prefix=prefix,
        list=facts.list,
        suffix=method.draw.suffix,
        count=count,
        number=_number(method, policy, count, is_sticky=False),
        sticky=tuple(_number(method, policy, count, is_sticky=True) for _ in method.remembered),
        draw=f"meta l4proto . {expression} map @{slots[0][0]}" if slots else expression,
        how=how,
        slots=slots,
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
