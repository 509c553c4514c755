"""The kernel's routes to addresses (rtnetlink), by its rules and tables, as for a packet of this node."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import sys

from nftproxy.model.addresses import Address, Family, family_of
from nftproxy.model.route import Route
from nftproxy.netlink.codec import attribute, attribute_map, message, messages_of

# linux/rtnetlink.h
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, prefix lengths, tos, table, protocol, scope, type, flags: struct rtmsg
_NEW_ROUTE, _GET_ROUTE = 24, 26  # RTM_NEWROUTE, RTM_GETROUTE
_DESTINATION, _INTERFACE, _METRICS, _MTU = 1, 4, 8, 2  # RTA_DST, RTA_OIF, RTA_METRICS, RTAX_MTU
_THE_ROUTE_ITSELF = 0x2000  # RTM_F_FIB_MATCH: not what the kernel has made of it for this address
NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL})
"""Errors without a route, and of routes that are unreachable, prohibit or blackhole (ip-route(8))."""
_SIZE = 64 * 1024
_ANSWER_SECONDS = 10.0  # the kernel answers at once


def route_to(address: Address) -> Route:
    """Return the kernel's route to an address.

    Raises:
        OSError: the kernel's error, other than that there is no route.
    """
    try:
        return _asked(address)
    except OSError as error:
        if error.errno not in NO_ROUTE:
            raise
        return Route(why_not=os.strerror(error.errno))


def _asked(address: Address) -> Route:
    packed = ipaddress.ip_address(address).packed
    family = socket.AF_INET if family_of(address) is Family.IPV4 else socket.AF_INET6
    head = _ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, _THE_ROUTE_ITSELF)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_ANSWER_SECONDS)
        kernel.sendto(message(_GET_ROUTE, 0, head + attribute(_DESTINATION, packed)), (0, 0))
        bodies = [body for kind, body in messages_of(kernel.recv(_SIZE)) if kind == _NEW_ROUTE]
    return _route(bodies[0]) if bodies else Route()


def _route(body: bytes) -> Route:
    held = attribute_map(body, _ROUTE.size)
    number = int.from_bytes(held.get(_INTERFACE, b""), sys.byteorder)
    metrics = attribute_map(held.get(_METRICS, b""))
    name = socket.if_indextoname(number) if number else ""  # a route with several ways has none of its own
    return Route(_ROUTE.unpack_from(body)[1], name, int.from_bytes(metrics.get(_MTU, b""), sys.byteorder))
