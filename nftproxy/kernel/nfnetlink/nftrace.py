"""The kernel's report of a packet's way through the rules, which `meta nftrace set 1` turns on.

The kernel sends a message for each rule that matched, with the rule's handle and its verdict, and one for the policy at
the end of a base chain, to all members of a multicast group (NFNLGRP_NFTRACE).  It sends them while the packet passes,
so no message follows once the packet is out. nft's `monitor trace` reads the same messages, but it needs the program,
and fetches the whole ruleset to print them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, Self

from nftproxy.kernel.nfnetlink.sockets import ADD_MEMBERSHIP, BUFFER_SIZE, SOL_NETLINK, open_listener
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    FAMILY_OF_NUMBER,
    Attributes,
    attribute_map,
    body_attributes,
    messages_of,
    number_of,
    text_of,
)

GROUP = 9  # NFNLGRP_NFTRACE
INET = 1  # NFPROTO_INET
QUEUE_SIZE = 4 << 20
"""Bytes that may wait to be read: the traces of some thousand packets."""


class TraceType(Enum):
    """The subject of a message.  The value is the kernel's number (NFT_TRACETYPE_*)."""

    POLICY = 1
    RETURN = 2
    RULE = 3


class TraceVerdict(Enum):
    """The verdict of a rule or a policy.  The value is the kernel's number (NF_* and NFT_*)."""

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
    """A message about a rule that matched, or about the end of a chain.

    A table of inet, which only other programs have, counts as IPv4's.

    `handle` is the rule's handle, 0 without a rule.  `target` is the chain of a jump or goto, else "".  The first
    message of each base chain has the headers of the packet, at most 40 and 20 bytes, and an interface's number.  It is
    the interface by which the packet leaves, or by which it came if it doesn't leave.  Later messages have b"" and 0.
    """

    family: Family
    table: str
    chain: str
    kind: TraceType
    handle: int
    verdict: TraceVerdict
    target: str
    network_header: bytes = b""
    transport_header: bytes = b""
    interface: int = 0


class TraceListener:
    """The traces of packets in the network namespace of the thread that makes this.

    Raises:
        Unavailable: the kernel has no nftables, or permission is missing.
    """

    def __init__(self) -> None:
        try:
            self._socket = open_listener(QUEUE_SIZE)
            self._socket.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP)
        except OSError as error:
            raise Unavailable(f"the kernel doesn't report traces of nftables: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def read(self) -> list[TraceMessage]:
        """Return the messages since the last call, in the order in which the packets passed.

        Raises:
            Unavailable: messages were lost.
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
        family = FAMILY_OF_NUMBER.get(body[0], Family.IPV4 if body[0] == INET else None)
        if kind == nft.SUBSYSTEM << 8 | nft.TRACE and family:
            yield _trace(family, body_attributes(body))


def _trace(family: Family, held: Attributes) -> TraceMessage:
    kind, verdict, target = TraceType(number_of(held[nft.TRACE_TYPE])), TraceVerdict.CONTINUE, ""
    if kind is TraceType.POLICY:
        verdict = TraceVerdict(number_of(held[nft.TRACE_POLICY]))
    if nft.TRACE_VERDICT in held:
        nested = attribute_map(held[nft.TRACE_VERDICT])
        verdict = TraceVerdict(number_of(nested[nft.VERDICT_CODE], signed=True))
        target = text_of(nested.get(nft.VERDICT_CHAIN, b""))
    return TraceMessage(
        family=family,
        table=text_of(held[nft.TRACE_TABLE]),
        chain=text_of(held[nft.TRACE_CHAIN]),
        kind=kind,
        handle=number_of(held.get(nft.TRACE_RULE_HANDLE, b"")),
        verdict=verdict,
        target=target,
        network_header=held.get(nft.TRACE_NETWORK_HEADER, b""),
        transport_header=held.get(nft.TRACE_TRANSPORT_HEADER, b""),
        interface=number_of(held.get(nft.TRACE_OUT_INTERFACE) or held.get(nft.TRACE_IN_INTERFACE, b"")),
    )
