"""Single elements of a table's sets and maps, asked for by their keys: never a listing, whatever the set holds.

nft itself fetches whole sets to answer `get element` (1.0.6).  The kernel takes a key as bytes and answers with that
element alone (NFT_MSG_GETSETELEM).  Which bytes a key is, says the type of the set: six bits for each part of a
concatenation, by nft's numbers for its types (datatype.h); each part fills up to four bytes.

It takes CAP_NET_ADMIN in the network namespace of the thread that asks.
"""

from __future__ import annotations

import errno
import sys
from ipaddress import IPv4Address, IPv6Address, ip_network
from types import TracebackType
from typing import NamedTuple, Self

from nftproxy.kernel.netlink import ACKNOWLEDGE, FAMILY_NUMBER, NESTED, attribute, attributes_of, open_socket
from nftproxy.kernel.nftables_netlink import (
    GET_SET,
    SET_DATA_TYPE,
    SET_FLAGS,
    SET_KEY_TYPE,
    SET_NAME,
    SET_TABLE,
    Attributes,
    exchange,
    named,
    why,
)
from nftproxy.model.addresses import TABLE, Family, Protocol
from nftproxy.model.errors import Unavailable

GET_ELEMENT = 13  # NFT_MSG_GETSETELEM
LIST_TABLE, LIST_SET, LIST_ELEMENTS, LIST_ELEMENT = 1, 2, 3, 1  # NFTA_SET_ELEM_LIST_*, NFTA_LIST_ELEM
KEY, DATA, FLAGS, EXPIRATION, KEY_END = 1, 2, 3, 5, 10  # NFTA_SET_ELEM_*
INTERVAL, INTERVAL_END = 0x4, 0x1  # NFT_SET_INTERVAL, NFT_SET_ELEM_INTERVAL_END
VALUE, VERDICT, CODE, CHAIN = 1, 2, 1, 2  # NFTA_DATA_*, NFTA_VERDICT_*
VERDICTS = {-3: "jump", -4: "goto"}  # NFT_JUMP, NFT_GOTO

TYPE_BITS = 6
INTEGER, IPV4, IPV6, PROTOCOL, PORT = 4, 7, 8, 12, 13  # nft's TYPE_*
NUMBERS = {Protocol.TCP.value: 6, Protocol.UDP.value: 17, Protocol.SCTP.value: 132}  # IPPROTO_*
NAMES = {number: name for name, number in NUMBERS.items()}


class Found(NamedTuple):
    """An element of the kernel's: its value as we write it, "" in a set, and the seconds until it goes, if it does."""

    value: str
    seconds: float | None


class Elements:
    """The elements of our tables, one question each, over one socket.

    Raises:
        Unavailable: the kernel can't be reached.
    """

    def __init__(self) -> None:
        try:
            self._socket = open_socket()
        except OSError as error:
            raise Unavailable(why(error)) from error
        self._declared: dict[tuple[Family, str], Attributes | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def find(self, family: Family, container: str, key: str) -> Found | None:
        """The element of a set or map with this key, written as in our statements; None if there is none.

        Raises:
            Unavailable: the kernel does not answer, or the set's keys or values are of a type that isn't known here.
        """
        declared = self._declaration(family, container)
        if declared is None:
            return None
        first, last = _encoded(key, _types(declared[SET_KEY_TYPE]))
        found = self._get(family, container, first)
        if found is None or _value(found[KEY]) != first:
            return None
        if KEY_END in found or not _number(declared.get(SET_FLAGS, b"")) & INTERVAL:
            is_same = _value(found.get(KEY_END, found[KEY])) == last
        else:
            is_same = self._ends_after(family, container, last)
        return Found(_data(found, declared), _seconds(found)) if is_same else None

    def _ends_after(self, family: Family, container: str, last: bytes) -> bool:
        """Whether a range ends with this key: such sets have an element of its own for the first key that is beyond."""
        beyond = _number(last) + 1
        end = self._get(family, container, last, INTERVAL_END)
        return end is None if beyond >> 8 * len(last) else end is not None and _number(_value(end[KEY])) == beyond

    def _get(self, family: Family, container: str, key: bytes, flags: int = 0) -> Attributes | None:
        """What the kernel has for a key, which may be a range that holds it."""
        flagged = attribute(FLAGS, flags.to_bytes(4, "big")) if flags else b""
        element = _nested(LIST_ELEMENT, _nested(KEY, attribute(VALUE, key)) + flagged)
        wanted = named(LIST_TABLE, TABLE) + named(LIST_SET, container) + _nested(LIST_ELEMENTS, element)
        answers = self._ask(GET_ELEMENT, family, wanted)
        found = [each for answer in answers for _, each in attributes_of(answer.get(LIST_ELEMENTS, b""))]
        return dict(attributes_of(found[0])) if found else None

    def _declaration(self, family: Family, container: str) -> Attributes | None:
        if (family, container) not in self._declared:
            answers = self._ask(GET_SET, family, named(SET_TABLE, TABLE) + named(SET_NAME, container))
            self._declared[family, container] = answers[0] if answers else None
        return self._declared[family, container]

    def _ask(self, kind: int, family: Family, attributes: bytes) -> list[Attributes]:
        """The kernel's answers; none if what was named is not there."""
        try:
            return exchange(self._socket, kind, FAMILY_NUMBER[family], attributes, ACKNOWLEDGE)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return []
            raise Unavailable(why(error)) from error


def _data(parts: Attributes, declared: Attributes) -> str:
    if DATA not in parts:
        return ""
    data = dict(attributes_of(parts[DATA]))
    if VERDICT in data:
        verdict = dict(attributes_of(data[VERDICT]))
        code = int.from_bytes(verdict[CODE], "big", signed=True)
        return f"{VERDICTS.get(code, code)} {verdict.get(CHAIN, b'').rstrip(bytes(1)).decode(errors='replace')}"
    return _decoded(data[VALUE], _types(declared[SET_DATA_TYPE]))


def _seconds(parts: Attributes) -> float | None:
    return _number(parts[EXPIRATION]) / 1000 if EXPIRATION in parts else None


# Keys and values as bytes


def _types(number: bytes) -> list[int]:
    """The types of a concatenation's parts, the first of which has the highest bits."""
    rest, found = int.from_bytes(number, "big"), []
    while rest:
        rest, last = divmod(rest, 1 << TYPE_BITS)
        found.append(last)
    return found[::-1]


def _encoded(text: str, types: list[int]) -> tuple[bytes, bytes]:
    """The first and last key of what an element's key says, which differ where it has a range of addresses."""
    parts = text.split(" . ")
    if len(parts) != len(types):
        raise Unavailable(f"{text} has {len(parts)} parts, and the kernel's keys have {len(types)}")
    bounds = [_bounds(part, kind) for part, kind in zip(parts, types, strict=True)]
    if len(bounds) == 1:
        return bounds[0]
    first, last = (b"".join(_padded(value) for value in side) for side in zip(*bounds, strict=True))
    return first, last


def _bounds(text: str, kind: int) -> tuple[bytes, bytes]:
    if kind in (IPV4, IPV6):
        network = ip_network(text)
        return network.network_address.packed, network.broadcast_address.packed
    if kind == PROTOCOL:
        value = bytes([NUMBERS[text]])
    elif kind == PORT:
        value = int(text).to_bytes(2, "big")
    elif kind == INTEGER:
        value = int(text).to_bytes(4, sys.byteorder)
    else:
        raise Unavailable(f"keys of nft's type {kind} are not known here")
    return value, value


def _decoded(data: bytes, types: list[int]) -> str:
    lengths = {IPV4: 4, IPV6: 16, PORT: 2, PROTOCOL: 1, INTEGER: 4}
    words, start = [], 0
    for kind in types:
        if kind not in lengths:
            raise Unavailable(f"values of nft's type {kind} are not known here")
        words.append(_word(data[start : start + lengths[kind]], kind))
        start += len(_padded(bytes(lengths[kind])))
    return " . ".join(words)


def _word(data: bytes, kind: int) -> str:
    if kind == IPV4:
        return str(IPv4Address(data))
    if kind == IPV6:
        return str(IPv6Address(data))
    if kind == PROTOCOL:
        return NAMES.get(data[0], str(data[0]))
    return str(int.from_bytes(data, sys.byteorder if kind == INTEGER else "big"))


def _padded(value: bytes) -> bytes:
    return value.ljust((len(value) + 3) & ~3, b"\0")


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _value(data: bytes) -> bytes:
    return dict(attributes_of(data))[VALUE]


def _nested(kind: int, value: bytes) -> bytes:
    return attribute(NESTED | kind, value)
