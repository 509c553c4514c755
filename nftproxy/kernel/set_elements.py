"""The elements of maps that packets write, listed or counted in parts over nfnetlink, without libnftables.

libnftables lists a set as a whole: for a map of a million clients it takes minutes and gigabytes.  Here

* `dump` reads a listing part by part, and whoever reads may stop at any time.  The kernel finds the next part by going
  over the set from its start, so that a listing costs the square of its length: 10,000 elements take some 20 ms;
* `is_full` tries to add an element in a batch that has no end, and so leaves nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import msgspec

from nftproxy.kernel import nftables_netlink as nft
from nftproxy.kernel.netlink import (
    DUMP,
    FAMILY_NUMBER,
    GENERAL,
    attribute,
    attributes_of,
    bodies,
    named,
    nested,
    number_of,
    open_socket,
    request,
)
from nftproxy.kernel.set_keys import decoded, types_of, width
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable


class Entry(msgspec.Struct, frozen=True):
    """One element: its key and value in the parts that nft's text has, and what is left of its time, in seconds."""

    key: tuple[str, ...]
    value: tuple[str, ...]
    seconds_left: float


def dump(family: Family, table: str, container: nft.NamedSet) -> Iterator[list[Entry]]:
    """The elements of a set, in parts of some 300 as the kernel gives them; closing the generator ends it.

    What is added or goes meanwhile may be missing, and an element may come twice.

    Raises:
        Unavailable: the kernel does not answer.
    """
    for part in items(family, table, container.name):
        yield list(_entries(part, container))


def count(family: Family, table: str, container: nft.NamedSet, most: int) -> tuple[int, bool]:
    """How many elements a set has, and whether it may have more than were counted.

    Raises:
        Unavailable: the kernel does not answer.
    """
    found = 0
    for part in items(family, table, container.name):
        found += len(part)
        if found >= most:
            return found, True
    return found, False


def items(family: Family, table: str, name: str) -> Iterator[list[bytes]]:
    """The elements of a set as the kernel describes them, in the parts of `listings`."""
    for listed in listings(family, table, name):
        yield [item for _, item in attributes_of(listed)]


def listings(family: Family, table: str, name: str) -> Iterator[bytes]:
    """The elements of a set in parts, each of which is attributes; none if the set has gone meanwhile.

    Otherwise as `dump`.
    """
    names = named(nft.LIST_TABLE, table) + named(nft.LIST_SET, name)
    asked = request(nft.SUBSYSTEM, nft.GET_ELEMENTS, DUMP, FAMILY_NUMBER[family], names)
    try:
        with open_socket() as kernel:
            for body in bodies(kernel, asked, nft.BUFFER_SIZE, may_change=True):
                yield dict(attributes_of(body, GENERAL.size)).get(nft.LIST_ELEMENTS, b"")
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise Unavailable(nft.why(error)) from error


def is_full(family: Family, table: str, container: nft.NamedSet) -> bool:
    """Whether a map takes no more elements; nothing is left of the try.

    Raises:
        Unavailable: the kernel does not answer.
    """
    key, value = (bytes(width(types_of(kind))) for kind in (container.key_type, container.data_type))
    parts = (nft.ELEMENT_KEY, key), (nft.ELEMENT_DATA, value)
    element = b"".join(nested(part, attribute(nft.DATA_VALUE, zeros)) for part, zeros in parts)
    body = _elements(table, container.name, element)
    try:
        nft.try_in_batch(nft.NEW_ELEMENTS, FAMILY_NUMBER[family], body)
    except OSError as error:
        if error.errno == errno.ENFILE:
            return True
        if error.errno not in (errno.ENOENT, errno.EEXIST):
            raise Unavailable(nft.why(error)) from error
    return False


def _elements(table: str, name: str, element: bytes) -> bytes:
    items = nested(nft.LIST_ELEMENTS, nested(nft.LIST_ELEMENT, element))
    return named(nft.LIST_TABLE, table) + named(nft.LIST_SET, name) + items


def _entries(part: list[bytes], container: nft.NamedSet) -> Iterator[Entry]:
    key_types, value_types = types_of(container.key_type), types_of(container.data_type)
    for item in part:
        found = dict(attributes_of(item))
        yield Entry(
            decoded(_value(found[nft.ELEMENT_KEY]), key_types),
            decoded(_value(found[nft.ELEMENT_DATA]), value_types),
            number_of(found.get(nft.ELEMENT_EXPIRATION, b"")) / 1000,
        )


def _value(data: bytes) -> bytes:
    return dict(attributes_of(data))[nft.DATA_VALUE]
