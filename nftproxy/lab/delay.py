"""What makes a link slow: a process between two interfaces, that hands on what it gets, and TCP of one of them later.

    python -m nftproxy.lab.delay NEAR FAR SECONDS    NEAR and FAR are the file descriptors of packet sockets

It runs ahead of other processes if it may, as with a late relay the link would be slower than was asked for.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections import deque

VNET_HEADER, ETHERNET_HEADER = 10, 14  # the length of linux/virtio_net.h's virtio_net_hdr, and of what comes after it
PROTOCOL = {b"\x08\x00": ETHERNET_HEADER + 9, b"\x86\xdd": ETHERNET_HEADER + 6}  # where it is, by the type of a frame
LARGEST = 1 << 17


def relay(near: socket.socket, far: socket.socket, delay: float) -> None:
    """Hand on frames until the link ends; those of TCP from `far` so many seconds later, in their order."""
    held = deque[tuple[float, bytes]]()
    while True:
        left = max(0.0, held[0][0] - time.monotonic()) if held else None
        arrived, _, _ = select.select([near, far], [], [], left)
        if near in arrived:
            far.send(near.recv(LARGEST))
        if far in arrived:
            frame = far.recv(LARGEST)
            if _is_tcp(frame[VNET_HEADER:]):
                held.append((time.monotonic() + delay, frame))
            else:
                near.send(frame)
        while held and held[0][0] <= time.monotonic():
            near.send(held.popleft()[1])


def _is_tcp(frame: bytes) -> bool:
    where = PROTOCOL.get(frame[12:14])
    return where is not None and frame[where] == socket.IPPROTO_TCP


def main(near: str, far: str, delay: str) -> None:
    """Be the process that the module's docstring tells of."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    with contextlib.suppress(OSError):  # the link has gone
        relay(socket.socket(fileno=int(near)), socket.socket(fileno=int(far)), float(delay))


if __name__ == "__main__":
    main(*sys.argv[1:])
