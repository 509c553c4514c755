"""Numbers that stand where a packet's destination address stands, until it is translated.

nft can't look a map's answer up again, nor draw from a number that a map has given.  What it can do is to write such an
answer into the packet, in place of its address, and to look that up.  So what the rules remember about a packet on its
way is a number in the form of an address, and the maps have plain data for every front: no verdict, since the kernel
looks through all verdicts whenever one is added.

Numbers stand in "this network" (RFC 1122) and in what was once for IPv4-compatible addresses (RFC 4291, 2.5.5.1).  What
one means depends on where it was found: in `services` it says how an endpoint is drawn, as a key of a list of endpoints
it is a slot, in `affinity` a timeout in seconds.
"""

from __future__ import annotations

import functools
from ipaddress import IPv4Address, IPv6Address

from nftproxy.model.addresses import Family, Protocol
from nftproxy.model.keys import KeyEnum

NUMBERS = {Family.IPV4: "0.0.0.0/8", Family.IPV6: "::/96"}
"""What matches the addresses that are numbers: nothing on a network has such a one, but for IPv6's loopback."""

MAX_ROWS = 0xFFFF
"""The most rows that can be drawn from: a number has 16 bits for them."""

CACHED = 16384
"""Numbers whose addresses are kept: slots come again and again."""

_PROTOCOLS = {Protocol.TCP: 0, Protocol.UDP: 1, Protocol.SCTP: 2}


class Draw(KeyEnum):
    """How one of the rows of a list is drawn; the value is what a number has of it (4 bits).

    `IN_TURN` is the first of 8 (placement.py, LANES): each is another counter.
    """

    RANDOM = 0
    BY_CLIENT = 1
    BY_CLIENT_AND_PORT = 2
    CONSISTENT = 3
    CONSISTENT_WITH_PORT = 4
    IN_TURN_0 = 8
    IN_TURN_1 = 9
    IN_TURN_2 = 10
    IN_TURN_3 = 11
    IN_TURN_4 = 12
    IN_TURN_5 = 13
    IN_TURN_6 = 14
    IN_TURN_7 = 15

    @property
    def is_consistent(self) -> bool:
        """Whether rows are Maglev's table, in a list of its own."""
        return self in (Draw.CONSISTENT, Draw.CONSISTENT_WITH_PORT)

    @property
    def is_in_turn(self) -> bool:
        """Whether rows come one after the other."""
        return self.value >= Draw.IN_TURN_0.value

    @property
    def goes_by_port(self) -> bool:
        """Whether what is hashed is the client's address and port, and not its address alone."""
        return self in (Draw.BY_CLIENT_AND_PORT, Draw.CONSISTENT_WITH_PORT)

    @property
    def suffix(self) -> str:
        """What it adds to the names of chains: "" for what is usual, else as in "-by-client"."""
        if self is Draw.RANDOM:
            return ""
        if self.is_in_turn:
            return f"-in-turn-{self.value - Draw.IN_TURN_0.value}"
        return "-by-client-and-port" if self.goes_by_port else "-by-client"


def draw_number(protocol: Protocol, draw: Draw, rows: int, *, is_local: bool, is_sticky: bool) -> int:
    """The number that says all about a draw: from which list, by which algorithm, from how many rows.

    From the highest bit: 8 bits that are 0, protocol (2 bits: TCP, UDP, SCTP), whether the list is the local one,
    whether clients are remembered, algorithm (4 bits), rows (16 bits).  So three endpoints, by TCP, are 0.0.0.3.

    Args:
        protocol: of the front.
        draw: how one of the rows is drawn.
        rows: how many the list has, 0 to `MAX_ROWS`.  Nothing is drawn from none, so 0 has no other bits.
        is_local: whether the list is the local one.
        is_sticky: whether clients are remembered.
    """
    assert 0 <= rows <= MAX_ROWS, rows
    how = _PROTOCOLS[protocol] << 6 | is_local << 5 | is_sticky << 4 | draw.value
    return how << 16 | rows if rows else 0


@functools.lru_cache(maxsize=CACHED)
def as_address(number: int, family: Family) -> str:
    """A number as the address that it is written as."""
    return str(IPv4Address(number) if family is Family.IPV4 else IPv6Address(number))
