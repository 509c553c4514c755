"""The names and addresses of this machine's interfaces, and their changes (rtnetlink).

nodePortAddresses selects the addresses that serve node ports.  The Node object has only the main addresses.  The fast
path needs the names of interfaces.

rtnetlink is asked for a dump, and few kinds of attributes are read.  A library for it (pyroute2) takes 10 MB of every
node's memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
from collections.abc import AsyncGenerator, Iterator

from nftproxy.model.addresses import Address, parse_virtual_address
from nftproxy.model.events import Event, HostAddresses, Put
from nftproxy.netlink.codec import DONE, DUMP, Attributes, attribute, attribute_map, message, messages_of

SILENCE = 0.02
"""Seconds of debounce: an interface gets its addresses in quick succession."""

# linux/rtnetlink.h, linux/if_addr.h
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface: struct ifaddrmsg
_NEW_ADDRESS, _GET_ADDRESS = 20, 22  # RTM_NEWADDR, RTM_GETADDR
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_LINK = struct.Struct("=BxHiII")  # family, type, interface, flags, changed flags: struct ifinfomsg
_NEW_LINK, _GET_LINK = 16, 18  # RTM_NEWLINK, RTM_GETLINK
_IFLA_NAME, _EXTENDED = 3, 29  # IFLA_IFNAME, IFLA_EXT_MASK
_SKIP_STATISTICS = struct.pack("=I", 8)  # RTEXT_FILTER_SKIP_STATS
_ADDRESS_GROUPS = 0x10 | 0x100  # RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR
_LINK_GROUP = 1  # RTMGRP_LINK
_SIZE = 64 * 1024  # bytes that are read at once: twice what the kernel puts into one answer
_ANSWER_SECONDS = 10.0  # the kernel answers at once


async def watch_addresses() -> AsyncGenerator[list[Event]]:
    """Yield all interface addresses, at once and after each change, until the task is cancelled.

    Loopback and link-local addresses are left out, as they serve no node port.
    """
    known = None
    async with contextlib.aclosing(_changes(_ADDRESS_GROUPS)) as changes:
        async for _ in changes:
            current = host_addresses()
            if current != known:
                known = current
                yield [Put(current)]


async def watch_interfaces(period: float) -> AsyncGenerator[frozenset[str]]:
    """Yield the names of all interfaces, at once, after each change, and each `period` in seconds, until cancelled."""
    async with contextlib.aclosing(_changes(_LINK_GROUP, period)) as changes:
        async for _ in changes:
            yield interface_names()


async def _changes(groups: int, period: float | None = None) -> AsyncGenerator[None]:
    """Yield at once, after each change that these groups notify of, and each `period` in seconds if there is one."""
    loop = asyncio.get_running_loop()
    with _open() as notifications:
        notifications.setblocking(False)
        notifications.bind((0, groups))
        while True:
            yield
            with contextlib.suppress(OSError):  # TimeoutError, or ENOBUFS: notifications were lost
                async with asyncio.timeout(period):
                    await loop.sock_recv(notifications, _SIZE)
            await asyncio.sleep(SILENCE)
            with contextlib.suppress(OSError):  # BlockingIOError: all are read. ENOBUFS: some were lost
                while notifications.recv(_SIZE):
                    pass


def host_addresses() -> HostAddresses:
    """Return the addresses as they are now.

    Raises:
        OSError: the kernel's error.
    """
    while True:
        with contextlib.suppress(InterruptedError), _open() as kernel:
            return HostAddresses(frozenset(_addresses(kernel)))


def interface_names() -> frozenset[str]:
    """Return the names of all interfaces, except for names beyond ASCII.

    Raises:
        OSError: the kernel's error.
    """
    while True:
        with contextlib.suppress(InterruptedError), _open() as kernel:
            asked = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_EXTENDED, _SKIP_STATISTICS)
            links = (body for kind, body in _dump(kernel, _GET_LINK, asked) if kind == _NEW_LINK)
            names = (attribute_map(body, _LINK.size)[_IFLA_NAME].rstrip(b"\0") for body in links)
            return frozenset(name.decode() for name in names if name.isascii())


def _open() -> socket.socket:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    made.settimeout(_ANSWER_SECONDS)
    return made


def _addresses(kernel: socket.socket) -> Iterator[Address]:
    """Yield the addresses of all interfaces, from a single dump.

    Raises:
        InterruptedError: the addresses have changed meanwhile.
        OSError: the kernel's error.
    """
    for kind, body in _dump(kernel, _GET_ADDRESS, _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        if kind == _NEW_ADDRESS:
            yield from _usable(attribute_map(body, _ADDRESS.size))


def _dump(kernel: socket.socket, kind: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """Request a dump, and yield the kind and body of each message.  Raises as `_addresses`."""
    kernel.sendto(message(kind, DUMP, body), (0, 0))
    while True:
        for found in messages_of(kernel.recv(_SIZE)):
            if found[0] == DONE:
                return
            yield found


def _usable(held: Attributes) -> Iterator[Address]:
    """Yield an interface's own address: IFA_LOCAL if present, as IFA_ADDRESS may then be the peer's."""
    if packed := held.get(_IFA_LOCAL) or held.get(_IFA_ADDRESS):
        with contextlib.suppress(ValueError):
            yield parse_virtual_address(str(ipaddress.ip_address(packed)))
