"""Slow links: a process relays frames between two interfaces, and delays TCP in one direction.

    python -m nftproxy_conformance.lab.delay NEAR FAR SECONDS    NEAR and FAR are the file descriptors of packet sockets

Few machines that run tests have the kernel's netem.  The process runs at real-time priority if it may, as a relay that
runs late would make the link slower than requested.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections import deque

from nftproxy.trace.links import join
from nftproxy_conformance.lab.namespace import Namespace

VNET_HEADER, ETHERNET_HEADER = 10, 14  # bytes: virtio_net_hdr (linux/virtio_net.h), and the header after it
PROTOCOL = {b"\x08\x00": ETHERNET_HEADER + 9, b"\x86\xdd": ETHERNET_HEADER + 6}  # where it is, by the type of a frame
LARGEST = 1 << 17
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/socket.h, linux/if_packet.h
ETH_P_ALL = 3  # linux/if_ether.h


def join_with_delay(near: Namespace, near_name: str, far: Namespace, far_name: str, delay: float) -> Namespace:
    """Join two namespaces as `join` does, and delay TCP segments from `far` by `delay` seconds.

    The link is two links, with a namespace and a process between them.

    Returns:
        The namespace between them.  The caller closes it, and the link ends with it.

    Raises:
        Unavailable: the names are taken or too long, or the links don't come up.
    """
    between = Namespace(f"between {near_name} and {far_name}")
    try:
        between.sysctl({"ipv6/conf/default/disable_ipv6": "1"})
        join(near, near_name, between, "near")
        join(between, "far", far, far_name)
        with _raw(between, "near") as one, _raw(between, "far") as other:
            ends = one.fileno(), other.fileno()
            command = [sys.executable, "-m", "nftproxy_conformance.lab.delay", *map(str, ends), str(delay)]
            between.popen(command, pass_fds=ends)
    except BaseException:
        between.close()
        raise
    return between


def _raw(namespace: Namespace, interface: str) -> socket.socket:
    """A packet socket that receives all frames, with checksums and segmentation still left to the hardware."""
    end = namespace.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # 0: nothing, until it is bound
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.bind((interface, ETH_P_ALL))
    return end


def relay(near: socket.socket, far: socket.socket, delay: float) -> None:
    """Relay frames until the link ends.  TCP frames from `far` are sent `delay` seconds later, in order."""
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
    """Run the relay process."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    with contextlib.suppress(OSError):  # the link has gone
        relay(socket.socket(fileno=int(near)), socket.socket(fileno=int(far)), float(delay))


if __name__ == "__main__":
    main(*sys.argv[1:])
