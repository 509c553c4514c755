"""The draw of an endpoint for a Service port: the list, the algorithm, and the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nftproxy.model.addresses import Family, Protocol
from nftproxy.model.annotations import Algorithm
from nftproxy.model.events import Factors, ListKey
from nftproxy.model.objects import Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import Settings
from nftproxy.policy.choosing.candidates import Candidate
from nftproxy.policy.choosing.placement import NO_FACTORS, is_consistent, lane, placed
from nftproxy.policy.facts import DrawFacts, Front, ListFacts, Row
from nftproxy.policy.numbers import NUMBERS, Draw, as_address, draw_number, slot_addresses
from nftproxy.policy.skeleton import endings

HASH_SEED = "0x6e667470"
"""Any constant will do ("nftp"): without a seed, nft picks a random seed at each load, and clients would move."""

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
    algorithm = service.options.algorithm_for(protocol)
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
        factors: Mapping[ListKey, Factors],
    ) -> None:
        self._family = family
        self._protocol = port.protocol
        self._placement_key = f"{node_name} {service.key}"
        self._endings = endings(settings.config)
        timeout = service.affinity_timeout if _has_maps(family, settings) else None
        self.remembered = ((timeout, as_address(timeout, family)),) if timeout is not None else ()
        """The seconds for which clients are remembered, also as an address.  Empty if they aren't."""
        self._algorithm = algorithm = algorithm_of(family, service, port.protocol, settings)
        self._factors: dict[TrafficPolicy, Factors] = {}
        if factors and algorithm is Algorithm.LEAST_CONNECTIONS:
            keys = {policy: ListKey(service.key, port.name, family, policy) for policy in TrafficPolicy}
            self._factors = {policy: factors[key] for policy, key in keys.items() if key in factors}
        if algorithm is Algorithm.ROUND_ROBIN:
            self._method = Draw(Draw.IN_TURN_0.value + lane(str(service.key)))
        else:
            self._method = _DRAWS[algorithm]
        self.nothing = as_address(0, family)
        """The number of a front that has no endpoint to draw."""

    def list(self, front: Front, policy: TrafficPolicy) -> ListFacts:
        """The list of endpoints of `front` that a policy asks for."""
        ip, protocol = self._family.value, self._protocol.value
        asked = "" if front.prefix else f"ct original {ip} daddr . "
        scope = "local-" if policy is TrafficPolicy.LOCAL else ""
        consistent = "consistent-" if self._method.is_consistent else ""
        return ListFacts(
            table=self._family.table,
            ip=ip,
            protocol=protocol,
            prefix=front.prefix,
            list=f"{front.prefix}{protocol}-{scope}{consistent}endpoints",
            asked=f"{asked}{protocol} dport",
            asked_front=f"{asked}meta l4proto . th dport",
            numbers=NUMBERS[self._family],
            first=self.nothing,
            race=self._endings.nodeport_race if front.prefix else self._endings.race,
            affinities=self.remembered,
        )

    def draw(self, facts: ListFacts, policy: TrafficPolicy, count: int) -> DrawFacts:
        """The draw among `count` rows of a list."""
        slots = self._slots(count)
        expression, how = self._expression(count)
        return DrawFacts(
            table=facts.table,
            ip=facts.ip,
            prefix=facts.prefix,
            list=facts.list,
            suffix=self._method.suffix,
            count=count,
            number=self._number(policy, count, is_sticky=False),
            sticky=tuple(self._number(policy, count, is_sticky=True) for _ in self.remembered),
            draw=f"meta l4proto . {expression} map @{slots[0][0]}" if slots else expression,
            how=how,
            slots=slots,
        )

    def _number(self, policy: TrafficPolicy, count: int, *, is_sticky: bool) -> str:
        is_local = policy is TrafficPolicy.LOCAL
        number = draw_number(self._protocol, self._method, count, is_local=is_local, is_sticky=is_sticky)
        return as_address(number, self._family)

    def _expression(self, count: int) -> tuple[str, str]:
        """The nft expression for a number from 0 up to `count`, and the same in words."""
        if self._method is Draw.RANDOM:
            return f"numgen random mod {count}", f"draws one of {count} slots"
        if self._method.is_in_turn:
            return f"numgen inc mod {count}", f"takes the next of {count} slots in turn"
        port, by = (f" . {self._protocol.value} sport", " and port") if self._method.goes_by_port else ("", "")
        hashed = f"jhash {self._family.value} saddr{port} mod {count} seed {HASH_SEED}"
        return hashed, f"chooses one of {count} slots by the client's address{by}"

    def _slots(self, count: int) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
        """Return the name and rows of the map from a drawn number to the IPv6 address that stands for a slot.

        nft draws numbers of 4 bytes, which are addresses in IPv4.  Counts up to the same power of 2 share a map.
        """
        if self._family is Family.IPV4:
            return ()
        protocol, slots = self._protocol.value, slot_addresses(count, self._family)
        rows = tuple((f"{protocol} . {slot}", address) for slot, address in enumerate(slots))
        return ((f"{protocol}-slots-{len(slots)}", rows),)

    def rows(self, candidates: Sequence[Candidate], policy: TrafficPolicy) -> tuple[Row, ...]:
        """The endpoints of a list in their slots, each in as many slots as its weight and the algorithm give it."""
        factors = self._factors.get(policy, NO_FACTORS)
        places = placed(candidates, self._algorithm, self._placement_key, factors)
        slots = slot_addresses(len(places), self._family)
        return tuple([(slot, address, port) for slot, (address, port) in zip(slots, places, strict=False)])
