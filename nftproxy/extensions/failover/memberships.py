"""The memberships of a front for failover: connections without an answer are noted, and refused ones tried again.

A refusal (a reset in answer to a first packet, or an ICMP error) passes to the client if no other endpoint would do
better: from the only endpoint of a list that isn't known to be silent, and from silent endpoints that the list can't do
without.  All other refusals are dropped, also from an endpoint that has just left the list, and the client's next
packet finds another endpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from nftproxy.extensions.failover.annotations import Failover
from nftproxy.model.addresses import Address
from nftproxy.model.objects import Place, TrafficPolicy
from nftproxy.policy.choosing.verdicts import Choice, ChoiceReason
from nftproxy.policy.extension import CompiledPort
from nftproxy.policy.facts import Front


class _Refusals(NamedTuple):
    """The refusals of a list: whether any is dropped, and the endpoints whose refusals pass."""

    are_dropped: bool
    passing: tuple[Place, ...]


class FailoverPort(msgspec.Struct, frozen=True):
    """The memberships of a Service port's fronts and endpoints.

    `watched` has the fronts whose connections are noted when they get no answer, each with the number of the Service's
    namespace (numbers.py).  `silent` are the endpoints of such a Service that are known to be silent.
    `retried` has the fronts whose connections are tried again if refused, in the same form, and `unretried` rows of
    (front, address and port of an endpoint whose refusals pass).
    """

    watched: tuple[tuple[Front, str], ...]
    silent: tuple[tuple[Address, int], ...]
    retried: tuple[tuple[Front, str], ...]
    unretried: tuple[tuple[Front, Address, int], ...]


def port_failover(failures: Collection[Failover], namespace: str, port: CompiledPort) -> FailoverPort:
    """The memberships of a TCP port of a Service that asks for failover after these failures.

    Args:
        failures: the failures, not none.
        namespace: the number of the Service's namespace.
        port: the port.
    """
    fronts = tuple((claimed.front, namespace) for claimed in port.had)
    is_watched, is_retried = Failover.SILENT in failures, Failover.REFUSED in failures
    retried = dict(_retried(port)) if is_retried else {}
    return FailoverPort(
        watched=fronts if is_watched else (),
        silent=tuple(_silent(port.choice)) if is_watched and fronts else (),
        retried=tuple((front, namespace) for front in retried),
        unretried=tuple((front, *place) for front, passing in retried.items() for place in passing),
    )


def _retried(port: CompiledPort) -> Iterator[tuple[Front, Iterable[Place]]]:
    """The fronts that drop refusals, each with the endpoints whose refusals pass."""
    verdicts = {
        TrafficPolicy.CLUSTER: [(each.candidate.place, each.cluster) for each in port.choice.verdicts],
        TrafficPolicy.LOCAL: [(each.candidate.place, each.local) for each in port.choice.here],
    }
    by_policy = {policy: _refusals_of(judged) for policy, judged in verdicts.items()}
    for claimed in port.had:
        refusals = [by_policy[policy] for _, policy in claimed.lists]
        if any(each.are_dropped for each in refusals):
            yield claimed.front, dict.fromkeys(place for each in refusals for place in each.passing)


def _silent(choice: Choice) -> Iterator[Place]:
    """The silent endpoints of the port's lists, in the lists' order."""
    for each in choice.verdicts:
        if each.cluster.is_failing or each.local.is_failing:
            yield each.candidate.place


def _refusals_of(verdicts: list[tuple[Place, ChoiceReason]]) -> _Refusals:
    needed = [place for place, reason in verdicts if reason is ChoiceReason.NEEDED]
    well = [place for place, reason in verdicts if reason.is_choice and not reason.is_failing]
    return _Refusals(bool(well), tuple(needed + (well if len(well) == 1 else [])))
