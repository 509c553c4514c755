"""Keys and values of sets and maps: from nft's text to the kernel's bytes, and back.

The type of a set says which bytes its keys are: six bits for each part of a concatenation, by nft's numbers for its
types (include/datatype.h).  Each part of a concatenation fills up to four bytes; a key of one part doesn't.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from ipaddress import IPv6Address, ip_network
from typing import Literal

from nftproxy.kernel.netlink import PROTOCOLS, aligned
from nftproxy.model.errors import Unavailable

Packer = Callable[[str], bytes]
"""What makes the bytes of a text."""
NOT_PACKED = (ValueError, OSError, KeyError)
"""What it raises for a text of which there are none."""

TYPE_BITS = 6
INTEGER, IPV4, IPV6, PROTOCOL, PORT = 4, 7, 8, 12, 13  # nft's TYPE_*
WIDTHS = {INTEGER: 4, IPV4: 4, IPV6: 16, PROTOCOL: 1, PORT: 2}
"""Bytes of each type that our keys and values have."""
MOST_PORTS = 1_024
"""Ports whose bytes are kept."""
NUMBERS = {protocol.value: number for number, protocol in PROTOCOLS.items()}
NAMES = {number: name for name, number in NUMBERS.items()}


def types_of(number: int) -> list[int]:
    """The types of a key's parts, the first of which has the highest bits.

    Raises:
        Unavailable: one of them isn't known here.
    """
    rest, found = number, []
    while rest:
        rest, last = divmod(rest, 1 << TYPE_BITS)
        if last not in WIDTHS:
            raise Unavailable(f"keys and values of nft's type {last} are not known here")
        found.append(last)
    return found[::-1]


def width(types: list[int]) -> int:
    """The bytes of a key."""
    return WIDTHS[types[0]] if len(types) == 1 else sum(aligned(WIDTHS[each]) for each in types)


def encoded(text: str, types: list[int]) -> tuple[bytes, bytes]:
    """The first and last key of what an element's key says, which differ where it has a range of addresses.

    Raises:
        Unavailable: the kernel's keys have another number of parts.
    """
    parts = text.split(" . ")
    if len(parts) != len(types):
        raise Unavailable(f"{text} has {len(parts)} parts, and the kernel's keys have {len(types)}")
    bounds = [_bounds(part, kind) for part, kind in zip(parts, types, strict=True)]
    if len(bounds) == 1:
        return bounds[0]
    first, last = (b"".join(map(_padded, side)) for side in zip(*bounds, strict=True))
    return first, last


def packer(types: list[int], length: int) -> Packer:
    """What makes the bytes of keys or values of these types; it raises one of `NOT_PACKED` for what isn't one.

    A restart does this with every element of a node, so two and three parts, which nearly all have, go without a list
    and without a loop: 0.9 us for a row of an endpoint in place of 2.3.

    Raises:
        Unavailable: the kernel's have another number of bytes.
    """
    if not types or width(types) != length:
        raise Unavailable(f"keys and values of {length} bytes are not known here")
    if len(types) == 1:
        return _POINTS[types[0]]
    return _JOINED.get(len(types), _of_many)(*(_PADDED_POINTS[kind] for kind in types))


def _of_two(first: Packer, second: Packer) -> Packer:
    def pack(text: str) -> bytes:
        a, b = text.split(" . ")
        return first(a) + second(b)

    return pack


def _of_three(first: Packer, second: Packer, third: Packer) -> Packer:
    def pack(text: str) -> bytes:
        a, b, c = text.split(" . ")
        return first(a) + second(b) + third(c)

    return pack


def _of_many(*packers: Packer) -> Packer:
    return lambda text: b"".join([pack(part) for pack, part in zip(packers, text.split(" . "), strict=True)])


_JOINED: dict[int, Callable[..., Packer]] = {2: _of_two, 3: _of_three}


def decoded(data: bytes, types: list[int]) -> tuple[str, ...]:
    """The parts of a key or value, as nft's text has them."""
    found, start = [], 0
    for kind in types:
        found.append(_word(data[start : start + WIDTHS[kind]], kind))
        start += aligned(WIDTHS[kind])
    return tuple(found)


def _bounds(text: str, kind: int) -> tuple[bytes, bytes]:
    if kind in (IPV4, IPV6):
        network = ip_network(text)
        return network.network_address.packed, network.broadcast_address.packed
    value = _POINTS[kind](text)
    return value, value


_POINTS: dict[int, Packer] = {
    INTEGER: lambda text: int(text).to_bytes(4, sys.byteorder),
    IPV4: partial(socket.inet_pton, socket.AF_INET),
    IPV6: partial(socket.inet_pton, socket.AF_INET6),
    PROTOCOL: lambda text: NUMBERS[text].to_bytes(1, "big"),
    PORT: lambda text: int(text).to_bytes(2, "big"),
}
"""How one part without a range is written."""

_PADDED_POINTS: dict[int, Packer] = {
    IPV4: _POINTS[IPV4],
    IPV6: _POINTS[IPV6],
    INTEGER: _POINTS[INTEGER],
    PROTOCOL: lru_cache(len(NUMBERS))(lambda text: _padded(_POINTS[PROTOCOL](text))),
    PORT: lru_cache(MOST_PORTS)(lambda text: _padded(_POINTS[PORT](text))),
}
"""The same among others: nearly all elements of a table have one of a few ports."""


def _word(data: bytes, kind: int) -> str:
    if kind == IPV4:
        return socket.inet_ntop(socket.AF_INET, data)
    if kind == IPV6:
        return str(IPv6Address(data))
    number = int.from_bytes(data, _order(kind))
    return NAMES.get(number, str(number)) if kind == PROTOCOL else str(number)


def _order(kind: int) -> Literal["little", "big"]:
    return sys.byteorder if kind == INTEGER else "big"


def _padded(value: bytes) -> bytes:
    return value.ljust(aligned(len(value)), b"\0")
