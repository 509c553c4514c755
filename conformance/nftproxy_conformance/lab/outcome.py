"""Probes and outcomes: a connection to try, and its result, as values that compare and print well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from nftproxy.model.addresses import host_port
from nftproxy_conformance.lab.topology import Origin

PING = "icmp"
"""The protocol of pings, of either family."""
FIRST_PORT, LAST_PORT = 20000, 65535  # range of automatic source ports; tests may use lower ports


class Address(NamedTuple):
    """An IP address, spelled as the kernel spells it, and a port.  It is equal to a plain pair."""

    ip: str
    port: int

    def __str__(self) -> str:
        return host_port(self.ip, self.port)


@dataclass(frozen=True, slots=True)
class Probe:
    """A new connection to try.

    Args:
        origin: where it comes from.
        address: its destination, of either family.
        port: its destination port, 0 for a ping.
        protocol: "tcp", "udp", "sctp", or "icmp" for a ping, in any case.
        source: its source address, by default the origin's.  For the node the kernel chooses.
        sport: its source port, or a ping's identifier, by default a free number from 20000 up.  A test that needs the
            same flow twice takes a lower number.
    """

    origin: Origin
    address: str
    port: int
    protocol: str = "tcp"
    source: str | None = None
    sport: int | None = None


class Kind(Enum):
    """The kind of an outcome."""

    ENDPOINT = "endpoint"  # translated, and sent there
    UNTOUCHED = "untouched"  # left the node with its destination unchanged
    ANSWERED = "answered"  # a ping, by the node itself, from the address that it was for
    NODE = "node"  # delivered to the node, with its destination unchanged
    REJECTED = "rejected"  # so that the client knows
    DROPPED = "dropped"  # nothing came out and nothing came back

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a connection.

    Outcomes are equal if kind, endpoint, masquerading and the way of rejection are.  The other fields don't count.

    Attributes:
        kind: what happened.
        endpoint: the address and port that it was translated to, or None unless `kind` is ENDPOINT.
        masqueraded: whether the source address was changed.
        how: the way of a rejection by nft's name, such as "tcp-reset" or "icmp port-unreachable" (of either family).
            Of an answer to a health check it is "HTTP 200" or another status.
            It is "errno ENETUNREACH" or the like if the node's kernel refused to send.  Else "".
        interface: the interface through which it left the node, "" if it didn't leave.
        source: source address and port after the node, or None if no packet was seen.
        probe: the probe, with its source address and port.
        token: the mark of the connection's packets (frames.py).
    """

    kind: Kind
    endpoint: Address | None = None
    masqueraded: bool = False
    how: str = ""
    interface: str = field(default="", compare=False)
    source: Address | None = field(default=None, compare=False)
    probe: Probe | None = field(default=None, compare=False)
    token: int = field(default=0, compare=False)

    def __repr__(self) -> str:
        words = [self.kind.name]
        if self.endpoint:
            words.append(str(self.endpoint))
        if self.interface:
            words.append(f"via {self.interface}")
        if self.masqueraded:
            words.append(f"masqueraded as {self.source.ip}" if self.source else "masqueraded")
        if self.how:
            words.append(f"({self.how})")
        return f"<{' '.join(words)}>"


UNTOUCHED = Outcome(Kind.UNTOUCHED)
ANSWERED = Outcome(Kind.ANSWERED)
NODE = Outcome(Kind.NODE)
HEALTHY, UNHEALTHY = (Outcome(Kind.ANSWERED, how=f"HTTP {status}") for status in (200, 503))
DROPPED = Outcome(Kind.DROPPED)
TCP_RESET = Outcome(Kind.REJECTED, how="tcp-reset")
PORT_UNREACHABLE = Outcome(Kind.REJECTED, how="icmp port-unreachable")  # nft's plain `reject`


def endpoint(ip: str, port: int, *, masqueraded: bool = False) -> Outcome:
    """The outcome of a connection that was translated to `ip` and `port`."""
    return Outcome(Kind.ENDPOINT, Address(ip, port), masqueraded)


def is_even(outcomes: Iterable[Outcome], endpoints: Collection[tuple[str, int]]) -> bool:
    """True if all connections went to `endpoints`, spread as evenly as chance allows."""
    return is_spread(outcomes, dict.fromkeys(endpoints, 1))


def is_spread(outcomes: Iterable[Outcome], weights: Mapping[tuple[str, int], int]) -> bool:
    """True if all connections went to endpoints in `weights`, spread by weight as far as chance allows.

    A fair draw fails this test once in ten million times.  The limit is six standard deviations in the normal
    approximation of the chi-square distribution (Wilson and Hilferty), which needs five draws per endpoint.
    """
    count = Counter(outcome.endpoint for outcome in outcomes)
    if not set(count) <= set(weights):
        return False
    expected = {each: count.total() * weight / sum(weights.values()) for each, weight in weights.items()}
    if min(expected.values()) < 5:
        raise ValueError(f"{count.total()} connections say nothing about {len(weights)} endpoints")
    freedom = len(weights) - 1
    if not freedom:
        return True
    statistic = sum((count[Address(*each)] - wanted) ** 2 / wanted for each, wanted in expected.items())
    deviation = (statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))
    return bool(deviation < 6 * (2 / (9 * freedom)) ** 0.5)
