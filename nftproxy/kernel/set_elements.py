"""The elements of maps that packets write, listed or counted in parts over nfnetlink, without libnftables.

libnftables lists a set as a whole: for a map of a million clients it takes minutes and gigabytes.  Here

* `dump` reads a listing part by part, and whoever reads may stop at any time.  The kernel finds the next part by going
  over the set from its start, so that a listing costs the square of its length: 10,000 elements take some 20 ms;
* `is_full` tries to add an element in a batch that has no end, and so leaves nothing.

A key is bytes as the kernel has them: each part of a concatenation as wide as its type, filled up to four bytes.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator

import msgspec

from nftproxy.kernel import nftables_netlink as nft
from nftproxy.kernel.netlink import (
    DONE,
    DUMP,
    ERROR,
    FAMILY_NUMBER,
    GENERAL,
    NESTED,
    attribute,
    attributes_of,
    messages_of,
    open_socket,
    request,
)
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable

NEW_ELEMENTS, GET_ELEMENTS = 12, 13
LIST_TABLE, LIST_SET, LIST_ELEMENTS = 1, 2, 3  # NFTA_SET_ELEM_LIST_*
ITEM, VALUE = 1, 1  # NFTA_LIST_ELEM, NFTA_DATA_VALUE
KEY, DATA, EXPIRATION = 1, 2, 5  # NFTA_SET_ELEM_*

# nft's numbers of the types that our keys and data have (include/datatype.h), with their width in bytes.
IPV4_ADDRESS, IPV6_ADDRESS, SERVICE = 7, 8, 13
WIDTHS = {IPV4_ADDRESS: 4, IPV6_ADDRESS: 16, SERVICE: 2}
ALIGNMENT = 4


class Entry(msgspec.Struct, frozen=True):
    """One element: its key and value in the parts that nft's text has, and what is left of its time, in seconds."""

    key: tuple[str, ...]
    value: tuple[str, ...]
    seconds_left: float


def decode(data: bytes, kind: int) -> tuple[str, ...]:
    """The parts of a key or datum, as nft's text has them."""
    found, start = [], 0
    for each in _kinds(kind):
        width = WIDTHS[each]
        found.append(_decoded(data[start : start + width], each))
        start += -(-width // ALIGNMENT) * ALIGNMENT
    return tuple(found)


def _kinds(kind: int) -> list[int]:
    """The types in a concatenation's number, six bits each, the first part's highest."""
    found = []
    while kind:
        found.append(kind & 0x3F)
        kind >>= 6
    return found[::-1]


def _decoded(data: bytes, kind: int) -> str:
    if kind == IPV4_ADDRESS:
        return socket.inet_ntop(socket.AF_INET, data)
    if kind == IPV6_ADDRESS:
        return str(ipaddress.IPv6Address(data))
    return str(int.from_bytes(data, "big"))


def dump(family: Family, table: str, container: nft.NamedSet) -> Iterator[list[Entry]]:
    """The elements of a set, in parts of some 300 as the kernel gives them; closing the generator ends it.

    What is added or goes meanwhile may be missing, and an element may come twice.

    Raises:
        Unavailable: the kernel does not answer.
    """
    for body in _dump(family, table, container):
        yield list(_entries(body, container))


def count(family: Family, table: str, container: nft.NamedSet, most: int) -> tuple[int, bool]:
    """How many elements a set has, and whether it may have more than were counted.

    Raises:
        Unavailable: the kernel does not answer.
    """
    found = 0
    for body in _dump(family, table, container):
        found += sum(1 for _ in _items(body))
        if found >= most:
            return found, True
    return found, False


def _dump(family: Family, table: str, container: nft.NamedSet) -> Iterator[bytes]:
    """The messages of a listing; none if the set has gone meanwhile."""
    names = nft.named(LIST_TABLE, table) + nft.named(LIST_SET, container.name)
    try:
        with open_socket() as kernel:
            kernel.sendto(request(nft.SUBSYSTEM, GET_ELEMENTS, DUMP, FAMILY_NUMBER[family], names), (0, 0))
            while True:
                for kind, body in messages_of(kernel.recv(nft.BUFFER_SIZE), may_change=True):
                    if kind in (ERROR, DONE):
                        return
                    yield body
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise Unavailable(nft.why(error)) from error


def is_full(family: Family, table: str, container: nft.NamedSet) -> bool:
    """Whether a map takes no more elements; nothing is left of the try.

    Raises:
        Unavailable: the kernel does not answer.
    """
    key, value = bytes(_width(container.key_type)), bytes(_width(container.data_type))
    element = _nested(KEY, attribute(VALUE, key)) + _nested(DATA, attribute(VALUE, value))
    body = _elements(table, container.name, element)
    try:
        nft.try_in_batch(NEW_ELEMENTS, FAMILY_NUMBER[family], body)
    except OSError as error:
        if error.errno == errno.ENFILE:
            return True
        if error.errno not in (errno.ENOENT, errno.EEXIST):
            raise Unavailable(nft.why(error)) from error
    return False


def _width(kind: int) -> int:
    kinds = _kinds(kind)
    return WIDTHS[kinds[0]] if len(kinds) == 1 else sum(-(-WIDTHS[each] // ALIGNMENT) * ALIGNMENT for each in kinds)


def _nested(kind: int, value: bytes) -> bytes:
    return attribute(kind | NESTED, value)


def _elements(table: str, name: str, element: bytes) -> bytes:
    items = _nested(LIST_ELEMENTS, _nested(ITEM, element))
    return nft.named(LIST_TABLE, table) + nft.named(LIST_SET, name) + items


def _items(body: bytes) -> Iterator[bytes]:
    listed = dict(attributes_of(body, GENERAL.size)).get(LIST_ELEMENTS, b"")
    return (item for _, item in attributes_of(listed))


def _entries(body: bytes, container: nft.NamedSet) -> Iterator[Entry]:
    for item in _items(body):
        found = dict(attributes_of(item))
        yield Entry(
            decode(_value(found[KEY], VALUE), container.key_type),
            decode(_value(found[DATA], VALUE), container.data_type),
            _seconds(found.get(EXPIRATION, b"")),
        )


def _value(data: bytes, kind: int) -> bytes:
    return dict(attributes_of(data))[kind]


def _seconds(milliseconds: bytes) -> float:
    return int.from_bytes(milliseconds, "big") / 1000
