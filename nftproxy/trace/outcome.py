"""The fate of a packet, from the headers that the kernel reports where packets leave the node or arrive on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nftproxy.explanation.answer import Fate
from nftproxy.kernel.nfnetlink.nftrace import TraceMessage
from nftproxy.model.addresses import host_port
from nftproxy.trace.frames import TCP, icmp_rejection, ip_header, unpacked

TCP_FLAGS, RST = 13, 0x04  # the offset of the flags in a TCP header, and the reset flag
DELIVERED, LEFT = "delivered", "left"
"""The chains in which the kernel reports packets that arrive on the node, or leave it by an interface."""


LOOPBACK = 1
"""The number of the interface lo, in every network namespace."""


class Opening(NamedTuple):
    """An opening packet as it was sent.  `interface` is the number of the interface through which it entered."""

    source: bytes
    sport: int
    destination: bytes
    dport: int
    interface: int


class Outcome(NamedTuple):
    """The outcome for a packet.

    `endpoint` is the address and port that it was translated to, or "".  `source` is the source address after the node,
    or "" if no packet was seen.  `rejection` is the way of a rejection by nft's name, or "".
    """

    fate: Fate = Fate.DROPPED
    endpoint: str = ""
    source: str = ""
    rejection: str = ""


def outcome(opening: Opening, messages: Iterable[TraceMessage]) -> Outcome:
    """The outcome for a packet.  An arrival counts more than a rejection, which may come from a closed port."""
    reports = [each for each in messages if _is_at_end(each) and each.network_header]
    arrivals = [_arrival(opening, each) for each in reports if not _rejection(each)]
    rejections = [Outcome(Fate.REJECTED, rejection=_rejection(each)) for each in reports if _is_refused(opening, each)]
    return next(iter([*arrivals, *rejections]), Outcome())


def _is_at_end(message: TraceMessage) -> bool:
    """True if a message is about a packet that leaves the node or arrives on it.  Through lo no packet leaves."""
    return message.chain == DELIVERED or (message.chain == LEFT and message.interface != LOOPBACK)


def _arrival(opening: Opening, message: TraceMessage) -> Outcome:
    header, (_, port) = ip_header(message.network_header), _ports(message)
    source = unpacked(header.source)
    if (header.destination, port) != (opening.destination, opening.dport):
        return Outcome(Fate.ENDPOINT, host_port(unpacked(header.destination), port), source)
    return Outcome(Fate.NODE if message.chain == DELIVERED else Fate.PASSED, source=source)


def _ports(message: TraceMessage) -> tuple[int, int]:
    return int.from_bytes(message.transport_header[:2], "big"), int.from_bytes(message.transport_header[2:4], "big")


def _rejection(message: TraceMessage) -> str:
    """The way in which a packet rejects a connection, or ""."""
    number, segment = ip_header(message.network_header).number, message.transport_header
    if number == TCP:
        return "tcp reset" if segment[TCP_FLAGS] & RST else ""
    return icmp_rejection(number, segment)


def _is_refused(opening: Opening, message: TraceMessage) -> bool:
    """True if the client would take a packet for a rejection of this connection."""
    header = ip_header(message.network_header)
    is_ours = header.destination == opening.source and message.interface == opening.interface
    if header.number == TCP:
        is_ours = is_ours and header.source == opening.destination and _ports(message) == (opening.dport, opening.sport)
    return is_ours and bool(_rejection(message))
