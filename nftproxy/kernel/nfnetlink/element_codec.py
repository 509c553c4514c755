"""Elements of sets and maps: from nft's text to the kernel's bytes, and back.

The type of a set determines the bytes of its keys: six bits for each part of a concatenation, by nft's numbers for its
types (include/datatype.h).  Each part of a concatenation is padded to a multiple of four bytes.  A key of one part
isn't.

All elements of a set have the same frame of attributes around the bytes of their keys and values, which is made once.
The kernel requires the NESTED mark on attributes that hold attributes, and doesn't mark its own.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from ipaddress import IPv6Address, ip_network

from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    ATTRIBUTE,
    PROTOCOLS,
    Attributes,
    aligned,
    attribute,
    attribute_map,
    named,
    number_of,
    padded,
    split,
    text_of,
)

Packer = Callable[[str], bytes]
"""Returns the bytes of a text."""
NOT_PACKED = (ValueError, OSError, KeyError)
"""The exceptions that a `Packer` raises for an invalid text."""

TYPE_BITS = 6
INTEGER, IPV4, IPV6, PROTOCOL, PORT = 4, 7, 8, 12, 13  # nft's TYPE_*
WIDTHS = {INTEGER: 4, IPV4: 4, IPV6: 16, PROTOCOL: 1, PORT: 2}
"""Bytes of each type that our keys and values have."""
MOST_PORTS = 1_024
"""Ports in the cache."""
PROTOCOL_NUMBERS = {protocol.value: number for number, protocol in PROTOCOLS.items()}
PROTOCOL_NAMES = {number: name for name, number in PROTOCOL_NUMBERS.items()}


def types_of(number: int) -> list[int]:
    """Return the types of a key's parts.  The first part has the highest bits.

    Raises:
        Unavailable: a type is unknown.
    """
    rest, found = number, []
    while rest:
        rest, last = divmod(rest, 1 << TYPE_BITS)
        if last not in WIDTHS:
            raise Unavailable(f"keys and values of nft's type {last} are unknown")
        found.append(last)
    return found[::-1]


def key_width(types: list[int]) -> int:
    """Return the number of bytes of a key."""
    return WIDTHS[types[0]] if len(types) == 1 else sum(aligned(WIDTHS[each]) for each in types)


def key_bounds(text: str, types: list[int]) -> tuple[bytes, bytes]:
    """Return the first and last key of an element, which differ if its text has a range of addresses.

    Raises:
        Unavailable: the kernel's keys have another number of parts.
    """
    parts = text.split(" . ")
    if len(parts) != len(types):
        raise Unavailable(f"{text} has {len(parts)} parts, and the kernel's keys have {len(types)}")
    bounds = [_bounds(part, kind) for part, kind in zip(parts, types, strict=True)]
    if len(bounds) == 1:
        return bounds[0]
    first, last = (b"".join(map(padded, side)) for side in zip(*bounds, strict=True))
    return first, last


def packer(types: list[int], length: int) -> Packer:
    """Return a function that packs keys or values of these types.  It raises one of `NOT_PACKED` for an invalid text.

    A restart packs every element of a node, so two and three parts, the usual numbers, are packed without a list and
    without a loop: 0.9 us for a row of an endpoint instead of 2.3.

    Raises:
        Unavailable: the kernel's keys or values have another number of bytes.
    """
    if not types or key_width(types) != length:
        raise Unavailable(f"keys and values of {length} bytes are unknown")
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
    """Return the parts of a key or value, as nft's text has them."""
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
    PROTOCOL: lambda text: PROTOCOL_NUMBERS[text].to_bytes(1, "big"),
    PORT: lambda text: int(text).to_bytes(2, "big"),
}
"""How each type is packed, without ranges."""

_PADDED_POINTS: dict[int, Packer] = {
    IPV4: _POINTS[IPV4],
    IPV6: _POINTS[IPV6],
    INTEGER: _POINTS[INTEGER],
    PROTOCOL: lru_cache(len(PROTOCOL_NUMBERS))(lambda text: padded(_POINTS[PROTOCOL](text))),
    PORT: lru_cache(MOST_PORTS)(lambda text: padded(_POINTS[PORT](text))),
}
"""The same with padding, for concatenations.  Ports are cached: nearly all elements have the same few ports."""


def _word(data: bytes, kind: int) -> str:
    if kind == IPV4:
        return socket.inet_ntop(socket.AF_INET, data)
    if kind == IPV6:
        return str(IPv6Address(data))
    number = int.from_bytes(data, sys.byteorder if kind == INTEGER else "big")
    return PROTOCOL_NAMES.get(number, str(number)) if kind == PROTOCOL else str(number)


KEY_START = 3 * ATTRIBUTE.size
"""The offset of the key in an element: after the heads of the element, the key and the value."""

VERDICT_CODES = {word: code.to_bytes(4, "big", signed=True) for code, word in nft.VERDICTS.items()}


class ElementLayout:
    """The bytes of elements of one set or map.

    Args:
        declared: the kernel's declaration of the set.
        mark: the flag of attributes that hold attributes: `NESTED` to the kernel, 0 from it.

    Raises:
        Unavailable: the set has ranges, or a type is unknown.
    """

    def __init__(self, declared: Attributes, mark: int) -> None:
        if nft.set_flags(declared) & nft.INTERVAL:
            raise Unavailable("ranges are left to libnftables")
        self._mark = mark
        self._key_length = number_of(declared[nft.SET_KEY_LENGTH])
        self._pack_key = packer(types_of(number_of(declared[nft.SET_KEY_TYPE])), self._key_length)
        data_type = number_of(declared.get(nft.SET_DATA_TYPE, b""))
        self._has_verdicts = data_type == nft.DATA_TYPE_VERDICT
        self._pack_data: Packer | None = None
        length = 0
        if data_type and not self._has_verdicts:
            length = number_of(declared[nft.SET_DATA_LENGTH])
            self._pack_data = packer(types_of(data_type), length)
        self._alone = self._frame(b"")
        before, rest = self._frame(self._value(nft.ELEMENT_DATA, bytes(length)))
        data_start = len(rest) - aligned(length)
        self._with_data = before, rest[:data_start], rest[data_start + length :]
        before, rest = (before, rest) if self._pack_data else self._alone
        self._whole = struct.Struct(f"{len(before) + self._key_length + len(rest)}s")

    def element(self, key: str, value: str) -> bytes:
        """Return an element as an attribute, with its value unless that is "".

        Raises:
            Unavailable: the key or value doesn't fit this set.
        """
        try:
            packed = self._pack_key(key)
            if not value:
                before, after = self._alone
                return before + packed + after
            if self._pack_data is None:
                return self._holding(nft.LIST_ELEMENT, self._value(nft.ELEMENT_KEY, packed) + self._verdict(value))
            before, between, after = self._with_data
            return before + packed + between + self._pack_data(value) + after
        except NOT_PACKED as error:
            raise Unavailable(f"{key} : {value} doesn't fit the kernel's keys and values: {error}") from error

    def elements_of(self, listed: bytes) -> Iterator[bytes]:
        """Return the elements in a part of the kernel's listing, each as an attribute.

        All have the same length, except elements with verdicts.  An element with an addition, such as a comment, may be
        cut into pieces.  The length in the first piece differs from its real length, so `element` never returns the
        same bytes.

        Raises:
            Unavailable: the last element has another length.
        """
        if self._has_verdicts:
            return split(listed)
        try:
            return (element for (element,) in self._whole.iter_unpack(listed))
        except struct.error as error:
            raise Unavailable("an element has another length than ours") from error

    def _frame(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes before and after the key of each element."""
        whole = self._holding(nft.LIST_ELEMENT, self._value(nft.ELEMENT_KEY, bytes(self._key_length)) + data)
        return whole[:KEY_START], whole[KEY_START + self._key_length :]

    def _verdict(self, value: str) -> bytes:
        word, _, chain = value.partition(" ")
        if word not in VERDICT_CODES or not chain:
            raise Unavailable(f"the verdict {value} is unknown")
        verdict = attribute(nft.VERDICT_CODE, VERDICT_CODES[word]) + named(nft.VERDICT_CHAIN, chain)
        return self._holding(nft.ELEMENT_DATA, self._holding(nft.DATA_VERDICT, verdict))

    def _value(self, kind: int, data: bytes) -> bytes:
        return self._holding(kind, attribute(nft.DATA_VALUE, data))

    def _holding(self, kind: int, attributes: bytes) -> bytes:
        return attribute(kind | self._mark, attributes)


def value_text(parts: Attributes, declared: Attributes) -> str:
    """Return the value of an element as nft's text, "" without a value.  `declared` is the kernel's declaration."""
    if nft.ELEMENT_DATA not in parts:
        return ""
    data = attribute_map(parts[nft.ELEMENT_DATA])
    if nft.DATA_VERDICT in data:
        verdict = attribute_map(data[nft.DATA_VERDICT])
        code = number_of(verdict[nft.VERDICT_CODE], signed=True)
        return f"{nft.VERDICTS.get(code, code)} {text_of(verdict.get(nft.VERDICT_CHAIN, b''))}"
    return " . ".join(decoded(data[nft.DATA_VALUE], types_of(number_of(declared[nft.SET_DATA_TYPE]))))


def value_bytes(data: bytes) -> bytes:
    """Return the bytes of a key or value from the attribute that holds them."""
    return attribute_map(data).get(nft.DATA_VALUE, b"")
