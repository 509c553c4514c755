"""Pings to addresses of Services: a Service answers a client if it has a usable endpoint for the client's connections.

An address of several Services answers if any of them does.  The rules find the sources of an address in a set, as they
find source ranges (ranges.py): address, network, length of its prefix.  Larger lengths stand for ranges of which only
local sources and the node itself are answered: those that `externalTrafficPolicy: Local` sends to all endpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from nftproxy.model.addresses import Address
from nftproxy.model.objects import TrafficPolicy
from nftproxy.policy.choosing.verdicts import Choice
from nftproxy.policy.extension import CompiledService
from nftproxy.policy.fronts import ClaimedFront
from nftproxy.policy.ranges import EVERY_SOURCE, INSIDE
from nftproxy.policy.restrictions import restriction


class PingSources(NamedTuple):
    """The sources that a Service admits: `guarded` are its addresses with source ranges, `allowed` the ranges' keys.

    All other addresses admit `everyone`, which is empty if the Service denies any ranges: the rules can't tell these
    sources from others here.
    """

    guarded: tuple[Address, ...]
    allowed: tuple[str, ...]
    everyone: tuple[str, ...]

    @classmethod
    def of(cls, given: CompiledService) -> PingSources:
        """The sources that a Service admits in a family."""
        extensions = given.settings.extensions_of(given.service)
        if restriction(extensions, given.service, given.family).denies:
            return cls(given.guarded, (), ())
        return cls(given.guarded, given.allowed, (EVERY_SOURCE[given.family],))

    def rows(self, pings: Iterable[AnsweredPings]) -> tuple[tuple[Address, str], ...]:
        """The addresses that answer these pings, each with the key of a range of sources."""
        return tuple(dict.fromkeys((ping.address, key) for ping in pings for key in self._keys(ping)))

    def _keys(self, ping: AnsweredPings) -> Iterable[str]:
        admitted = self.allowed if ping.is_guarded else self.everyone
        return map(_inside, admitted) if ping.is_inside else admitted


class AnsweredPings(NamedTuple):
    """The pings that an address answers.  All ports of a Service share them, so that ports don't multiply the ranges.

    `is_guarded` says that source ranges apply, `is_inside` that only local sources and the node itself are answered.
    """

    address: Address
    is_guarded: bool
    is_inside: bool


def answered_pings(
    had: Iterable[ClaimedFront], addresses: Collection[Address], choice: Choice, sources: PingSources
) -> Iterator[AnsweredPings]:
    """The pings that the addresses of a port's fronts answer.  Source ranges never guard a ClusterIP."""
    for claimed in had:
        address, is_local = claimed.claim.address, claimed.policy is TrafficPolicy.LOCAL
        if address not in addresses:
            continue
        is_guarded = claimed.is_external and address in sources.guarded
        if choice.local if is_local else choice.cluster:
            yield AnsweredPings(address, is_guarded, is_inside=False)
        if claimed.is_external and is_local and choice.cluster:
            yield AnsweredPings(address, is_guarded, is_inside=True)


def _inside(key: str) -> str:
    network, _, length = key.rpartition(" ")
    return f"{network} {int(length) + INSIDE}"
