"""Numbers that replace a packet's destination address until the packet is translated.

nft can't use a map's result as the key of another lookup, nor draw from a number that a map returns.  But it can write
the result into the packet, in place of its address, and look up that address.  So the rules keep their state about a
packet as a number in the form of an address, and the maps have plain data for every front: no verdict, since the kernel
walks all verdicts whenever a verdict is added.

Numbers are in "this network" (RFC 1122), and in the former range of IPv4-compatible addresses (RFC 4291, 2.5.5.1).  The
meaning of a number depends on its map: in `services` it says how an endpoint is drawn, as a key of a list of endpoints
it is a slot, in `affinity` a timeout in seconds.  The number of a namespace (failover/table.nft.j2) may be any
address, as a packet has it only between two rules.
"""

from __future__ import annotations

import functools
import hashlib
from ipaddress import IPv4Address, IPv6Address

from nftproxy.model.addresses import Family, Protocol
from nftproxy.model.keys import KeyEnum

NUMBERS = {Family.IPV4: "0.0.0.0/8", Family.IPV6: "::/96"}
"""The ranges of addresses that are numbers: no host on a network has such an address.  IPv6's loopback does."""

MAX_ROWS = 0xFFFF
"""The most rows that a draw can have: a number has 16 bits for them."""

CACHED = 16384
"""Size of the cache of addresses: slots come again and again."""

_PROTOCOLS = {Protocol.TCP: 0, Protocol.UDP: 1, Protocol.SCTP: 2}


class Draw(KeyEnum):
    """How a row of a list is drawn.  The value is the draw's part of a number (4 bits).

    `IN_TURN_0` is the first of 8 counters (extensions/algorithms/placement.py, LANES).
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
        """Whether rows are drawn in turn."""
        return self.value >= Draw.IN_TURN_0.value

    @property
    def goes_by_port(self) -> bool:
        """Whether the hash is of the client's address and port, and not of its address alone."""
        return self in (Draw.BY_CLIENT_AND_PORT, Draw.CONSISTENT_WITH_PORT)

    @property
    def suffix(self) -> str:
        """The suffix of the names of chains: "" for random draws, otherwise for example "-by-client"."""
        if self is Draw.RANDOM:
            return ""
        if self.is_in_turn:
            return f"-in-turn-{self.value - Draw.IN_TURN_0.value}"
        return "-by-client-and-port" if self.goes_by_port else "-by-client"


def draw_number(protocol: Protocol, draw: Draw, rows: int, *, is_local: bool, is_sticky: bool) -> int:
    """The number for a draw: the list, the algorithm, and the number of rows.

    From the highest bit: 8 bits that are 0, protocol (2 bits: TCP, UDP, SCTP), whether the list is the local one,
    whether clients are remembered, algorithm (4 bits), rows (16 bits).  So three endpoints, by TCP, are 0.0.0.3.

    Args:
        protocol: the front's protocol.
        draw: how a row is drawn.
        rows: the number of rows, 0 to `MAX_ROWS`.  An empty list has no draw, so 0 has no other bits.
        is_local: whether the list is the local one.
        is_sticky: whether clients are remembered.
    """
    assert 0 <= rows <= MAX_ROWS, rows
    how = _PROTOCOLS[protocol] << 6 | is_local << 5 | is_sticky << 4 | draw.value
    return how << 16 | rows if rows else 0


@functools.lru_cache(maxsize=CACHED)
def as_address(number: int, family: Family) -> str:
    """The address that stands for a number."""
    return str(IPv4Address(number) if family is Family.IPV4 else IPv6Address(number))


def namespace_number(namespace: str, family: Family) -> str:
    """The number of a namespace, as an address.

    The map `watched` returns it, so that the notes of a namespace are counted against its share.  It is a hash.  Two
    namespaces with the same number have one share together.
    """
    size = len((IPv4Address if family is Family.IPV4 else IPv6Address)(0).packed)
    digest = hashlib.blake2b(namespace.encode(), digest_size=size).digest()
    return as_address(int.from_bytes(digest, "big"), family)


@functools.lru_cache(maxsize=1024)
def slot_addresses(count: int, family: Family) -> tuple[str, ...]:
    """The slots of a list as addresses, up to the next power of two.  Each text is the same object every time."""
    return _slot_addresses((count - 1).bit_length(), family)


@functools.cache  # of 17 sizes
def _slot_addresses(bits: int, family: Family) -> tuple[str, ...]:
    return tuple([as_address(slot, family) for slot in range(1 << bits)])
