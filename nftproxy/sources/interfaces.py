"""The addresses on this machine's interfaces, followed as they come and go (rtnetlink).

Node ports are served on those that nodePortAddresses selects; the Node object knows only the main ones.

One dump is all that is asked of rtnetlink, and one kind of attribute is read: a library for it (pyroute2) weighs 10 MB
of every node's memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator

from nftproxy.model.addresses import Address, parse_virtual_address
from nftproxy.model.events import Event, HostAddresses, Put

SILENCE = 0.02
"""Seconds in which further changes are gathered: an interface gets its addresses one by one."""

# linux/netlink.h, linux/rtnetlink.h, linux/if_addr.h
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port: struct nlmsghdr
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface: struct ifaddrmsg
_ATTRIBUTE = struct.Struct("=HH")  # length, type: struct rtattr
_ERROR, _DONE = 2, 3  # NLMSG_*
_NEW_ADDRESS, _GET_ADDRESS = 20, 22  # RTM_NEWADDR, RTM_GETADDR
_REQUEST, _DUMP, _DUMP_INTERRUPTED = 0x01, 0x300, 0x10  # NLM_F_*
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_GROUPS = 0x10 | 0x100  # RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR
_SIZE = 64 * 1024  # bytes that are read at once: twice what the kernel puts into one answer
_ANSWER_SECONDS = 10.0  # the kernel answers while it is asked


async def follow_addresses() -> AsyncIterator[list[Event]]:
    """All interface addresses: at once, and again whenever one has come or gone; ends only with the task.

    Loopback and link-local addresses are left out, as no node port is served there.
    """
    loop = asyncio.get_running_loop()
    with _open() as notifications:
        notifications.setblocking(False)
        notifications.bind((0, _GROUPS))
        known = None
        while True:
            current = host_addresses()
            if current != known:
                known = current
                yield [Put(current)]
            await _until_heard(loop, notifications)
            await asyncio.sleep(SILENCE)
            with contextlib.suppress(OSError):  # BlockingIOError, once all that came is read; ENOBUFS: some was lost
                while notifications.recv(_SIZE):
                    pass


async def _until_heard(loop: asyncio.AbstractEventLoop, notifications: socket.socket) -> None:
    with contextlib.suppress(OSError):  # ENOBUFS: so much has come that some of it was lost
        await loop.sock_recv(notifications, _SIZE)


def host_addresses() -> HostAddresses:
    """The same addresses, as they are now.

    Raises:
        OSError: the kernel doesn't give them.
    """
    while True:
        with contextlib.suppress(InterruptedError), _open() as kernel:
            found = {address for text in _addresses(kernel) if (address := _usable(text)) is not None}
            return HostAddresses(frozenset(found))


def _open() -> socket.socket:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    made.settimeout(_ANSWER_SECONDS)
    return made


def _addresses(kernel: socket.socket) -> Iterator[str]:
    """The addresses on all interfaces, in one dump.

    Raises:
        InterruptedError: some have changed meanwhile.
        OSError: the kernel says so.
    """
    body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    asked = _HEADER.pack(_HEADER.size + len(body), _GET_ADDRESS, _REQUEST | _DUMP, 0, 0) + body
    kernel.sendto(asked, (0, 0))
    while True:
        data, start = kernel.recv(_SIZE), 0
        while start < len(data):
            length, kind, flags, _, _ = _HEADER.unpack_from(data, start)
            if flags & _DUMP_INTERRUPTED:
                raise InterruptedError
            if kind == _DONE:
                return
            if kind == _ERROR:
                (number,) = struct.unpack_from("=i", data, start + _HEADER.size)
                raise OSError(-number, os.strerror(-number))
            if kind == _NEW_ADDRESS:
                yield from _address_in(data[start + _HEADER.size + _ADDRESS.size : start + length])
            start += _aligned(length)


def _address_in(attributes: bytes) -> Iterator[str]:
    """An interface's own address, which is IFA_LOCAL where there is one: then IFA_ADDRESS may be a peer's."""
    found, start = {}, 0
    while start < len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, start)
        found[kind] = attributes[start + _ATTRIBUTE.size : start + length]
        start += _aligned(length)
    if packed := found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS):
        yield str(ipaddress.ip_address(packed))


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _usable(text: str) -> Address | None:
    try:
        return parse_virtual_address(text)
    except ValueError:
        return None
