"""Elements of our tables' sets and maps, read from the kernel without libnftables.

libnftables fetches whole sets to answer `get element` (1.0.6), and lists a set as a whole: for a map of a million
clients it takes minutes and gigabytes.  Here

* `ElementLookup` looks up single elements by their keys (NFT_MSG_GETSETELEM).
* `listings` and the functions that use it read part by part, and the caller may stop at any time. The kernel finds the
  next part by walking the set from its start, so a listing costs the square of its length: 10,000 elements take some 20
  ms.
* `is_full` tries to add an element in a batch without an end, which the kernel rolls back.

All of it takes CAP_NET_ADMIN in the network namespace of the thread that asks.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Self

import msgspec

from nftproxy.kernel.nfnetlink.element_codec import decoded, key_bounds, key_width, types_of, value_bytes, value_text
from nftproxy.kernel.nfnetlink.nft_queries import (
    NamedSet,
    chains,
    declaration_of,
    exchange,
    sets,
    try_in_batch,
    why,
)
from nftproxy.kernel.nfnetlink.sockets import bodies, open_socket
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    ACKNOWLEDGE,
    DUMP,
    FAMILY_NUMBER,
    Attributes,
    attribute,
    attribute_map,
    attributes_of,
    body_attributes,
    nested,
    number_of,
)
from nftproxy.rules.ruleset import FoundElement


class ListedElement(msgspec.Struct, frozen=True):
    """An element: the parts of its key and value in nft's text, and the seconds until it expires."""

    key: tuple[str, ...]
    value: tuple[str, ...]
    seconds_left: float


class ElementLookup:
    """Looks up elements of our tables over one socket.

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

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def find(self, family: Family, container: str, key: str) -> FoundElement | None:
        """Return the element with this key, written as in our statements, or None.

        Raises:
            Unavailable: the kernel does not answer, or the set's keys or values are of an unknown type.
        """
        try:
            return self._find(family, container, key)
        except OSError as error:
            raise Unavailable(why(error)) from error

    def _find(self, family: Family, container: str, key: str) -> FoundElement | None:
        declared = self._declaration(family, container)
        if declared is None:
            return None
        first, last = key_bounds(key, types_of(number_of(declared[nft.SET_KEY_TYPE])))
        found = self._get(family, container, first)
        if found is None or value_bytes(found[nft.ELEMENT_KEY]) != first:
            return None
        if nft.ELEMENT_KEY_END in found or not nft.set_flags(declared) & nft.INTERVAL:
            is_same = value_bytes(found.get(nft.ELEMENT_KEY_END, found[nft.ELEMENT_KEY])) == last
        else:
            is_same = self._ends_after(family, container, last)
        expires = _seconds(found) if nft.ELEMENT_EXPIRATION in found else None
        return FoundElement(value_text(found, declared), expires) if is_same else None

    def _ends_after(self, family: Family, container: str, last: bytes) -> bool:
        """True if a range ends with this key: such sets have a separate element for the first key after a range."""
        beyond = number_of(last) + 1
        end = self._get(family, container, last, nft.INTERVAL_END)
        if beyond >> 8 * len(last):
            return end is None
        return end is not None and number_of(value_bytes(end[nft.ELEMENT_KEY])) == beyond

    def _get(self, family: Family, container: str, key: bytes, flags: int = 0) -> Attributes | None:
        """Return the kernel's element for a key, which may be a range around it, or None.  None also if there is no
        such set.
        """
        flagged = attribute(nft.ELEMENT_FLAGS, flags.to_bytes(4, "big")) if flags else b""
        element = nested(nft.ELEMENT_KEY, attribute(nft.DATA_VALUE, key)) + flagged
        wanted = nft.of_set(container) + nested(nft.LIST_ELEMENTS, nested(nft.LIST_ELEMENT, element))
        try:
            answers = exchange(self._socket, nft.GET_ELEMENTS, FAMILY_NUMBER[family], wanted, ACKNOWLEDGE)
        except FileNotFoundError:
            return None
        found = [each for answer in answers for _, each in attributes_of(answer.get(nft.LIST_ELEMENTS, b""))]
        return attribute_map(found[0]) if found else None

    def _declaration(self, family: Family, container: str) -> Attributes | None:
        if (family, container) not in self._declared:
            self._declared[family, container] = declaration_of(self._socket, family, container)
        return self._declared[family, container]


def listings(family: Family, name: str) -> Iterator[bytes]:
    """Yield the elements of a set in parts of some 300, each part as attributes, none if the set has gone.

    Elements that are added or deleted meanwhile may be missing, and an element may be listed twice.  Closing the
    generator ends the listing.

    Raises:
        Unavailable: the kernel does not answer.
    """
    asked = nft.request(nft.GET_ELEMENTS, DUMP, FAMILY_NUMBER[family], nft.of_set(name))
    try:
        with open_socket() as kernel:
            for body in bodies(kernel, asked, may_change=True):
                yield body_attributes(body).get(nft.LIST_ELEMENTS, b"")
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unavailable(why(error)) from error


def items(family: Family, name: str) -> Iterator[list[bytes]]:
    """Yield the elements of a set as the kernel's bytes, in the parts of `listings`."""
    for listed in listings(family, name):
        yield [item for _, item in attributes_of(listed)]


def listed_elements(family: Family, container: NamedSet) -> Iterator[list[ListedElement]]:
    """Yield the elements of a map that packets write, in the parts of `listings`."""
    key_types, value_types = types_of(container.key_type), types_of(container.data_type)
    for part in items(family, container.name):
        yield [_listed(attribute_map(item), key_types, value_types) for item in part]


def count_elements(family: Family, container: NamedSet, most: int) -> tuple[int, bool]:
    """Return the number of a set's elements, and whether there may be more than were counted.

    Raises:
        Unavailable: the kernel does not answer.
    """
    found = 0
    for part in items(family, container.name):
        found += len(part)
        if found >= most:
            return found, True
    return found, False


def elements_in_force(family: Family, most: int) -> int | None:
    """Return the number of elements in our table, if it has hooks, else None.

    Sets whose elements the kernel doesn't count are counted singly, each up to `most`.

    Raises:
        Unavailable: the kernel does not answer.
    """
    if not any(chains(family, TABLE).values()):
        return None
    held = sets(family)
    return sum(count_elements(family, each, most)[0] if each.count is None else each.count for each in held)


def is_full(family: Family, container: NamedSet) -> bool:
    """True if a map or set takes no more elements.

    Raises:
        Unavailable: the kernel does not answer.
    """
    parts = [(nft.ELEMENT_KEY, container.key_type)]
    parts += [(nft.ELEMENT_DATA, container.data_type)] if container.is_map else []
    zeros = ((part, attribute(nft.DATA_VALUE, bytes(key_width(types_of(kind))))) for part, kind in parts)
    element = nested(nft.LIST_ELEMENT, b"".join(nested(part, value) for part, value in zeros))
    wanted = nft.of_set(container.name) + nested(nft.LIST_ELEMENTS, element)
    try:
        try_in_batch(nft.NEW_ELEMENTS, FAMILY_NUMBER[family], wanted)
    except OSError as error:
        if error.errno == errno.ENFILE:
            return True
        if error.errno not in (errno.ENOENT, errno.EEXIST):
            raise Unavailable(why(error)) from error
    return False


def _listed(found: Attributes, key_types: list[int], value_types: list[int]) -> ListedElement:
    key, value = value_bytes(found[nft.ELEMENT_KEY]), value_bytes(found[nft.ELEMENT_DATA])
    return ListedElement(decoded(key, key_types), decoded(value, value_types), _seconds(found))


def _seconds(found: Attributes) -> float:
    """Return the seconds until an element expires, 0 if it doesn't."""
    return number_of(found.get(nft.ELEMENT_EXPIRATION, b"")) / 1000
