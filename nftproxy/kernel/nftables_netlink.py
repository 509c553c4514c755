"""What the kernel holds of one table, by name only, asked over nfnetlink without libnftables.

libnftables is the way to write, except for elements alone (element_batch.py), and not to read.  Tried with 100,000
elements in the table:

* nft 1.0.6 fetches every element for `list table`, terse or not (0.8 s), and every object of every table for
  `list tables`; its JSON has neither the table's comment nor the flag `dynamic`.
* `list sets` and `list maps` print all tables of a family, `list sets table ip nftproxy` too, and 1.0.6 crashes
  (SIGSEGV) on any set or map that 1.1.3 wrote from a declaration like `type ipv4_addr`, whosever it is.

The three requests here ask for one table's comment and for the names of its sets and chains (under 1 ms), and decode
nothing else, whoever wrote it.  Messages and attributes are those of linux/netfilter/nf_tables.h; the kernel answers
for the network namespace of the thread that asks, and only to CAP_NET_ADMIN.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable, Sequence

import msgspec

from nftproxy.kernel.netlink import (
    ACKNOWLEDGE,
    DUMP,
    FAMILY_NUMBER,
    GENERAL,
    HEADER,
    REQUEST,
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
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.model.kernel import BaseChain

SUBSYSTEM = 10  # NFNL_SUBSYS_NFTABLES
NEW_TABLE, GET_TABLE, GET_CHAIN, GET_SET, NEW_ELEMENTS, GET_ELEMENTS, DELETE_ELEMENTS, GET_GENERATION = (
    0,
    1,
    4,
    10,
    12,
    13,
    14,
    16,
)  # NFT_MSG_*
BATCH_BEGIN, BATCH_END, CREATE = 0x10, 0x11, 0x400  # NFNL_MSG_BATCH_*, NLM_F_CREATE
BATCH_GENERATION = 1  # NFNL_BATCH_GENID

TABLE_NAME, TABLE_USERDATA = 1, 6
COMMENT = 0  # NFTNL_UDATA_TABLE_COMMENT, of libnftnl
CHAIN_TABLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY = 1, 3, 4, 5
HOOK_NUMBER = 1  # NFTA_HOOK_HOOKNUM
HOOKS = ("prerouting", "input", "forward", "output", "postrouting")  # enum nf_inet_hooks, from 0
FAMILIES = {"inet": 1, "ip": 2, "ip6": 10}  # NFPROTO_INET and those of FAMILY_NUMBER, by nft's words
DROP = 0  # NF_DROP
SET_TABLE, SET_NAME, SET_FLAGS, SET_KEY_TYPE, SET_KEY_LENGTH, SET_DATA_TYPE, SET_DATA_LENGTH = range(1, 8)
SET_DESCRIPTION, SET_COUNT = 9, 20
SET_SIZE = 1  # in the description
LIST_TABLE, LIST_SET, LIST_ELEMENTS, LIST_ELEMENT = 1, 2, 3, 1  # NFTA_SET_ELEM_LIST_*, NFTA_LIST_ELEM
ELEMENT_KEY, ELEMENT_DATA, ELEMENT_EXPIRATION = 1, 2, 5  # NFTA_SET_ELEM_*
DATA_VALUE, DATA_VERDICT, VERDICT_CODE, VERDICT_CHAIN = 1, 2, 1, 2  # NFTA_DATA_*, NFTA_VERDICT_*
VERDICTS = {-3: "jump", -4: "goto"}  # NFT_JUMP, NFT_GOTO
ANONYMOUS, INTERVAL, MAP, DYNAMIC = 0x01, 0x04, 0x08, 0x20  # NFT_SET_ANONYMOUS and so on, DYNAMIC is NFT_SET_EVAL

BUFFER_SIZE = 1 << 18  # bytes; the kernel fills at most 32 KiB of it per answer
ATTEMPTS = 10  # at an answer that others' commits keep interrupting

Attributes = dict[int, bytes]


class NamedSet(msgspec.Struct, frozen=True):
    """A set or map that has a name.

    `key_type` and `data_type` are nft's type numbers, six bits per part of a concatenation; `data_type` is 0 in a set.
    `count` is how many elements it has, None from kernels that don't report it (6.1 does not, 6.18 does); `size` is how
    many it may have, 0 without a limit.
    """

    name: str
    is_map: bool
    is_dynamic: bool
    key_type: int
    data_type: int
    count: int | None
    size: int


def generation() -> int:
    """The number of the ruleset's generation, which every commit of anyone's in this namespace changes.

    Raises:
        Unavailable: the kernel does not answer, as without CAP_NET_ADMIN.
    """
    (attributes,) = _ask(GET_GENERATION, 0)
    return number_of(attributes[1])


def generation_by(kernel: socket.socket) -> int:
    """The same by a socket that stays open (`netlink.open_socket`), as for each transaction.

    Raises:
        Unavailable: the kernel does not answer; the socket is of no use any more.
    """
    try:
        (attributes,) = exchange(kernel, GET_GENERATION, 0, b"", ACKNOWLEDGE)
    except OSError as error:
        raise Unavailable(why(error)) from error
    return number_of(attributes[1])


def has_family(number: int) -> bool:
    """Whether the kernel's nftables has a family, by its number (`netlink.FAMILY_NUMBER`).

    It may be built without one (CONFIG_NF_TABLES_IPV6).  The kernel is asked for a table in a batch that has no end,
    and so takes it back.

    Raises:
        Unavailable: the kernel does not answer, as without CAP_NET_ADMIN.
    """
    try:
        try_in_batch(NEW_TABLE, number, named(TABLE_NAME, "nftproxy-probe"))
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
            return False
        raise Unavailable(why(error)) from error
    return True


def try_in_batch(kind: int, family: int, attributes: bytes) -> None:
    """Have the kernel prepare one message of a batch, and take it back, as the batch has no end.

    Raises:
        OSError: the kernel refuses it.
    """
    with open_socket() as kernel:
        asked = _limit(BATCH_BEGIN) + request(SUBSYSTEM, kind, ACKNOWLEDGE | CREATE, family, attributes)
        kernel.sendto(asked, (0, 0))
        list(messages_of(kernel.recv(BUFFER_SIZE)))


def batch(messages: Sequence[bytes], generation: int | None = None) -> bytes:
    """One transaction; its last message asks for an answer, which comes after every error.

    With a generation, the kernel refuses it in any other (ERESTART).
    """
    wanted = b"" if generation is None else attribute(BATCH_GENERATION, generation.to_bytes(4, "big"))
    return b"".join([_limit(BATCH_BEGIN, wanted), *messages[:-1], _acknowledged(messages[-1]), _limit(BATCH_END)])


def _limit(kind: int, attributes: bytes = b"") -> bytes:
    """The message that begins or ends a batch."""
    body = GENERAL.pack(0, 0, socket.htons(SUBSYSTEM)) + attributes
    return HEADER.pack(HEADER.size + len(body), kind, REQUEST, 0, 0) + body


def _acknowledged(message: bytes) -> bytes:
    length, kind, flags, *rest = HEADER.unpack_from(message)
    return HEADER.pack(length, kind, flags | ACKNOWLEDGE, *rest) + message[HEADER.size :]


def families() -> list[Family]:
    """The families that the kernel's nftables has; all where that can't be found out, so that their loads say why."""
    try:
        return [family for family, number in FAMILY_NUMBER.items() if has_family(number)] or list(Family)
    except Unavailable:
        return list(Family)


def table_comment(family: Family, table: str) -> str | None:
    """The comment of a table, "" if it has none; None if there is no such table.

    Raises:
        Unavailable: the kernel does not answer.
    """
    answers = _ask(GET_TABLE, FAMILY_NUMBER[family], named(TABLE_NAME, table))
    return _comment(answers[0].get(TABLE_USERDATA, b"")) if answers else None


def chains(family: Family, table: str) -> dict[str, bool]:
    """The names of a table's chains, each with whether it has a hook.

    Raises:
        Unavailable: the kernel does not answer.
    """
    answers = _ask(GET_CHAIN, FAMILY_NUMBER[family], named(CHAIN_TABLE, table), flags=DUMP)
    # The kernel names every chain of the family, whichever table it is asked for (6.18).
    return {text_of(each[CHAIN_NAME]): CHAIN_HOOK in each for each in answers if text_of(each[CHAIN_TABLE]) == table}


def chains_matching(family: Family, pattern: re.Pattern[bytes]) -> list[tuple[str, str]]:
    """The (table, chain) of all tables of a family whose chain's name, with a 0 after it, matches.

    Only messages in which something matches are taken apart: there may be 100,000 chains.

    Raises:
        Unavailable: the kernel does not answer.
    """
    answers = _ask(GET_CHAIN, FAMILY_NUMBER[family], flags=DUMP, is_wanted=lambda data: bool(pattern.search(data)))
    return [
        (text_of(each[CHAIN_TABLE]), text_of(each[CHAIN_NAME]))
        for each in answers
        if pattern.fullmatch(each[CHAIN_NAME])
    ]


def tables() -> list[str]:
    """All tables of inet, ip and ip6, each as nft names it: the family, and the table's name.

    Raises:
        Unavailable: the kernel does not answer.
    """
    return [
        f"{family} {text_of(each[TABLE_NAME])}"
        for family, number in FAMILIES.items()
        for each in _ask(GET_TABLE, number, flags=DUMP)
    ]


def base_chains() -> list[BaseChain]:
    """The base chains of all tables of inet, ip and ip6, whoever made them.

    Raises:
        Unavailable: the kernel does not answer.
    """
    return [
        BaseChain(family, text_of(each[CHAIN_TABLE]), text_of(each[CHAIN_NAME]), HOOKS[hook], policy == DROP)
        for family, number in FAMILIES.items()
        for each in _ask(GET_CHAIN, number, flags=DUMP)
        if CHAIN_HOOK in each
        for hook in [number_of(dict(attributes_of(each[CHAIN_HOOK]))[HOOK_NUMBER])]
        for policy in [number_of(each.get(CHAIN_POLICY, b"\1"))]
        if hook < len(HOOKS)
    ]


def sets(family: Family, table: str) -> list[NamedSet]:
    """A table's sets and maps; otherwise as `declarations`."""
    return [named_set(each) for each in declarations(family, table)]


def declarations(family: Family, table: str) -> list[Attributes]:
    """All that the kernel says of a table's sets and maps, except the anonymous ones that stand in rules.

    Raises:
        Unavailable: the kernel does not answer.
    """
    answers = _ask(GET_SET, FAMILY_NUMBER[family], named(SET_TABLE, table), flags=DUMP)
    ours = [each for each in answers if text_of(each[SET_TABLE]) == table]
    return [each for each in ours if not _flags(each) & ANONYMOUS]


def named_set(attributes: Attributes) -> NamedSet:
    """What is used of a declaration."""
    return NamedSet(
        name=text_of(attributes[SET_NAME]),
        is_map=bool(_flags(attributes) & MAP),
        is_dynamic=bool(_flags(attributes) & DYNAMIC),
        key_type=number_of(attributes[SET_KEY_TYPE]),
        data_type=number_of(attributes.get(SET_DATA_TYPE, b"")),
        count=number_of(attributes[SET_COUNT]) if SET_COUNT in attributes else None,
        size=number_of(dict(attributes_of(attributes.get(SET_DESCRIPTION, b""))).get(SET_SIZE, b"")),
    )


def is_comparable(attributes: Attributes) -> bool:
    """Whether a set can be compared element by element: it has no ranges, and nothing that packets write."""
    return not _flags(attributes) & (INTERVAL | DYNAMIC)


def _flags(attributes: Attributes) -> int:
    return number_of(attributes.get(SET_FLAGS, b""))


def _ask(
    kind: int,
    family: int,
    attributes: bytes = b"",
    *,
    flags: int = ACKNOWLEDGE,
    is_wanted: Callable[[bytes], bool] = lambda _: True,
) -> list[Attributes]:
    """The attributes of each object that the kernel answers with; none if what was named is not there.

    `is_wanted` judges each message before it is taken apart.
    """
    for _ in range(ATTEMPTS):
        try:
            with open_socket() as kernel:
                return exchange(kernel, kind, family, attributes, flags, is_wanted)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno == errno.ENOENT:
                return []
            raise Unavailable(why(error)) from error
    raise Unavailable(f"the nftables ruleset changed {ATTEMPTS} times while it was being read")


def why(error: OSError) -> str:
    """Why the kernel's nftables can't be asked, in words."""
    if error.errno == errno.EPERM:
        return "no permission to use nftables: it takes CAP_NET_ADMIN in the network namespace"
    return f"the kernel's nftables can't be reached: {error.strerror or error}"


def exchange(
    kernel: socket.socket,
    kind: int,
    family: int,
    attributes: bytes,
    flags: int,
    is_wanted: Callable[[bytes], bool] = lambda _: True,
) -> list[Attributes]:
    """The attributes of each object that the kernel answers a request with.

    Raises:
        OSError: the kernel says why not.
    """
    asked = request(SUBSYSTEM, kind, flags, family, attributes)
    return [dict(attributes_of(body, GENERAL.size)) for body in bodies(kernel, asked, BUFFER_SIZE) if is_wanted(body)]


def _comment(userdata: bytes) -> str:
    """The comment in what libnftnl stores with a table: type, length and value, a byte each for the first two."""
    start = 0
    while start < len(userdata):
        kind, length = userdata[start : start + 2]
        if kind == COMMENT:
            return text_of(userdata[start + 2 : start + 2 + length])
        start += 2 + length
    return ""
