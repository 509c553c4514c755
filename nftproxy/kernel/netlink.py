"""Netlink messages, to and from the kernel's netfilter: what nftables and connection tracking have in common.

A request is a header, a general part with the family, and attributes; an answer is messages of the same form, the last
of which is an error code, 0 for success, or the end of a listing.  The layout is that of linux/netlink.h and
linux/netfilter/nfnetlink.h.  The kernel answers for the network namespace of the thread that opens the socket.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator

from nftproxy.model.addresses import Family, Protocol

NETLINK_NETFILTER = 12
REQUEST, ACKNOWLEDGE, DUMP = 0x01, 0x04, 0x300  # NLM_F_*
DUMP_INTERRUPTED = 0x10  # what is listed changed between two parts of an answer
ERROR, DONE = 2, 3  # NLMSG_*
NESTED = 0x8000  # NLA_F_NESTED
KIND_MASK = 0x3FFF  # NLA_TYPE_MASK
FAMILY_NUMBER = {Family.IPV4: 2, Family.IPV6: 10}  # NFPROTO_IPV4, NFPROTO_IPV6
FAMILY_OF_NUMBER = {number: family for family, number in FAMILY_NUMBER.items()}
ADDRESS_SIZE = {Family.IPV4: 4, Family.IPV6: 16}  # bytes
PROTOCOLS = {6: Protocol.TCP, 17: Protocol.UDP, 132: Protocol.SCTP}  # IPPROTO_*

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
GENERAL = struct.Struct("=BBH")  # family, version, resource: struct nfgenmsg
ATTRIBUTE = struct.Struct("=HH")  # length, type
SOL_NETLINK, ADD_MEMBERSHIP, DROP_MEMBERSHIP = 270, 1, 2  # NETLINK_*
SO_RCVBUFFORCE = 33
ANSWER_SECONDS = 10.0  # the kernel answers while it is asked, unless a commit holds its lock


def open_socket() -> socket.socket:
    """A socket for requests, in the network namespace of this thread.

    Closing one after a commit takes 10 ms: the kernel first frees what the commit has left behind.

    Raises:
        OSError: none can be opened, as when the process has no file descriptors left.
    """
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
    made.settimeout(ANSWER_SECONDS)
    return made


def open_listener(queue: int) -> socket.socket:
    """A socket for what the kernel sends unasked, in the network namespace of this thread; reading it never waits.

    It hears the groups that it joins (`ADD_MEMBERSHIP`).  `queue` is how many bytes may wait to be read; what comes
    beyond that is lost, and reading says so (ENOBUFS).

    Raises:
        OSError: none can be opened, as without CAP_NET_ADMIN.
    """
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, queue)
    made.bind((0, 0))  # one without a number hears nothing
    return made


def request(subsystem: int, kind: int, flags: int, family: int, attributes: bytes = b"") -> bytes:
    """A request: the subsystem (NFNL_SUBSYS_*) and its kind of message, to one family by its number."""
    body = GENERAL.pack(family, 0, 0) + attributes
    return HEADER.pack(HEADER.size + len(body), subsystem << 8 | kind, REQUEST | flags, 0, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute of a request."""
    data = ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value
    return data.ljust(aligned(len(data)), b"\0")


def named(kind: int, name: str) -> bytes:
    """An attribute that is a name."""
    return attribute(kind, name.encode() + b"\0")


def nested(kind: int, attributes: bytes) -> bytes:
    """An attribute that holds others."""
    return attribute(kind | NESTED, attributes)


def answers(kernel: socket.socket, asked: bytes, size: int, *, may_change: bool = False) -> Iterator[bytes]:
    """Send a request; what the kernel answers, as it comes: some whole messages each time, and the last one at the end.

    Args:
        kernel: where nothing else is waiting.
        asked: the request.
        size: bytes that are read at once, and the most that the kernel puts into one answer (never above 32 KiB).
        may_change: whether what is being listed may change meanwhile.

    Raises:
        OSError: as `messages_of`.
    """
    kernel.sendto(asked, (0, 0))
    is_done = False
    while not is_done:
        data = kernel.recv(size)
        is_done = any(kind in (ERROR, DONE) for kind, _ in messages_of(data, may_change=may_change))
        yield data


def bodies(kernel: socket.socket, asked: bytes, size: int, *, may_change: bool = False) -> Iterator[bytes]:
    """Send a request; the body of each message that the kernel answers with.  Otherwise as `answers`."""
    kernel.sendto(asked, (0, 0))
    while True:
        for kind, body in messages_of(kernel.recv(size), may_change=may_change):
            if kind in (ERROR, DONE):
                return
            yield body


def messages_of(data: bytes, *, may_change: bool = False) -> Iterator[tuple[int, bytes]]:
    """The type and body of each message.

    Raises:
        InterruptedError: what is being listed has changed meanwhile, which it must not unless `may_change`.
        OSError: the kernel says so.
    """
    start = 0
    while start < len(data):
        length, kind, flags, _, _ = HEADER.unpack_from(data, start)
        body = data[start + HEADER.size : start + length]
        if flags & DUMP_INTERRUPTED and not may_change:
            raise InterruptedError(errno.EINTR, "what was listed has changed meanwhile")
        if kind in (ERROR, DONE) and (code := int.from_bytes(body[:4], sys.byteorder, signed=True)):
            raise OSError(-code, os.strerror(-code))
        yield kind, body
        start += aligned(length)


def attributes_of(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """The kind and value of each attribute, from a place in the data on (of a message's body: `GENERAL.size`)."""
    while start < len(data):
        length, kind = ATTRIBUTE.unpack_from(data, start)
        yield kind & KIND_MASK, data[start + ATTRIBUTE.size : start + length]
        start += aligned(length)


def split(data: bytes) -> Iterator[bytes]:
    """Each attribute as a whole."""
    start = 0
    while start < len(data):
        length, _ = ATTRIBUTE.unpack_from(data, start)
        yield data[start : start + length]
        start += aligned(length)


def number_of(value: bytes) -> int:
    """An attribute's value as a number, 0 if it is empty: nfnetlink's are in network byte order."""
    return int.from_bytes(value, "big")


def text_of(value: bytes) -> str:
    """An attribute's value as a name."""
    return value.rstrip(b"\0").decode(errors="replace")


def aligned(length: int) -> int:
    """What an attribute, a message, or a part of a concatenation of so many bytes fills."""
    return (length + 3) & ~3
