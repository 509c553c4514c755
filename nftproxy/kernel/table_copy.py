"""An exact copy of a table that the kernel holds, for another network namespace.

nft's text would not do: nft 1.0.6 prints `dnat ip to` for a rule that it takes only as `dnat ip addr . port to`, and it
dies of sets that 1.1.2 or later has made.  So the kernel's own description of each table, chain, set, element and rule
is read over nfnetlink and sent back as it came, except what only the kernel may give: handles, positions and counts.

Reading takes no lock that packets need.  100,000 elements are some 10 MB.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import NamedTuple

from nftproxy.kernel import nftables_netlink
from nftproxy.kernel.netlink import (
    ATTRIBUTE,
    DUMP,
    FAMILY_NUMBER,
    GENERAL,
    NESTED,
    attribute,
    attributes_of,
    bodies,
    messages_of,
    named,
    number_of,
    open_socket,
    request,
    text_of,
)
from nftproxy.kernel.nftables_netlink import (
    BUFFER_SIZE,
    CHAIN_HOOK,
    CHAIN_NAME,
    CREATE,
    GET_CHAIN,
    GET_ELEMENTS,
    GET_SET,
    GET_TABLE,
    HOOK_NUMBER,
    HOOKS,
    NEW_ELEMENTS,
    NEW_TABLE,
    SUBSYSTEM,
    batch,
)
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Unavailable

NEW_CHAIN, NEW_RULE, GET_RULE, NEW_SET = 3, 6, 7, 9  # NFT_MSG_*
APPEND = 0x800  # NLM_F_APPEND
SO_SNDBUFFORCE = 32
ATTEMPTS = 10  # at a table that others keep changing

OF_TABLE = 1  # the attribute that names the table: NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_SET_TABLE and so on
SET_NAME, SET_ID, ELEMENTS_SET = 2, 10, 2
HOOK_PRIORITY = 2  # NFTA_HOOK_PRIORITY


# What may be sent back, by NFTA_* numbers.
TABLE_ATTRIBUTES = frozenset({1, 6})  # name and user data: not the flags, as one gives a table to whoever makes it
CHAIN_ATTRIBUTES = frozenset({1, 3, 4, 5, 7, 12})  # table, name, hook, policy, type, user data
SET_ATTRIBUTES = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 17, 18})  # all but ID, handle, type and count
ELEMENT_ATTRIBUTES = frozenset({1, 2, 3})  # table, set, elements
RULE_ATTRIBUTES = frozenset({1, 2, 4, 7})  # table, chain, expressions, user data


class TableCopy(NamedTuple):
    """A table of one family, as the messages that make it: table, chains and sets, elements, and rules last."""

    family: Family
    messages: tuple[bytes, ...]


class Hook(NamedTuple):
    """Where a base chain is called: the hook's name as in nft, and the priority."""

    name: str
    priority: int


def read_table(family: Family) -> TableCopy | None:
    """What the kernel holds of our table, in the network namespace of this thread; None if it has none.

    Raises:
        Unavailable: the kernel does not answer, or the table changes all the time.
    """
    for _ in range(ATTEMPTS):
        before = nftables_netlink.generation()
        if nftables_netlink.table_comment(family, TABLE) is None:
            return None
        try:
            copy = _read(family)
        except (InterruptedError, FileNotFoundError):
            continue  # it changed meanwhile, or has gone, or one of its sets has
        except OSError as error:
            raise Unavailable(f"the kernel's table {family.table} can't be read: {error.strerror}") from error
        if nftables_netlink.generation() == before:
            return copy
    raise Unavailable(f"the table {family.table} changed {ATTEMPTS} times while it was being read")


def write_table(copy: TableCopy) -> None:
    """Make the table in the network namespace of this thread, which should have none, in one transaction.

    Raises:
        Unavailable: the kernel refuses it.
    """
    try:
        _send(copy.messages)
    except OSError as error:
        raise Unavailable(f"a copy of the table {copy.family.table} can't be made: {error.strerror}") from error


def hooks(family: Family) -> dict[str, Hook]:
    """The base chains of our table, and where each is called.

    Raises:
        OSError: the kernel does not answer.
    """
    found = {}
    for body in _dump(GET_CHAIN, family):
        held = dict(attributes_of(body, GENERAL.size))
        if text_of(held[OF_TABLE]) == TABLE and CHAIN_HOOK in held:
            hook = dict(attributes_of(held[CHAIN_HOOK]))
            number = number_of(hook[HOOK_NUMBER])
            priority = int.from_bytes(hook[HOOK_PRIORITY], "big", signed=True)
            found[text_of(held[CHAIN_NAME])] = Hook(HOOKS[number], priority)
    return found


def _read(family: Family) -> TableCopy:
    number = FAMILY_NUMBER[family]
    wanted = named(OF_TABLE, TABLE)
    chains = [body for body in _dump(GET_CHAIN, family) if _is_ours(body)]
    sets = [body for body in _dump(GET_SET, family, wanted) if _is_ours(body)]
    rules = [body for body in _dump(GET_RULE, family, wanted) if _is_ours(body)]
    tables = [body for body in _dump(GET_TABLE, family) if _is_ours(body)]
    identities = itertools.count(1)  # a new set has an ID in its batch, even if nothing refers to it by that
    return TableCopy(
        family,
        (
            *(_again(NEW_TABLE, number, body, TABLE_ATTRIBUTES) for body in tables),
            *(_again(NEW_CHAIN, number, body, CHAIN_ATTRIBUTES) for body in chains),
            *(_again(NEW_SET, number, body, SET_ATTRIBUTES, _identity(next(identities))) for body in sets),
            *(
                _again(NEW_ELEMENTS, number, body, ELEMENT_ATTRIBUTES)
                for each in sets
                for body in _elements(family, each)
            ),
            *(_again(NEW_RULE, number, body, RULE_ATTRIBUTES, flags=APPEND) for body in rules),
        ),
    )


def _elements(family: Family, described: bytes) -> list[bytes]:
    name = named(ELEMENTS_SET, _held(described, SET_NAME))
    return _dump(GET_ELEMENTS, family, named(OF_TABLE, TABLE) + name)


def _identity(number: int) -> bytes:
    return attribute(SET_ID, number.to_bytes(4, "big"))


def _again(kind: int, family: int, body: bytes, wanted: frozenset[int], more: bytes = b"", *, flags: int = 0) -> bytes:
    """The request that makes anew what a message describes, with those attributes only."""
    kept = b"".join(raw for number, raw in _raw_attributes(body) if number in wanted)
    return request(SUBSYSTEM, kind, CREATE | flags, family, kept + more)


def _raw_attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The number of each attribute of a message, and all its bytes with the flags."""
    start = GENERAL.size
    while start < len(body):
        length, kind = ATTRIBUTE.unpack_from(body, start)
        end = start + (length + 3 & ~3)
        yield kind & ~NESTED, body[start:end].ljust(end - start, b"\0")
        start = end


def _dump(kind: int, family: Family, attributes: bytes = b"") -> list[bytes]:
    """The bodies of the messages in which the kernel answers."""
    with open_socket() as kernel:
        return list(bodies(kernel, request(SUBSYSTEM, kind, DUMP, FAMILY_NUMBER[family], attributes), BUFFER_SIZE))


def _send(messages: tuple[bytes, ...]) -> None:
    """One transaction."""
    data = batch(messages)
    with open_socket() as kernel:
        kernel.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 2 * len(data))
        kernel.sendto(data, (0, 0))
        for _ in messages_of(kernel.recv(BUFFER_SIZE)):
            return


def _is_ours(body: bytes) -> bool:
    return _held(body, OF_TABLE) == TABLE


def _held(body: bytes, number: int) -> str:
    return text_of(dict(attributes_of(body, GENERAL.size))[number])
