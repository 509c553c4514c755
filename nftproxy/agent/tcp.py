"""Sockets of TCP: their family, resets, and pauses of listeners, for the servers and clients of the agent."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from nftproxy.model.addresses import Address, Family, family_of

FULL_PAUSE = 1.0
"""Pause in seconds after an accept that lacked file descriptors (asyncio, ACCEPT_RETRY_DELAY)."""
_ABORT = struct.pack("ii", 1, 0)


def socket_family(address: Address) -> socket.AddressFamily:
    """Return the family of sockets that have this address."""
    return socket.AF_INET6 if family_of(address) is Family.IPV6 else socket.AF_INET


def is_smuggled(connection: socket.socket) -> bool:
    """Return whether a connection to an IPv4 loopback address doesn't come from a loopback address.

    Such a connection comes from outside, if route_localnet is on (CVE-2020-8558).  kube-proxy turns that on, and leaves
    it on.
    """
    if connection.family is not socket.AF_INET:
        return False
    try:
        own, peer = connection.getsockname()[0], connection.getpeername()[0]
    except OSError:  # the client has gone
        return False
    return own.startswith("127.") and not peer.startswith("127.")


def reset(*ends: socket.socket) -> None:
    """Make closing these connections reset them (SO_LINGER with no time), so that the kernel keeps nothing of them."""
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)


def pause_accepting(listener: socket.socket, accept: Callable[[], object], is_open: Callable[[], bool]) -> None:
    """Call `accept` for a listener's connections only after `FULL_PAUSE`, if the listener is still open then."""
    loop = asyncio.get_running_loop()
    loop.remove_reader(listener)

    def go_on() -> None:
        if is_open():
            loop.add_reader(listener, accept)

    loop.call_later(FULL_PAUSE, go_on)
