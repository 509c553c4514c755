"""The sockets of a listener: a single one, or two that divide the clients into this machine's and all others.

The kubelet's probes come from the node itself.  The connections that wait at a socket are accepted in their order, and
beyond its backlog the kernel drops first packets, which come again after a second or more.  So a flood from elsewhere
could make a probe late.  The health port has two sockets with a backlog each: connections from the node wait for each
other only.

The kernel chooses between sockets at the same address by a program (SO_ATTACH_REUSEPORT_CBPF, Linux 4.6): a connection
comes from this machine if both of its addresses are the same, or if its source is a loopback address.  The kernel drops
packets from elsewhere with such sources (rp_filter doesn't matter: they are "martian", ip_route_input_slow).
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections.abc import Iterable, Sequence
from functools import partial

SO_ATTACH_REUSEPORT_CBPF = 51  # asm-generic/socket.h
HERE, ELSEWHERE = 0, 1
"""The socket for connections from this machine, and the socket for all others."""

_NETWORK = 0xFFF00000
"""SKF_NET_OFF of linux/filter.h: offsets from here are in the header of the IP packet."""
_LOAD, _LOAD_BYTE, _TO_INDEX, _IF_SAME, _IF_EQUAL, _RETURN = 0x20, 0x30, 0x07, 0x1D, 0x15, 0x06
_LOOPBACK_BYTE = 127
_ADDRESSES = {socket.AF_INET: (12, 16, 4), socket.AF_INET6: (8, 24, 16)}
"""The offsets of source and destination in the header, and the bytes of an address."""

Instruction = tuple[int, int, int, int]
"""Code, the instructions to skip if a comparison is true, the same if it is false, and a constant."""


def own_listener(place: tuple[str, int], family: socket.AddressFamily) -> list[socket.socket]:
    """Open a listener of a single socket.  Raises OSError if it can't."""
    return [socket.create_server(place, family=family)]


def split_listener(place: tuple[str, int], family: socket.AddressFamily) -> list[socket.socket]:
    """Open a listener whose clients on this machine have a socket of their own, `HERE`.  Raises OSError if it can't.

    No other program may listen there, even if it would share the port: the first socket, which asks for the port alone,
    shows that.
    """
    socket.create_server(place, family=family).close()
    with contextlib.ExitStack() as opened:
        create = partial(socket.create_server, place, family=family, reuse_port=True)
        found = [opened.enter_context(create()) for _ in (HERE, ELSEWHERE)]
        _attach(found[HERE], list(_program(family)))
        opened.pop_all()
        return found


def _program(family: socket.AddressFamily) -> Iterable[Instruction]:
    """Return `HERE` for connections from this machine, else `ELSEWHERE`."""
    source, destination, size = _ADDRESSES[family]
    if family == socket.AF_INET:  # from 127.0.0.0/8 to any address
        yield _LOAD_BYTE, 0, 0, _NETWORK + source
        yield _IF_EQUAL, 4, 0, _LOOPBACK_BYTE
    for offset in range(0, size, 4):
        yield _LOAD, 0, 0, _NETWORK + source + offset
        yield _TO_INDEX, 0, 0, 0
        yield _LOAD, 0, 0, _NETWORK + destination + offset
        yield _IF_SAME, 0, size - offset - 3, 0
    yield _RETURN, 0, 0, HERE
    yield _RETURN, 0, 0, ELSEWHERE


def _attach(one: socket.socket, program: Sequence[Instruction]) -> None:
    """Have the kernel choose between all sockets at the address of one of them by a program."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    one.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, struct.pack("@HP", len(program), ctypes.addressof(code))
    )
