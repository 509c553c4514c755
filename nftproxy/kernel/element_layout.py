"""Which bytes the elements of a set or map are, in netlink messages to the kernel and in those from it.

All elements of a set have one frame of attributes around the bytes of their keys and values, which is made once
(set_keys.py has those bytes).  The kernel wants attributes that hold others to be marked, and doesn't mark its own.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from nftproxy.kernel.netlink import ACKNOWLEDGE, ATTRIBUTE, FAMILY_NUMBER, aligned, attribute, named, number_of, split
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
from nftproxy.kernel.set_keys import NOT_PACKED, Packer, packer, types_of
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
        self._key_length = number_of(declared[SET_KEY_LENGTH])
        self._pack_key = packer(types_of(number_of(declared[SET_KEY_TYPE])), self._key_length)
        data_type = number_of(declared.get(SET_DATA_TYPE, b""))
        self._has_verdicts = data_type == VERDICT_TYPE
        self._pack_data: Packer | None = None
        length = 0
        if data_type and not self._has_verdicts:
            length = number_of(declared[SET_DATA_LENGTH])
            self._pack_data = packer(types_of(data_type), length)
        self._alone = self._frame(b"")
        before, rest = self._frame(self._value(ELEMENT_DATA, bytes(length)))
        data_start = len(rest) - aligned(length)
        self._with_data = before, rest[:data_start], rest[data_start + length :]
        before, rest = (before, rest) if self._pack_data else self._alone
        self._whole = struct.Struct(f"{len(before) + self._key_length + len(rest)}s")

    def element(self, key: str, value: str) -> bytes:
        """An element as an attribute, with its value unless that is "".

        Raises:
            Unavailable: they aren't what this set has.
        """
        try:
            packed = self._pack_key(key)
            if not value:
                before, after = self._alone
                return before + packed + after
            if self._pack_data is None:
                return self._holding(LIST_ELEMENT, self._value(ELEMENT_KEY, packed) + self._verdict(value))
            before, between, after = self._with_data
            return before + packed + between + self._pack_data(value) + after
        except NOT_PACKED as error:
            raise Unavailable(f"{key} : {value} is not what the kernel's keys and values are: {error}") from error

    def elements_of(self, listed: bytes) -> Iterator[bytes]:
        """The elements in a part of the kernel's listing, each as an attribute.

        All have one length, except those with verdicts.  One with anything more than ours have, such as a comment, may
        come in pieces: the first of these says another length than it has, so it is nothing that `element` makes.

        Raises:
            Unavailable: the last of them has another length.
        """
        if self._has_verdicts:
            return split(listed)
        try:
            return (element for (element,) in self._whole.iter_unpack(listed))
        except struct.error as error:
            raise Unavailable("an element has another length than ours") from error

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
