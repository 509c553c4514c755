"""Messages and attributes: the form that all of netlink has in common (linux/netlink.h), and netfilter's subsystems.

A message is a header and a body.  A body has a fixed part, whose length depends on the subsystem, and attributes.  An
attribute is a length, a kind and a value, and a value may consist of attributes.  The kernel's last message of an
answer is an error code, 0 for success, or the end of a listing.

The bodies of netfilter's subsystems (nftables, connection tracking, counters of iptables) begin with the address
family (linux/netfilter/nfnetlink.h).
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Iterator
from os import strerror

from nftproxy.model.addresses import Family, Protocol

REQUEST, ACKNOWLEDGE, DUMP = 0x01, 0x04, 0x300  # NLM_F_*
EXCLUSIVE, CREATE, APPEND = 0x200, 0x400, 0x800  # NLM_F_*
DUMP_INTERRUPTED = 0x10  # the listed objects changed between two parts of an answer
ERROR, DONE = 2, 3  # NLMSG_*
NESTED = 0x8000  # NLA_F_NESTED
KIND_MASK = 0x3FFF  # NLA_TYPE_MASK

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port: struct nlmsghdr
ATTRIBUTE = struct.Struct("=HH")  # length, type: struct nlattr
CODE = struct.Struct("=i")  # a negative errno, 0 for success: the beginning of struct nlmsgerr, and of NLMSG_DONE

Attributes = dict[int, bytes]
"""The values of attributes, by their kinds."""


def message(kind: int, flags: int, body: bytes) -> bytes:
    """Return a message to the kernel."""
    return HEADER.pack(HEADER.size + len(body), kind, REQUEST | flags, 0, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute of a request."""
    return padded(ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value)


def named(kind: int, name: str) -> bytes:
    """Return an attribute that is a name."""
    return attribute(kind, name.encode() + b"\0")


def nested(kind: int, attributes: bytes) -> bytes:
    """Return an attribute that holds attributes."""
    return attribute(kind | NESTED, attributes)


def messages_of(data: bytes, *, may_change: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield the type and body of each message.

    Raises:
        InterruptedError: the listed objects have changed meanwhile, unless `may_change`.
        OSError: the kernel's error.
    """
    start = 0
    while start < len(data):
        length, kind, flags, _, _ = HEADER.unpack_from(data, start)
        body = data[start + HEADER.size : start + length]
        if flags & DUMP_INTERRUPTED and not may_change:
            raise InterruptedError(errno.EINTR, "the list changed while it was read")
        if kind in (ERROR, DONE) and (code := CODE.unpack_from(body)[0]):
            raise OSError(-code, strerror(-code))
        yield kind, body
        start += aligned(length)


def attributes_of(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and value of each attribute, from an offset on."""
    while start < len(data):
        length, kind = ATTRIBUTE.unpack_from(data, start)
        yield kind & KIND_MASK, data[start + ATTRIBUTE.size : start + length]
        start += aligned(length)


def attribute_map(data: bytes, start: int = 0) -> Attributes:
    """Return the values of attributes by their kinds, from an offset on."""
    return dict(attributes_of(data, start))


def split(data: bytes, start: int = 0) -> Iterator[bytes]:
    """Yield each attribute with its head, from an offset on."""
    while start < len(data):
        length, _ = ATTRIBUTE.unpack_from(data, start)
        yield data[start : start + length]
        start += aligned(length)


def number_of(value: bytes, *, signed: bool = False) -> int:
    """Return an attribute's value as a number, 0 if it is empty. nfnetlink's numbers are in network byte order."""
    return int.from_bytes(value, "big", signed=signed)


def text_of(value: bytes) -> str:
    """Return an attribute's value as a name."""
    return value.rstrip(b"\0").decode(errors="replace")


def aligned(length: int) -> int:
    """Return the padded length of an attribute, a message, or a part of a concatenation."""
    return (length + 3) & ~3


def padded(data: bytes) -> bytes:
    """Return the bytes with zeros up to their padded length."""
    return data + bytes(-len(data) % 4)


def attribute_pattern(length: int, kind: int) -> bytes:
    """Return a regular expression for the head of an attribute with a value of `length` bytes.

    In an answer with tens of thousands of entries, a pattern finds the few relevant bytes in a tenth of the time of
    parsing each entry.
    """
    return re.escape(ATTRIBUTE.pack(ATTRIBUTE.size + length, kind))


def nest_pattern(kind: int) -> bytes:
    """Return a regular expression for the head of an attribute that holds attributes.

    Kernels may mark it as such or not (6.18 does not).
    """
    marked, plain = (re.escape(struct.pack("=H", each)) for each in (kind | NESTED, kind))
    return b"..(?:" + marked + b"|" + plain + b")"


FAMILY_NUMBER = {Family.IPV4: 2, Family.IPV6: 10}  # NFPROTO_IPV4, NFPROTO_IPV6
FAMILY_OF_NUMBER = {number: family for family, number in FAMILY_NUMBER.items()}
ADDRESS_SIZE = {Family.IPV4: 4, Family.IPV6: 16}  # bytes
PROTOCOLS = {6: Protocol.TCP, 17: Protocol.UDP, 132: Protocol.SCTP}  # IPPROTO_*

GENERAL = struct.Struct("=BBH")  # family, version, resource: struct nfgenmsg


def request(subsystem: int, kind: int, flags: int, family: int, attributes: bytes = b"") -> bytes:
    """Return a request: the subsystem (NFNL_SUBSYS_*) and its kind of message, to a family by its number."""
    return message(subsystem << 8 | kind, flags, GENERAL.pack(family, 0, 0) + attributes)


_LOG_SUBSYSTEM, _LOG_CONFIG, _LOG_COMMAND, _LOG_BIND = 4, 1, 1, 1
"""NFNL_SUBSYS_ULOG, NFULNL_MSG_CONFIG, NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND (linux/netfilter/nfnetlink_log.h)."""


def bind_log_group(group: int) -> bytes:
    """A request to bind a group of the packet log to the socket that sends it."""
    body = bytes(2) + group.to_bytes(2, "big") + attribute(_LOG_COMMAND, bytes([_LOG_BIND]))
    return message(_LOG_SUBSYSTEM << 8 | _LOG_CONFIG, ACKNOWLEDGE, body)


def body_attributes(body: bytes) -> Attributes:
    """Return the attributes of a message's body."""
    return attribute_map(body, GENERAL.size)
