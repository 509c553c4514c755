"""Messages of netfilter's subsystems: nftables, connection tracking, counters of iptables.

Their bodies begin with the address family (linux/netfilter/nfnetlink.h).
"""

from __future__ import annotations

import struct

from nftproxy.model.addresses import Family, Protocol
from nftproxy.netlink.codec import ACKNOWLEDGE, Attributes, attribute, attribute_map, message

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
