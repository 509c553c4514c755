"""An exact copy of a table in the kernel, for another network namespace.

nft's text isn't exact: nft 1.0.6 prints `dnat ip to` for a rule that it accepts only as `dnat ip addr . port to`, and
it crashes on sets that 1.1.2 or later has made.  So the kernel's own description of each table, chain, set, element and
rule is read over nfnetlink and sent back unchanged, except for attributes that only the kernel may set: handles,
positions and counts.

Reading takes no lock that packets need. 100,000 elements are some 10 MB.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Collection
from typing import NamedTuple

from nftproxy.kernel.nfnetlink.nft_queries import FAMILIES, generation, table_comment, tables
from nftproxy.kernel.nfnetlink.sockets import BUFFER_SIZE, bodies, make_room, open_socket
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    APPEND,
    ATTRIBUTE,
    CREATE,
    DUMP,
    FAMILY_NUMBER,
    GENERAL,
    KIND_MASK,
    Attributes,
    attribute,
    attribute_map,
    attributes_of,
    body_attributes,
    messages_of,
    named,
    nested,
    number_of,
    padded,
    split,
    text_of,
)

ATTEMPTS = 10  # at a table that other programs keep changing

# The attributes to send back, by NFTA_* numbers.
TABLE_ATTRIBUTES = frozenset({1, 6})  # name and user data: of the flags only `dormant`, as another makes an owner
CHAIN_ATTRIBUTES = frozenset({1, 3, 4, 5, 7, 12})  # table, name, hook, policy, type, user data
SET_ATTRIBUTES = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 17, 18})  # all but ID, handle, type and count
ELEMENT_ATTRIBUTES = frozenset({1, 2, 3})  # table, set, elements
RULE_ATTRIBUTES = frozenset({1, 2, 4, 7})  # table, chain, expressions, user data
RULE_EXPRESSIONS, RULE_COMPAT = 4, 5  # NFTA_RULE_EXPRESSIONS, NFTA_RULE_COMPAT
COMPAT_PROTOCOL, COMPAT_FLAGS, INVERTED = 1, 2, 2  # NFTA_RULE_COMPAT_*, NFT_RULE_COMPAT_F_INV
META_KEY, L4PROTO = 2, 16  # NFTA_META_KEY, NFT_META_L4PROTO
PAYLOAD_BASE, PAYLOAD_OFFSET = 2, 3  # NFTA_PAYLOAD_*
NETWORK_HEADER, IPV4_PROTOCOL = 1, 9  # NFT_PAYLOAD_NETWORK_HEADER, the offset of IPv4's protocol
CMP_OPERATION, CMP_DATA, NOT_EQUAL = 2, 3, 1  # NFTA_CMP_OP, NFTA_CMP_DATA, NFT_CMP_NEQ

OBJECT_ATTRIBUTES = frozenset({1, 2, 3, 4})  # table, name, type, data: a counter, quota or limit with a name
NEW_OBJECT, GET_OBJECT = 18, 19  # NFT_MSG_NEWOBJ, NFT_MSG_GETOBJ


class TableCopy(NamedTuple):
    """A table as the messages that make it: table, chains and sets, elements, and rules last.

    `title` is its family and name, as nft writes them.
    """

    title: str
    messages: tuple[bytes, ...]


class Hook(NamedTuple):
    """The hook of a base chain, by nft's name, and the priority."""

    name: str
    priority: int


def read_table(family: Family) -> TableCopy | None:
    """Return a copy of our table in the network namespace of this thread, or None if there is none.

    Raises:
        Unavailable: the kernel does not answer, or the table keeps changing.
    """
    for _ in range(ATTEMPTS):
        before = generation()
        if table_comment(family, TABLE) is None:
            return None
        copy = _try_to_read(family.value, FAMILY_NUMBER[family], TABLE)
        if copy is not None and generation() == before:
            return copy
    raise Unavailable(f"the table {family.table} changed {ATTEMPTS} times while it was being read")


def read_other_tables(ours: Collection[str]) -> list[TableCopy]:
    """Return copies of all other programs' tables of inet, ip and ip6, in the network namespace of this thread.

    `ours` are the names of our tables.  A chain of netdev belongs to a device of the real node, so it can't be copied.

    Raises:
        Unavailable: the kernel does not answer, or the tables keep changing.
    """
    for _ in range(ATTEMPTS):
        before = generation()
        titles = [title.partition(" ")[::2] for title in tables()]
        found = [_try_to_read(family, FAMILIES[family], name) for family, name in titles if name not in ours]
        if generation() == before and None not in found:
            return [copy for copy in found if copy is not None]
    raise Unavailable(f"other programs' tables changed {ATTEMPTS} times while they were being read")


def _try_to_read(family: str, number: int, table: str) -> TableCopy | None:
    """Return a copy of a table, or None if it changed or was deleted meanwhile, or one of its sets was."""
    try:
        return TableCopy(f"{family} {table}", _read(number, table))
    except (InterruptedError, FileNotFoundError):
        return None
    except OSError as error:
        raise Unavailable(f"the kernel's table {family} {table} can't be read: {error.strerror}") from error


def write_table(copy: TableCopy) -> None:
    """Make the table in the network namespace of this thread, which should have none, in one transaction.

    Raises:
        Unavailable: the kernel refuses it.
    """
    try:
        _send(copy.messages)
    except OSError as error:
        raise Unavailable(f"a copy of the table {copy.title} can't be made: {error.strerror}") from error


def hooks(family: Family) -> dict[str, Hook]:
    """Return the hooks of our table's base chains.

    Raises:
        OSError: the kernel does not answer.
    """
    found = {}
    for body in _dump(nft.GET_CHAIN, FAMILY_NUMBER[family]):
        held = body_attributes(body)
        if _is_of(body, TABLE) and nft.CHAIN_HOOK in held:
            hook = attribute_map(held[nft.CHAIN_HOOK])
            priority = number_of(hook[nft.HOOK_PRIORITY], signed=True)
            found[text_of(held[nft.CHAIN_NAME])] = Hook(nft.HOOKS[number_of(hook[nft.HOOK_NUMBER])], priority)
    return found


def _read(number: int, table: str) -> tuple[bytes, ...]:
    of_table = named(nft.OF_TABLE, table)
    own, chains, objects, sets, rules = (
        [body for body in _dump(kind, number, of_table) if _is_of(body, table)]
        for kind in (nft.GET_TABLE, nft.GET_CHAIN, GET_OBJECT, nft.GET_SET, nft.GET_RULE)
    )
    names = [text_of(body_attributes(body)[nft.SET_NAME]) for body in sets]
    elements = [
        body for name in names for body in _dump(nft.GET_ELEMENTS, number, of_table + named(nft.LIST_SET, name))
    ]
    identities = (attribute(nft.SET_ID, identity.to_bytes(4, "big")) for identity in itertools.count(1))
    return (
        *(_again(nft.NEW_TABLE, number, body, TABLE_ATTRIBUTES, _dormant(body)) for body in own),
        *(_again(nft.NEW_CHAIN, number, body, CHAIN_ATTRIBUTES) for body in chains),
        *(_again(NEW_OBJECT, number, body, OBJECT_ATTRIBUTES) for body in objects),
        # A new set has an ID in its batch, even if nothing refers to it by that.
        *(_again(nft.NEW_SET, number, body, SET_ATTRIBUTES, next(identities)) for body in sets),
        *(_again(nft.NEW_ELEMENTS, number, body, ELEMENT_ATTRIBUTES) for body in elements),
        *(_again(nft.NEW_RULE, number, body, RULE_ATTRIBUTES, _compatible(body), flags=APPEND) for body in rules),
    )


def _dormant(body: bytes) -> bytes:
    """Return the attribute that makes a table dormant, if it is."""
    flags = number_of(body_attributes(body).get(nft.TABLE_FLAGS, b"")) & nft.DORMANT
    return attribute(nft.TABLE_FLAGS, flags.to_bytes(4, "big")) if flags else b""


def _compatible(rule: bytes) -> bytes:
    """Return the attribute by which matches and targets of iptables learn the rule's protocol, if it has both.

    Some refuse a rule without it, such as `icmp` and `multiport`, and the kernel doesn't name it in answers.
    """
    if not any(word in rule for word in (b"match\0", b"target\0")):
        return b""
    expressions = [attribute_map(item) for _, item in attributes_of(body_attributes(rule)[RULE_EXPRESSIONS])]
    held = [(text_of(each[nft.EXPRESSION_NAME]), attribute_map(each[nft.EXPRESSION_DATA])) for each in expressions]
    for (name, loaded), (test, compared) in itertools.pairwise(held):
        if test == "cmp" and _is_protocol(name, loaded):
            protocol = number_of(attribute_map(compared[CMP_DATA])[nft.DATA_VALUE])
            flags = INVERTED if number_of(compared[CMP_OPERATION]) == NOT_EQUAL else 0
            numbers = ((COMPAT_PROTOCOL, protocol), (COMPAT_FLAGS, flags))
            parts = b"".join(attribute(kind, value.to_bytes(4, "big")) for kind, value in numbers)
            return nested(RULE_COMPAT, parts)
    return b""


def _is_protocol(name: str, loaded: Attributes) -> bool:
    """Whether an expression loads the protocol: `meta l4proto`, or IPv4's field, as iptables 1.8.11 has it."""
    if name == "meta":
        return number_of(loaded.get(META_KEY, b"")) == L4PROTO
    place = number_of(loaded.get(PAYLOAD_BASE, b"")), number_of(loaded.get(PAYLOAD_OFFSET, b""))
    return name == "payload" and place == (NETWORK_HEADER, IPV4_PROTOCOL)


def _again(kind: int, family: int, body: bytes, wanted: frozenset[int], more: bytes = b"", *, flags: int = 0) -> bytes:
    """Return the request that makes the object of a message anew, with the wanted attributes only."""
    kept = [padded(raw) for raw in split(body, GENERAL.size) if ATTRIBUTE.unpack_from(raw)[1] & KIND_MASK in wanted]
    return nft.request(kind, CREATE | flags, family, b"".join(kept) + more)


def _dump(kind: int, family: int, attributes: bytes = b"") -> list[bytes]:
    """Return the bodies of the messages in the kernel's answer."""
    with open_socket() as kernel:
        return list(bodies(kernel, nft.request(kind, DUMP, family, attributes)))


def _send(messages: tuple[bytes, ...]) -> None:
    """Have the kernel commit messages as one transaction."""
    data = nft.batch(messages)
    with open_socket() as kernel:
        make_room(kernel, socket.SO_SNDBUF, 2 * len(data))
        kernel.sendto(data, (0, 0))
        for _ in messages_of(kernel.recv(BUFFER_SIZE)):
            return


def _is_of(body: bytes, table: str) -> bool:
    return text_of(body_attributes(body)[nft.OF_TABLE]) == table
