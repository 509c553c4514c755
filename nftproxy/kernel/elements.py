"""Single elements of a table's sets and maps, asked for by their keys: never a listing, whatever the set holds.

nft itself fetches whole sets to answer `get element` (1.0.6).  The kernel takes a key as bytes and answers with that
element alone (NFT_MSG_GETSETELEM).

It takes CAP_NET_ADMIN in the network namespace of the thread that asks.
"""

from __future__ import annotations

import errno
from types import TracebackType
from typing import NamedTuple, Self

from nftproxy.kernel.element_layout import declaration_of
from nftproxy.kernel.netlink import (
    ACKNOWLEDGE,
    FAMILY_NUMBER,
    attribute,
    attributes_of,
    named,
    nested,
    number_of,
    open_socket,
    text_of,
)
from nftproxy.kernel.nftables_netlink import (
    DATA_VALUE,
    DATA_VERDICT,
    ELEMENT_DATA,
    ELEMENT_EXPIRATION,
    ELEMENT_KEY,
    GET_ELEMENTS,
    INTERVAL,
    LIST_ELEMENT,
    LIST_ELEMENTS,
    LIST_SET,
    LIST_TABLE,
    SET_DATA_TYPE,
    SET_FLAGS,
    SET_KEY_TYPE,
    VERDICT_CHAIN,
    VERDICT_CODE,
    VERDICTS,
    Attributes,
    exchange,
    why,
)
from nftproxy.kernel.set_keys import decoded, encoded, types_of
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable

FLAGS, KEY_END = 3, 10  # NFTA_SET_ELEM_*
INTERVAL_END = 0x1  # NFT_SET_ELEM_INTERVAL_END


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
        first, last = encoded(key, types_of(number_of(declared[SET_KEY_TYPE])))
        found = self._get(family, container, first)
        if found is None or _value(found[ELEMENT_KEY]) != first:
            return None
        if KEY_END in found or not number_of(declared.get(SET_FLAGS, b"")) & INTERVAL:
            is_same = _value(found.get(KEY_END, found[ELEMENT_KEY])) == last
        else:
            is_same = self._ends_after(family, container, last)
        return Found(value_text(found, declared), _seconds(found)) if is_same else None

    def _ends_after(self, family: Family, container: str, last: bytes) -> bool:
        """Whether a range ends with this key: such sets have an element of its own for the first key that is beyond."""
        beyond = number_of(last) + 1
        end = self._get(family, container, last, INTERVAL_END)
        if beyond >> 8 * len(last):
            return end is None
        return end is not None and number_of(_value(end[ELEMENT_KEY])) == beyond

    def _get(self, family: Family, container: str, key: bytes, flags: int = 0) -> Attributes | None:
        """What the kernel has for a key, which may be a range that holds it."""
        flagged = attribute(FLAGS, flags.to_bytes(4, "big")) if flags else b""
        element = nested(LIST_ELEMENT, nested(ELEMENT_KEY, attribute(DATA_VALUE, key)) + flagged)
        wanted = named(LIST_TABLE, TABLE) + named(LIST_SET, container) + nested(LIST_ELEMENTS, element)
        answers = self._ask(family, wanted)
        found = [each for answer in answers for _, each in attributes_of(answer.get(LIST_ELEMENTS, b""))]
        return dict(attributes_of(found[0])) if found else None

    def _declaration(self, family: Family, container: str) -> Attributes | None:
        if (family, container) not in self._declared:
            try:
                self._declared[family, container] = declaration_of(self._socket, family, container)
            except OSError as error:
                raise Unavailable(why(error)) from error
        return self._declared[family, container]

    def _ask(self, family: Family, attributes: bytes) -> list[Attributes]:
        """The kernel's answers about elements; none if what was named is not there."""
        try:
            return exchange(self._socket, GET_ELEMENTS, FAMILY_NUMBER[family], attributes, ACKNOWLEDGE)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return []
            raise Unavailable(why(error)) from error


def value_text(parts: Attributes, declared: Attributes) -> str:
    """The value of an element as nft's text has it, "" without one; `declared` is what the kernel says of the map."""
    if ELEMENT_DATA not in parts:
        return ""
    data = dict(attributes_of(parts[ELEMENT_DATA]))
    if DATA_VERDICT in data:
        verdict = dict(attributes_of(data[DATA_VERDICT]))
        code = int.from_bytes(verdict[VERDICT_CODE], "big", signed=True)
        return f"{VERDICTS.get(code, code)} {text_of(verdict.get(VERDICT_CHAIN, b''))}"
    return " . ".join(decoded(data[DATA_VALUE], types_of(number_of(declared[SET_DATA_TYPE]))))


def _seconds(parts: Attributes) -> float | None:
    return number_of(parts[ELEMENT_EXPIRATION]) / 1000 if ELEMENT_EXPIRATION in parts else None


def _value(data: bytes) -> bytes:
    return dict(attributes_of(data))[DATA_VALUE]
