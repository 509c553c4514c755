"""What a test asks, and the answers: probes and outcomes, as values that compare and print well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from nftproxy.lab.topology import Origin
from nftproxy.model.addresses import host_port


class Address(NamedTuple):
    """An IP address, in the text that the kernel prints, and a port; equal to a plain pair."""

    ip: str
    port: int

    def __str__(self) -> str:
        return host_port(self.ip, self.port)


@dataclass(frozen=True, slots=True)
class Probe:
    """One new connection to try.

    Args:
        origin: where it comes from.
        address: the IP address that it is for; its family is the probe's.
        port: the port that it is for.
        protocol: "tcp", "udp" or "sctp", in any case.
        source: its source address; by default the origin's, for the node what the kernel would choose.
        sport: its source port; by default one that no other connection has.  Those below 20000 are
            never handed out by default: a test that wants the same flow twice takes one of them.
    """

    origin: Origin
    address: str
    port: int
    protocol: str = "tcp"
    source: str | None = None
    sport: int | None = None


class Kind(Enum):
    """What became of a connection."""

    ENDPOINT = "endpoint"  # translated, and sent there
    UNTOUCHED = "untouched"  # left the node for where it was meant to go
    NODE = "node"  # delivered to the node, at the address that it was meant for
    REJECTED = "rejected"  # so that the client knows
    DROPPED = "dropped"  # nothing came out and nothing came back

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a connection.

    Two are equal if kind, endpoint, masquerading and the way of rejection are; the rest says more, for the curious.

    Attributes:
        kind: what happened.
        endpoint: where it was translated to; None unless `kind` is ENDPOINT.
        masqueraded: whether the source address that came out is another than went in.
        how: a rejection's way: "tcp-reset", "icmp port-unreachable" (of either family) and the like, as nft names
            them; "errno ENETUNREACH" and the like if the node's own kernel would not even send; else "".
        interface: the one that it left the node through; "" if it was delivered to the node, or nothing came out.
        source: source address and port as they came out; None if nothing did.
        probe: the probe, with the source address and port it had.
        token: what marks the connection's packets (frames.py).
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
NODE = Outcome(Kind.NODE)
DROPPED = Outcome(Kind.DROPPED)
TCP_RESET = Outcome(Kind.REJECTED, how="tcp-reset")
PORT_UNREACHABLE = Outcome(Kind.REJECTED, how="icmp port-unreachable")  # nft's plain `reject`


def endpoint(ip: str, port: int, *, masqueraded: bool = False) -> Outcome:
    """The outcome of a connection that was sent to `ip` and `port`, to compare with."""
    return Outcome(Kind.ENDPOINT, Address(ip, port), masqueraded)


def is_even(outcomes: Iterable[Outcome], endpoints: Collection[tuple[str, int]]) -> bool:
    """Whether each connection went to one of `endpoints`, spread as evenly as chance would have it."""
    return is_spread(outcomes, dict.fromkeys(endpoints, 1))


def is_spread(outcomes: Iterable[Outcome], weights: Mapping[tuple[str, int], int]) -> bool:
    """Whether each connection went to one of some endpoints, spread by their weights as far as chance would have it.

    A fair draw fails this once in ten million times: the limit is six standard deviations in the normal
    approximation of the chi-square distribution (Wilson and Hilferty), good from five draws per endpoint.
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
