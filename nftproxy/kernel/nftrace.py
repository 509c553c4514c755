"""The kernel's own account of a packet's way through the rules: what `meta nftrace set 1` makes it report.

The kernel sends a message for each rule that matched, with the rule's handle and its verdict, and one for the policy at
the end of a base chain, to everyone who has joined a multicast group (NFNLGRP_NFTRACE).  It does so while the packet
passes: what has not been sent when the packet is out will not come.  nft's `monitor trace` reads the same messages, but
needs the program, and fetches the whole ruleset to print them.

Messages and attributes are those of linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Self

from nftproxy.kernel.netlink import (
    ADD_MEMBERSHIP,
    FAMILY_OF_NUMBER,
    GENERAL,
    SOL_NETLINK,
    attributes_of,
    messages_of,
    number_of,
    open_listener,
    text_of,
)
from nftproxy.kernel.nftables_netlink import BUFFER_SIZE, SUBSYSTEM
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable

TRACE = SUBSYSTEM << 8 | 17  # NFT_MSG_TRACE
GROUP = 9  # NFNLGRP_NFTRACE
TABLE, CHAIN, RULE_HANDLE, TYPE, VERDICT, POLICY = 1, 2, 3, 4, 5, 16  # NFTA_TRACE_*
VERDICT_CODE, VERDICT_CHAIN = 1, 2  # NFTA_VERDICT_*
QUEUE_SIZE = 4 << 20
"""Bytes that may wait to be read: the ways of some thousand packets."""


class Sort(Enum):
    """What a message is about; the value is the kernel's number (NFT_TRACETYPE_*)."""

    POLICY = 1
    RETURN = 2
    RULE = 3


class Verdict(Enum):
    """What a rule or a policy decides; the value is the kernel's number (NF_* and NFT_*)."""

    DROP = 0
    ACCEPT = 1
    STOLEN = 2
    QUEUE = 3
    CONTINUE = -1
    BREAK = -2
    JUMP = -3
    GOTO = -4
    RETURN = -5


class TraceMessage(NamedTuple):
    """One message: a rule that matched, or the end of a chain.

    `handle` is the rule's, 0 where there is none; `target` the chain of a jump or goto, else "".
    """

    family: Family
    table: str
    chain: str
    sort: Sort
    handle: int
    verdict: Verdict
    target: str


class TraceListener:
    """The traces of packets in the network namespace of the thread that makes this.

    Raises:
        Unavailable: the kernel has no nftables, or there is no permission.
    """

    def __init__(self) -> None:
        try:
            self._socket = open_listener(QUEUE_SIZE)
            self._socket.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP)
        except OSError as error:
            raise Unavailable(f"the kernel doesn't report traces of nftables: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def read(self) -> list[TraceMessage]:
        """The messages that have come since, in the order in which the packets passed.

        Raises:
            Unavailable: some were lost.
        """
        found: list[TraceMessage] = []
        while True:
            try:
                data = self._socket.recv(BUFFER_SIZE)
            except BlockingIOError:
                return found
            except OSError as error:
                raise Unavailable(f"part of the kernel's trace was lost: {error.strerror}") from error
            found += _traces(data)


def _traces(data: bytes) -> Iterator[TraceMessage]:
    for kind, body in messages_of(data):
        family = FAMILY_OF_NUMBER.get(body[0])
        if kind == TRACE and family:
            yield _trace(family, dict(attributes_of(body, GENERAL.size)))


def _trace(family: Family, held: dict[int, bytes]) -> TraceMessage:
    sort = Sort(number_of(held[TYPE]))
    verdict, target = Verdict(number_of(held[POLICY])) if sort is Sort.POLICY else Verdict.CONTINUE, ""
    if VERDICT in held:
        nested = dict(attributes_of(held[VERDICT]))
        verdict = Verdict(int.from_bytes(nested[VERDICT_CODE], "big", signed=True))
        target = text_of(nested.get(VERDICT_CHAIN, b""))
    return TraceMessage(
        family=family,
        table=text_of(held[TABLE]),
        chain=text_of(held[CHAIN]),
        sort=sort,
        handle=number_of(held.get(RULE_HANDLE, b"")),
        verdict=verdict,
        target=target,
    )
