"""Messages of nftables: their numbers (linux/netfilter/nf_tables.h), requests and batches."""

from __future__ import annotations

from collections.abc import Sequence

from nftproxy.model.addresses import TABLE
from nftproxy.netlink import codec
from nftproxy.netlink.codec import (
    ACKNOWLEDGE,
    HEADER,
    Attributes,
    attribute,
    message,
    named,
    number_of,
    text_of,
)

SUBSYSTEM = 10  # NFNL_SUBSYS_NFTABLES
BATCH_BEGIN, BATCH_END = 0x10, 0x11  # NFNL_MSG_BATCH_*, of all subsystems
BATCH_GENERATION = 1  # NFNL_BATCH_GENID

# NFT_MSG_*
NEW_TABLE, GET_TABLE = 0, 1
NEW_CHAIN, GET_CHAIN = 3, 4
NEW_RULE, GET_RULE = 6, 7
NEW_SET, GET_SET = 9, 10
NEW_ELEMENTS, GET_ELEMENTS, DELETE_ELEMENTS = 12, 13, 14
NEW_GENERATION, GET_GENERATION = 15, 16
TRACE = 17
GET_FLOWTABLE = 23

GENERATION_ID, GENERATION_PROCESS, GENERATION_PROGRAM = 1, 2, 3  # NFTA_GEN_ID, NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME
OF_TABLE = 1  # the table's name in every message: NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_SET_ELEM_LIST_TABLE and so on
TABLE_FLAGS, TABLE_HANDLE, TABLE_USERDATA = 2, 4, 6
DORMANT = 1  # NFT_TABLE_F_DORMANT
TABLE_COMMENT = 0  # in the user data: NFTNL_UDATA_TABLE_COMMENT, of libnftnl
CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY = 3, 4, 5
HOOK_NUMBER, HOOK_PRIORITY = 1, 2
HOOKS = ("prerouting", "input", "forward", "output", "postrouting", "ingress")  # enum nf_inet_hooks, from 0
NETDEV_HOOKS = ("ingress", "egress")  # enum nf_dev_hooks, from 0
DROP = 0  # NF_DROP

SET_NAME, SET_FLAGS, SET_KEY_TYPE, SET_KEY_LENGTH, SET_DATA_TYPE, SET_DATA_LENGTH = range(2, 8)
SET_DESCRIPTION, SET_ID, SET_COUNT = 9, 10, 20
DESCRIPTION_SIZE = 1
ANONYMOUS, INTERVAL, MAP, DYNAMIC = 0x01, 0x04, 0x08, 0x20  # NFT_SET_ANONYMOUS and so on, DYNAMIC is NFT_SET_EVAL

FLOWTABLE_NAME = 2  # NFTA_FLOWTABLE_NAME

LIST_SET, LIST_ELEMENTS, LIST_ELEMENT = 2, 3, 1  # NFTA_SET_ELEM_LIST_*, NFTA_LIST_ELEM
ELEMENT_KEY, ELEMENT_DATA, ELEMENT_FLAGS, ELEMENT_EXPIRATION = 1, 2, 3, 5  # NFTA_SET_ELEM_*
ELEMENT_EXPRESSION, ELEMENT_KEY_END = 7, 10
INTERVAL_END = 0x1  # NFT_SET_ELEM_INTERVAL_END
DATA_VALUE, DATA_VERDICT = 1, 2  # NFTA_DATA_*
DATA_TYPE_VERDICT = 0xFFFFFF00  # NFT_DATA_VERDICT
VERDICT_CODE, VERDICT_CHAIN = 1, 2  # NFTA_VERDICT_*
VERDICTS = {-3: "jump", -4: "goto"}  # NFT_JUMP, NFT_GOTO

EXPRESSION_NAME, EXPRESSION_DATA = 1, 2  # NFTA_EXPR_*
COUNTER_BYTES, COUNTER_PACKETS, COUNTER_PAD = 1, 2, 3  # NFTA_COUNTER_*

# NFTA_TRACE_*
TRACE_TABLE, TRACE_CHAIN, TRACE_RULE_HANDLE, TRACE_TYPE, TRACE_VERDICT, TRACE_POLICY = 1, 2, 3, 4, 5, 16
TRACE_NETWORK_HEADER, TRACE_TRANSPORT_HEADER, TRACE_IN_INTERFACE, TRACE_OUT_INTERFACE = 8, 9, 10, 12


def set_flags(declared: Attributes) -> int:
    """Return the flags of a declaration: `ANONYMOUS` and so on."""
    return number_of(declared.get(SET_FLAGS, b""))


def request(kind: int, flags: int, family: int, attributes: bytes = b"") -> bytes:
    """Return a request of a kind (NFT_MSG_*), to a family by its number."""
    return codec.request(SUBSYSTEM, kind, flags, family, attributes)


def of_set(name: str) -> bytes:
    """Return the attributes that name a set or map of ours, in a message about elements."""
    return named(OF_TABLE, TABLE) + named(LIST_SET, name)


def batch(messages: Sequence[bytes], generation: int | None = None) -> bytes:
    """Return a transaction.  Its last message asks for an answer, which comes after every error.

    With a generation, the kernel refuses the batch in any other (ERESTART).
    """
    wanted = b"" if generation is None else attribute(BATCH_GENERATION, generation.to_bytes(4, "big"))
    return b"".join([batch_limit(BATCH_BEGIN, wanted), *messages[:-1], _asking(messages[-1]), batch_limit(BATCH_END)])


def batch_limit(kind: int, attributes: bytes = b"") -> bytes:
    """Return the message that begins or ends a batch."""
    return message(kind, 0, b"\0\0" + SUBSYSTEM.to_bytes(2, "big") + attributes)


def _asking(last: bytes) -> bytes:
    length, kind, flags, *rest = HEADER.unpack_from(last)
    return HEADER.pack(length, kind, flags | ACKNOWLEDGE, *rest) + last[HEADER.size :]


def comment_of(userdata: bytes) -> str:
    """Return the comment in libnftnl's data of a table: type, length and value, a byte each for the first two."""
    start = 0
    while start < len(userdata):
        kind, length = userdata[start : start + 2]
        if kind == TABLE_COMMENT:
            return text_of(userdata[start + 2 : start + 2 + length])
        start += 2 + length
    return ""
