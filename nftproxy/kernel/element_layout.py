"""Which bytes the elements of a set or map are, in netlink messages to the kernel and in those from it.

All elements of a set have one frame of attributes around the bytes of their keys and values, which is made once
(set_keys.py has those bytes).  The kernel wants attributes that hold others to be marked, and doesn't mark its own.
"""

from __future__ import annotations

import socket

from nftproxy.kernel.netlink import ACKNOWLEDGE, ATTRIBUTE, FAMILY_NUMBER, aligned, attribute, named, number_of
from nftproxy.kernel.nftables_netlink import (
    DATA_VALUE,
    DATA_VERDICT,
    ELEMENT_DATA,
    ELEMENT_KEY,
    GET_SET,
    INTERVAL,
    LIST_ELEMENT,
    SET_DATA_LENGTH,
    SET_DATA_TYPE,
    SET_FLAGS,
    SET_KEY_LENGTH,
    SET_KEY_TYPE,
    SET_NAME,
    SET_TABLE,
    VERDICT_CHAIN,
    VERDICT_CODE,
    VERDICTS,
    Attributes,
    exchange,
)
from nftproxy.kernel.set_keys import point, types_of
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable

KEY_START = 3 * ATTRIBUTE.size
"""Where the key stands in an element: in its value, in the key, in the element."""

VERDICT_TYPE = 0xFFFFFF00  # NFT_DATA_VERDICT
CODES = {word: code.to_bytes(4, "big", signed=True) for code, word in VERDICTS.items()}


class Layout:
    """The bytes of elements of one set or map.

    Args:
        declared: what the kernel says of the set.
        mark: what attributes that hold others have in their type: `netlink.NESTED` to the kernel, 0 from it.

    Raises:
        Unavailable: ranges, or a type that isn't known here.
    """

    def __init__(self, declared: Attributes, mark: int) -> None:
        if number_of(declared.get(SET_FLAGS, b"")) & INTERVAL:
            raise Unavailable("ranges are left to libnftables")
        self._mark = mark
        self._key_types = types_of(number_of(declared[SET_KEY_TYPE]))
        self._key_length = number_of(declared[SET_KEY_LENGTH])
        data_type = number_of(declared.get(SET_DATA_TYPE, b""))
        self._data_types = [] if data_type == VERDICT_TYPE else types_of(data_type)
        self._data_length = number_of(declared.get(SET_DATA_LENGTH, b""))
        self._alone = self._frame(b"")
        before, rest = self._frame(self._value(ELEMENT_DATA, bytes(self._data_length)))
        data_start = len(rest) - aligned(self._data_length)
        self._with_data = before, rest[:data_start], rest[data_start + self._data_length :]

    def element(self, key: str, value: str) -> bytes:
        """An element as an attribute, with its value unless that is "".

        Raises:
            Unavailable: they aren't what this set has.
        """
        packed = point(key, self._key_types, self._key_length)
        if not value:
            before, after = self._alone
            return before + packed + after
        if not self._data_types:
            return self._holding(LIST_ELEMENT, self._value(ELEMENT_KEY, packed) + self._verdict(value))
        before, between, after = self._with_data
        return before + packed + between + point(value, self._data_types, self._data_length) + after

    def _frame(self, data: bytes) -> tuple[bytes, bytes]:
        """What is before and after the key of each element; all have the same length."""
        whole = self._holding(LIST_ELEMENT, self._value(ELEMENT_KEY, bytes(self._key_length)) + data)
        return whole[:KEY_START], whole[KEY_START + self._key_length :]

    def _verdict(self, value: str) -> bytes:
        word, _, chain = value.partition(" ")
        if word not in CODES or not chain:
            raise Unavailable(f"the verdict {value} is not known here")
        verdict = attribute(VERDICT_CODE, CODES[word]) + named(VERDICT_CHAIN, chain)
        return self._holding(ELEMENT_DATA, self._holding(DATA_VERDICT, verdict))

    def _value(self, kind: int, data: bytes) -> bytes:
        return self._holding(kind, attribute(DATA_VALUE, data))

    def _holding(self, kind: int, attributes: bytes) -> bytes:
        return attribute(kind | self._mark, attributes)


def declaration_of(kernel: socket.socket, family: Family, container: str) -> Attributes | None:
    """What the kernel says of a set or map of ours, None if there is none.

    Raises:
        OSError: the kernel doesn't answer.
    """
    wanted = named(SET_TABLE, TABLE) + named(SET_NAME, container)
    try:
        (declared,) = exchange(kernel, GET_SET, FAMILY_NUMBER[family], wanted, ACKNOWLEDGE)
    except FileNotFoundError:
        return None
    return declared
