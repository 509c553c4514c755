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
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from nftproxy.logs import warn
from nftproxy.model.addresses import Address, parse_virtual_address
from nftproxy.model.backoff import Backoff
from nftproxy.model.codes import Code
from nftproxy.model.events import Event, HostAddresses, Put
from nftproxy.model.link import Link
from nftproxy.netlink.codec import DONE, DUMP, Attributes, attribute, attribute_map, message, messages_of, text_of

Item = TypeVar("Item")
Listing = TypeVar("Listing")

DEBOUNCE = 0.02
"""Seconds of debounce: an interface gets its addresses in quick succession."""
BACKOFF = Backoff(1.0, 30.0)
"""The pauses after listings that failed."""
ATTEMPTS = 10
"""Limit of dumps for a listing, if changes interrupt them."""

# linux/rtnetlink.h, linux/if_addr.h
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface: struct ifaddrmsg
_NEW_ADDRESS, _GET_ADDRESS = 20, 22  # RTM_NEWADDR, RTM_GETADDR
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_PASSING = 0x01 | 0x08 | 0x20 | 0x40  # IFA_F_SECONDARY (or TEMPORARY), DADFAILED, DEPRECATED, TENTATIVE
_LINK = struct.Struct("=BxHiII")  # family, type, interface, flags, changed flags: struct ifinfomsg
_NEW_LINK, _GET_LINK = 16, 18  # RTM_NEWLINK, RTM_GETLINK
_IFLA_NAME, _MTU, _MASTER, _INFO, _EXTENDED = 3, 4, 10, 18, 29  # IFLA_IFNAME, _MTU, _MASTER, _LINKINFO, _EXT_MASK
_KIND, _PORT_KIND, _PORT_DATA = 1, 4, 5  # IFLA_INFO_KIND, IFLA_INFO_SLAVE_KIND, IFLA_INFO_SLAVE_DATA
_HAIRPIN = 4  # IFLA_BRPORT_MODE
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
    async with contextlib.aclosing(_listings(host_addresses, _ADDRESS_GROUPS)) as listings:
        async for current in listings:
            if current != known:
                known = current
                yield [Put(current)]


def watch_interfaces(period: float) -> AsyncGenerator[frozenset[str]]:
    """Yield the names of all interfaces, at once, after each change, and each `period` in seconds, until cancelled."""
    return _listings(interface_names, _LINK_GROUP, period)


def watch_addresses_of(names: Sequence[str]) -> AsyncGenerator[tuple[tuple[str, tuple[Address, ...]], ...]]:
    """Yield the lasting addresses of some interfaces, in the kernel's order, at once and after each change.

    An interface that doesn't exist has none.
    """
    return _listings(lambda: tuple((name, addresses_of(name)) for name in names), _ADDRESS_GROUPS | _LINK_GROUP)


async def _listings(read: Callable[[], Listing], groups: int, period: float | None = None) -> AsyncGenerator[Listing]:
    """Read at once, after each change that these groups notify of, and each `period` in seconds if there is one.

    If the kernel or a lack of resources prevents a listing, it is retried with backoff.
    """
    failures = 0
    while True:
        try:
            with _open() as notifications:
                notifications.setblocking(False)
                notifications.bind((0, groups))
                while True:
                    yield await asyncio.to_thread(read)  # the kernel answers late while another program has its lock
                    failures = 0
                    await _changed(notifications, period)
        except OSError as error:
            failures += 1
            pause = BACKOFF.pause(failures)
            text = "this machine's interfaces can't be read, retrying in %(pause).0f s: %(error)s"
            warn(Code.INTERFACES_UNREADABLE, text, pause=pause, error=error)
            await asyncio.sleep(pause)


async def _changed(notifications: socket.socket, period: float | None) -> None:
    """Wait for a change, at most for `period`, and for the changes that follow it in quick succession."""
    with contextlib.suppress(OSError):  # TimeoutError, or ENOBUFS: notifications were lost
        async with asyncio.timeout(period):
            await asyncio.get_running_loop().sock_recv(notifications, _SIZE)
    await asyncio.sleep(DEBOUNCE)
    with contextlib.suppress(OSError):  # BlockingIOError: all are read. ENOBUFS: some were lost
        while notifications.recv(_SIZE):
            pass


def host_addresses() -> HostAddresses:
    """Return the addresses as they are now.

    Raises:
        OSError: the kernel's error.
    """
    return HostAddresses(_uninterrupted(_addresses))


def addresses_of(name: str) -> tuple[Address, ...]:
    """Return an interface's addresses that are neither secondary nor temporary, deprecated nor tentative, in order.

    Raises:
        OSError: the kernel's error.
    """
    try:
        index = socket.if_nametoindex(name)
    except OSError:  # no such interface
        return ()
    return tuple(address for _, address in sorted(_uninterrupted(lambda kernel: enumerate(_lasting(kernel, index)))))


def interface_names() -> frozenset[str]:
    """Return the names of all interfaces, except for names beyond ASCII.

    Raises:
        OSError: the kernel's error.
    """
    return _uninterrupted(_names)


def links() -> tuple[Link, ...]:
    """Return all interfaces, by their names.

    Raises:
        OSError: the kernel's error.
    """
    return tuple(sorted(_uninterrupted(_links)))


def _uninterrupted(read: Callable[[socket.socket], Iterable[Item]]) -> frozenset[Item]:
    """Read all of a single dump, and retry a dump that changes interrupt.

    Raises:
        InterruptedError: changes interrupted `ATTEMPTS` dumps in a row.
        OSError: the kernel's error.
    """
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(InterruptedError), _open() as kernel:
            return frozenset(read(kernel))
        time.sleep(DEBOUNCE)
    with _open() as kernel:
        return frozenset(read(kernel))


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


def _lasting(kernel: socket.socket, index: int) -> Iterator[Address]:
    """Yield the lasting addresses of an interface, from a single dump.  Raises as `_addresses`."""
    for kind, body in _dump(kernel, _GET_ADDRESS, _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        if kind == _NEW_ADDRESS:
            _, _, flags, _, owner = _ADDRESS.unpack_from(body)
            if owner == index and not flags & _PASSING:
                yield from _usable(attribute_map(body, _ADDRESS.size))


def _names(kernel: socket.socket) -> Iterator[str]:
    """Yield the names of all interfaces, from a single dump.  Raises as `_addresses`."""
    for _, held in _dumped_links(kernel):
        name = held[_IFLA_NAME].rstrip(b"\0")
        if name.isascii():
            yield name.decode()


def _links(kernel: socket.socket) -> Iterator[Link]:
    """Yield all interfaces, from a single dump.  Raises as `_addresses`."""
    found = dict(_dumped_links(kernel))
    names = {number: text_of(held[_IFLA_NAME]) for number, held in found.items()}
    for number, held in found.items():
        info = attribute_map(held.get(_INFO, b""))
        is_port = text_of(info.get(_PORT_KIND, b"")) == "bridge"
        port = attribute_map(info.get(_PORT_DATA, b"")) if is_port else {}
        yield Link(
            names[number],
            text_of(info.get(_KIND, b"")),
            int.from_bytes(held.get(_MTU, b""), sys.byteorder),
            names.get(int.from_bytes(held.get(_MASTER, b""), sys.byteorder), "") if is_port else "",
            port.get(_HAIRPIN) == b"\1",
        )


def _dumped_links(kernel: socket.socket) -> Iterator[tuple[int, Attributes]]:
    """Yield the number and attributes of each interface, from a single dump.  Raises as `_addresses`."""
    asked = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_EXTENDED, _SKIP_STATISTICS)
    for kind, body in _dump(kernel, _GET_LINK, asked):
        if kind == _NEW_LINK:
            yield _LINK.unpack_from(body)[2], attribute_map(body, _LINK.size)


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
