"""The memberships of a front for failover: connections without an answer are noted, and refused ones tried again.

A refusal (a reset in answer to a first packet, or an ICMP error) passes to the client if no other endpoint would do
better: from the only endpoint of a list that isn't known to be silent, and from silent endpoints that the list can't do
without.  All other refusals are dropped, also from an endpoint that has just left the list, and the client's next
packet finds another endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nftproxy.model.addresses import Family, Protocol
from nftproxy.model.annotations import Failover
from nftproxy.model.objects import Place, Service, ServicePort, TrafficPolicy
from nftproxy.policy.choosing.verdicts import Choice, ChoiceReason
from nftproxy.policy.facts import Front
from nftproxy.policy.numbers import namespace_number


class _Refusals(NamedTuple):
    """The refusals of a list: whether any is dropped, and the endpoints whose refusals pass."""

    are_dropped: bool
    passing: tuple[Place, ...]


class PortFailover(NamedTuple):
    """The failures for which a Service port asks for failover, the number of its namespace, and its lists."""

    failures: frozenset[Failover]
    namespace: str
    refusals: Mapping[TrafficPolicy, _Refusals]

    @classmethod
    def of(cls, service: Service, family: Family, port: ServicePort, choice: Choice) -> PortFailover:
        """The failover of a Service port: none but for TCP."""
        failures = service.options.failover if port.protocol is Protocol.TCP else None
        if not failures:
            return _NO_FAILOVER
        cluster = _refusals_of([(each.candidate.place, each.cluster) for each in choice.verdicts])
        local = _refusals_of([(each.candidate.place, each.local) for each in choice.here])
        refusals = {TrafficPolicy.CLUSTER: cluster, TrafficPolicy.LOCAL: local}
        return cls(failures, namespace_number(service.key.namespace, family), refusals)

    def sets_of(self, front: Front, policies: list[TrafficPolicy]) -> Iterator[tuple[str, object]]:
        """The sets that a front with the lists of these policies is in."""
        if Failover.SILENT in self.failures:
            yield "watched", (front, self.namespace)
        if Failover.REFUSED in self.failures:
            refusals = [self.refusals[policy] for policy in policies]
            if any(each.are_dropped for each in refusals):
                yield "retried", (front, self.namespace)
                for place in dict.fromkeys(place for each in refusals for place in each.passing):
                    yield "unretried", (front, *place)


_NO_FAILOVER = PortFailover(frozenset(), "", {})


def _refusals_of(verdicts: list[tuple[Place, ChoiceReason]]) -> _Refusals:
    needed = [place for place, reason in verdicts if reason is ChoiceReason.SILENT_BUT_NEEDED]
    well = [place for place, reason in verdicts if reason.is_choice and not reason.is_silence]
    return _Refusals(bool(well), tuple(needed + (well if len(well) == 1 else [])))
