"""Questions to nftables over nfnetlink, without libnftables: names of tables, chains and sets.

libnftables is for writing, except for elements alone (element_batch.py), and not for reading.  Tried with 100,000
elements in the table:

* nft 1.0.6 fetches every element for `list table`, terse or not (0.8 s), and every object of every table for `list
  tables`. Its JSON has neither the table's comment nor the flag `dynamic`.
* `list sets` and `list maps` print all tables of a family, `list sets table ip nftproxy` too. 1.0.6 crashes (SIGSEGV)
  on any set or map that 1.1.3 wrote from a declaration like `type ipv4_addr`, in any table.

The requests here take under 1 ms, and decode nothing else.  The kernel answers for the network namespace of the thread
that asks, and only to CAP_NET_ADMIN.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable, Mapping

import msgspec

from nftproxy.kernel.nfnetlink.modules import reason
from nftproxy.kernel.nfnetlink.sockets import BUFFER_SIZE, bodies, open_socket
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.base_chains import BaseChain
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    ACKNOWLEDGE,
    CREATE,
    DUMP,
    FAMILY_NUMBER,
    Attributes,
    attribute_map,
    body_attributes,
    messages_of,
    named,
    number_of,
    text_of,
)
from nftproxy.rules.ruleset import NftKind

FAMILIES = {"inet": 1, "ip": 2, "ip6": 10}  # NFPROTO_INET and those of FAMILY_NUMBER, by nft's words
_NETDEV = 5  # NFPROTO_NETDEV
ATTEMPTS = 10  # at an answer that other programs' commits interrupt


class NamedSet(msgspec.Struct, frozen=True):
    """A set or map that has a name.

    `key_type` and `data_type` are nft's type numbers, six bits per part of a concatenation.  `data_type` is 0 in a set.
    `count` is the number of elements, None from kernels that don't report it (6.1 does not, 6.18 does).  `size` is the
    limit of elements, 0 without a limit.
    """

    name: str
    is_map: bool
    is_dynamic: bool
    key_type: int
    data_type: int
    count: int | None
    size: int

    @property
    def kind(self) -> NftKind:
        """A set or a map."""
        return NftKind.MAP if self.is_map else NftKind.SET


def generation() -> int:
    """Return the number of the ruleset's generation.  Every commit in this namespace changes it.

    Raises:
        Unavailable: the kernel does not answer, as without CAP_NET_ADMIN.
    """
    (found,) = query(nft.GET_GENERATION, 0)
    return number_of(found[nft.GENERATION_ID])


def generation_by(kernel: socket.socket) -> int:
    """Return the number of the ruleset's generation, asked by a socket that stays open (`open_socket`).

    Raises:
        Unavailable: the kernel does not answer. The socket can't be used again.
    """
    try:
        (found,) = exchange(kernel, nft.GET_GENERATION, 0, b"", ACKNOWLEDGE)
    except OSError as error:
        raise Unavailable(why(error)) from error
    return number_of(found[nft.GENERATION_ID])


def has_family(family: Family) -> bool:
    """True if the kernel's nftables has a family.

    The kernel may be built without it (CONFIG_NF_TABLES_IPV6).  A table is added in a batch without an end, so the
    kernel takes it back.

    Raises:
        Unavailable: the kernel does not answer, as without CAP_NET_ADMIN.
    """
    try:
        try_in_batch(nft.NEW_TABLE, FAMILY_NUMBER[family], named(nft.OF_TABLE, "nftproxy-probe"))
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
            return False
        raise Unavailable(why(error)) from error
    return True


def try_in_batch(kind: int, family: int, attributes: bytes) -> None:
    """Have the kernel prepare one message of a batch, and roll it back, as the batch has no end.

    Raises:
        OSError: the kernel refuses it.
    """
    with open_socket() as kernel:
        asked = nft.batch_limit(nft.BATCH_BEGIN) + nft.request(kind, ACKNOWLEDGE | CREATE, family, attributes)
        kernel.sendto(asked, (0, 0))
        list(messages_of(kernel.recv(BUFFER_SIZE)))


def families() -> list[Family]:
    """Return the families that the kernel's nftables has.  If it can't be asked, return all: their loads will fail."""
    try:
        return [family for family in Family if has_family(family)] or list(Family)
    except Unavailable:
        return list(Family)


def table_comment(family: Family, table: str) -> str | None:
    """Return the comment of a table, "" if it has none, None if there is no such table.

    Raises:
        Unavailable: the kernel does not answer.
    """
    return _comment(FAMILY_NUMBER[family], table)


def inet_table_comment(table: str) -> str | None:
    """Return the comment of a table of the family inet, as `table_comment` does."""
    return _comment(FAMILIES["inet"], table)


def _comment(family: int, table: str) -> str | None:
    found = query(nft.GET_TABLE, family, named(nft.OF_TABLE, table))
    return nft.comment_of(found[0].get(nft.TABLE_USERDATA, b"")) if found else None


def chains(family: Family, table: str) -> dict[str, bool]:
    """Return the names of a table's chains, each with True if it has a hook.

    Raises:
        Unavailable: the kernel does not answer.
    """
    found = query(nft.GET_CHAIN, FAMILY_NUMBER[family], named(nft.OF_TABLE, table), flags=DUMP)
    # The kernel names every chain of the family, whichever table it is asked for (6.18).
    ours = [each for each in found if text_of(each[nft.OF_TABLE]) == table]
    return {text_of(each[nft.CHAIN_NAME]): nft.CHAIN_HOOK in each for each in ours}


def hooked_chains(family: Family) -> frozenset[str]:
    """Return the base chains of our table to which packets come: none if the table is missing or dormant.

    Raises:
        Unavailable: the kernel does not answer.
    """
    found = query(nft.GET_TABLE, FAMILY_NUMBER[family], named(nft.OF_TABLE, TABLE))
    if not found or number_of(found[0].get(nft.TABLE_FLAGS, b"")) & nft.DORMANT:
        return frozenset()
    return frozenset(name for name, is_hooked in chains(family, TABLE).items() if is_hooked)


def chains_matching(family: Family, pattern: re.Pattern[bytes]) -> list[tuple[str, str]]:
    """Return the (table, chain) of a family's chains with a matching name.  The pattern sees a 0 byte after the name.

    Only messages with a match are parsed: there may be 100,000 chains.

    Raises:
        Unavailable: the kernel does not answer.
    """
    found = query(nft.GET_CHAIN, FAMILY_NUMBER[family], flags=DUMP, is_wanted=pattern.search)
    matching = [each for each in found if pattern.fullmatch(each[nft.CHAIN_NAME])]
    return [(text_of(each[nft.OF_TABLE]), text_of(each[nft.CHAIN_NAME])) for each in matching]


def tables(families: Mapping[str, int] = FAMILIES) -> list[str]:
    """Return all tables of inet, ip and ip6 as nft names them: the family, and the table's name.

    `families` are others, with their numbers.

    Raises:
        Unavailable: the kernel does not answer.
    """
    return _names(nft.GET_TABLE, families, nft.OF_TABLE)


def flowtables() -> list[str]:
    """Return all flowtables of inet, ip and ip6 as nft names them: family, table and name.

    Raises:
        Unavailable: the kernel does not answer.
    """
    return _names(nft.GET_FLOWTABLE, FAMILIES, nft.OF_TABLE, nft.FLOWTABLE_NAME)


def _names(request: int, families: Mapping[str, int], *attributes: int) -> list[str]:
    """Return what a listing of each family has: the family's word and these attributes of each, which are texts."""
    return [
        " ".join([family, *(text_of(each[attribute]) for attribute in attributes)])
        for family, number in families.items()
        for each in query(request, number, flags=DUMP)
    ]


def base_chains() -> list[BaseChain]:
    """Return the base chains of all tables of inet, ip, ip6 and netdev.

    Raises:
        Unavailable: the kernel does not answer.
    """
    return [
        BaseChain(
            family,
            text_of(each[nft.OF_TABLE]),
            text_of(each[nft.CHAIN_NAME]),
            hooks[number_of(hook[nft.HOOK_NUMBER])],
            number_of(each.get(nft.CHAIN_POLICY, b"\1")) == nft.DROP,
            number_of(hook[nft.HOOK_PRIORITY], signed=True),
        )
        for family, number in (FAMILIES | {"netdev": _NETDEV}).items()
        for hooks in [nft.NETDEV_HOOKS if number == _NETDEV else nft.HOOKS]
        for each in query(nft.GET_CHAIN, number, flags=DUMP)
        if nft.CHAIN_HOOK in each
        for hook in [attribute_map(each[nft.CHAIN_HOOK])]
        if number_of(hook[nft.HOOK_NUMBER]) < len(hooks)
    ]


def sets(family: Family) -> list[NamedSet]:
    """Return our table's sets and maps.  Otherwise as `declarations`."""
    return [named_set(each) for each in declarations(family)]


def declarations(family: Family) -> list[Attributes]:
    """Return the kernel's declarations of our table's sets and maps, without the anonymous sets in rules.

    Raises:
        Unavailable: the kernel does not answer.
    """
    found = query(nft.GET_SET, FAMILY_NUMBER[family], named(nft.OF_TABLE, TABLE), flags=DUMP)
    ours = [each for each in found if text_of(each[nft.OF_TABLE]) == TABLE]
    return [each for each in ours if not nft.set_flags(each) & nft.ANONYMOUS]


def named_set(declared: Attributes) -> NamedSet:
    """Return a set or map from the attributes of its declaration."""
    flags = nft.set_flags(declared)
    return NamedSet(
        name=text_of(declared[nft.SET_NAME]),
        is_map=bool(flags & nft.MAP),
        is_dynamic=bool(flags & nft.DYNAMIC),
        key_type=number_of(declared[nft.SET_KEY_TYPE]),
        data_type=number_of(declared.get(nft.SET_DATA_TYPE, b"")),
        count=number_of(declared[nft.SET_COUNT]) if nft.SET_COUNT in declared else None,
        size=number_of(attribute_map(declared.get(nft.SET_DESCRIPTION, b"")).get(nft.DESCRIPTION_SIZE, b"")),
    )


def comparable_sets(family: Family) -> list[Attributes]:
    """Return the declarations of sets that can be compared by element: without ranges, and not written by packets."""
    return [each for each in declarations(family) if not nft.set_flags(each) & (nft.INTERVAL | nft.DYNAMIC)]


def declaration_of(kernel: socket.socket, family: Family, container: str) -> Attributes | None:
    """Return the kernel's declaration of a set or map of ours, or None.

    Raises:
        OSError: the kernel doesn't answer.
    """
    wanted = named(nft.OF_TABLE, TABLE) + named(nft.SET_NAME, container)
    try:
        (declared,) = exchange(kernel, nft.GET_SET, FAMILY_NUMBER[family], wanted, ACKNOWLEDGE)
    except FileNotFoundError:
        return None
    return declared


def query(
    kind: int,
    family: int,
    attributes: bytes = b"",
    *,
    flags: int = ACKNOWLEDGE,
    is_wanted: Callable[[bytes], object] = lambda _: True,
) -> list[Attributes]:
    """Return the attributes of each object in the kernel's answer, none if the named object doesn't exist.

    `is_wanted` judges each message before it is parsed, by a true or false value.

    The kernel ends a dump before an object that doesn't fit into a message, such as a flowtable with 200 interfaces.
    The first message of a socket has 4 KiB.  Once something was read the next have 32 KiB (netlink_recvmsg).

    Raises:
        Unavailable: the kernel does not answer.
    """
    for _ in range(ATTEMPTS):
        try:
            with open_socket() as kernel:
                if flags & DUMP:
                    exchange(kernel, nft.GET_GENERATION, 0, b"", ACKNOWLEDGE)
                return exchange(kernel, kind, family, attributes, flags, is_wanted)
        except InterruptedError:
            continue
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(why(error)) from error
    raise Unavailable(f"the nftables ruleset changed {ATTEMPTS} times while it was being read")


def exchange(
    kernel: socket.socket,
    kind: int,
    family: int,
    attributes: bytes,
    flags: int,
    is_wanted: Callable[[bytes], object] = lambda _: True,
) -> list[Attributes]:
    """Send a request, and return the attributes of each object in the answer.

    Raises:
        OSError: the kernel's error.
    """
    asked = nft.request(kind, flags, family, attributes)
    return [body_attributes(body) for body in bodies(kernel, asked) if is_wanted(body)]


def why(error: OSError) -> str:
    """Return in words why the kernel's nftables can't be asked."""
    if error.errno == errno.EPERM:
        return "no permission to use nftables: it takes CAP_NET_ADMIN in the network namespace"
    return f"the kernel's nftables can't be reached: {reason(error, 'nf_tables')}"
