"""The far ends of the node's interfaces: they send raw frames in, and see all packets that the node sends or receives.

Markers show without a timeout that no packet will come any more.  A single thread, tied to one CPU, sends all frames of
a batch.  A veth or loopback device puts each frame on that CPU's backlog, a queue.  The packets that the node sends in
consequence go on the same queue.  So a marker frame, of an ethertype that no rule sees, arrives after the batch.  A
second marker, sent when the first has arrived, arrives after all consequences.  Two rounds are enough for the longest
path: first into the node, from outside or through loopback, then out of it, or a rejection back.  When the second
marker is read, all packets have been seen.

The exception is a frame that the kernel lost for lack of room.  The kernel counts these, so the lab reports the loss.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from nftproxy.trace.frames import ICMP, ICMPV6, SCTP, TCP, UDP
from nftproxy.trace.node import FAR_MAC, NODE_MAC
from nftproxy_conformance.lab import frames
from nftproxy_conformance.lab.namespace import LabError, Namespace
from nftproxy_conformance.lab.topology import OWN

ETH_P_ALL, ETH_P_IP, ETH_P_IPV6 = 0x0003, 0x0800, 0x86DD
ETH_P_MARKER = 0x88B5  # IEEE 802: for local experiments
SOL_PACKET, PACKET_STATISTICS, PACKET_IGNORE_OUTGOING = 263, 6, 23  # linux/if_packet.h
SO_MEMINFO, SK_MEMINFO_DROPS = 55, 8  # asm-generic/socket.h, linux/sock_diag.h: since Linux 4.12
SO_RCVBUFFORCE = 33  # asm-generic/socket.h: as SO_RCVBUF, not limited by net.core.rmem_max
RECEIVE_BUFFER = 8 << 20  # bytes: a small frame takes up to 1 KiB, and a batch has BATCH frames
BATCH = 256  # connections at a time: the backlog has room for 1,000 frames (net.core.netdev_max_backlog)
PATIENCE = 60.0  # seconds to wait for a marker, which takes microseconds unless the machine stalls

LOOPBACK_MAC = bytes(6)


DELIVERED = (
    *((socket.AF_INET, number) for number in (TCP, UDP, SCTP, ICMP)),
    *((socket.AF_INET6, number) for number in (TCP, UDP, SCTP, ICMPV6)),
)
"""The socket families and protocols of packets that are seen when they are delivered to the node."""


class Sending(NamedTuple):
    """An IP packet, its destination, and the node's interface that it is to go in through, or OWN."""

    interface: str
    packet: bytes
    destination: bytes


class Sighting(NamedTuple):
    """A packet, and the node's interface that it came out of, or OWN."""

    interface: str
    packet: frames.Packet


class Aftermath(NamedTuple):
    """The packets seen after sending.  If `is_complete`, there were no more."""

    sightings: list[Sighting]
    is_complete: bool


def _frame(ethertype: int, payload: bytes, destination: bytes = NODE_MAC) -> bytes:
    return destination + FAR_MAC + ethertype.to_bytes(2, "big") + payload


def _lost_by_backlog(cpu: int) -> int:
    """Frames that this CPU's backlog ever dropped: the second column of softnet_stat."""
    for line in Path("/proc/net/softnet_stat").read_text(encoding="ascii").splitlines():
        columns = line.split()
        if len(columns) < 13 or int(columns[12], 16) == cpu:  # the CPU's number is there since kernel 5.10
            return int(columns[1], 16)
    raise LabError(f"the kernel has no counters for CPU {cpu}")


class Wire:
    """The lab's sockets.  Use them in the thread of the far namespace only.

    Args:
        node: the node's namespace, with `interfaces` in it.
        far: the namespace with the other ends, under the same names.
        interfaces: their names.
    """

    def __init__(self, node: Namespace, far: Namespace, interfaces: tuple[str, ...]) -> None:
        self._marker = 0
        self._lost_by_ends = 0
        allowed = sorted(os.sched_getaffinity(0))
        self._cpu = allowed[os.getpid() % len(allowed)]  # parallel test processes take different CPUs
        with ExitStack() as stack:
            self._ends = {name: stack.enter_context(_packet_socket(far, name, ETH_P_ALL)) for name in interfaces}
            self._near = {
                name: stack.enter_context(_packet_socket(node, name, ETH_P_MARKER)) for name in (*interfaces, "lo")
            }
            self._own = {
                family: stack.enter_context(node.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW))
                for family in (socket.AF_INET, socket.AF_INET6)
            }
            self._deliveries = stack.enter_context(selectors.PollSelector())
            for family, number in DELIVERED:
                delivery = stack.enter_context(_delivery_socket(node, family, number))
                self._deliveries.register(delivery, selectors.EVENT_READ, number)
            self._stack = stack.pop_all()

    def tie_to_cpu(self) -> None:
        """Tie the calling thread to one CPU, so that all frames it sends are handled in order."""
        os.sched_setaffinity(0, {self._cpu})

    def exchange(self, sendings: Sequence[Sending]) -> Aftermath:
        """Send up to BATCH packets, wait for all consequences, and return them.

        Raises:
            LabError: a packet came out with a wrong checksum, or a marker is lost.
        """
        self._discard_leftovers()
        lost = self._lost()
        unsent = [sighting for sending in sendings if (sighting := self._send(sending))]
        self._wait()
        sightings = unsent + list(self._came_out()) + list(self._was_delivered())
        return Aftermath(sightings, is_complete=self._lost() == lost)

    def _lost(self) -> int:
        """Frames that the kernel dropped for lack of room since the lab began, on this CPU."""
        self._lost_by_ends += sum(map(_lost_by_socket, self._ends.values()))
        deliveries = (key.fileobj for key in self._deliveries.get_map().values())
        lost = sum(_lost_by_delivery(each) for each in deliveries if isinstance(each, socket.socket))
        return lost + self._lost_by_ends + _lost_by_backlog(self._cpu)

    def _discard_leftovers(self) -> None:
        """Discard the packets that real servers and clients sent meanwhile."""
        for end in self._ends.values():
            while _receive(end):
                pass
        for _ in self._was_delivered():
            pass

    def _send(self, sending: Sending) -> Sighting | None:
        """Send a packet.  The result reports that the node's kernel refused to send it."""
        is_new = len(sending.destination) == 16
        if sending.interface != OWN:
            frame = _frame(ETH_P_IPV6 if is_new else ETH_P_IP, sending.packet)
            self._ends[sending.interface].send(frame)
            return None
        family = socket.AF_INET6 if is_new else socket.AF_INET
        try:
            self._own[family].sendto(sending.packet, (socket.inet_ntop(family, sending.destination), 0))
        except PermissionError:  # dropped in the output hook
            return None
        except OSError as error:
            packet = frames.parse(sending.packet)
            if packet is None or error.errno == errno.ENOBUFS:  # the fault of this machine, not of the node
                raise
            how = f"errno {errno.errorcode.get(error.errno or 0, error.errno)}"
            return Sighting(OWN, packet._replace(what=frames.What.UNSENT, how=how))
        return None

    def _wait(self) -> None:
        """Return when every frame that was sent before has had its consequences (see the top of the module)."""
        self._marker += 1
        marker = struct.pack("!Q38x", self._marker)
        for end in self._ends.values():
            end.send(_frame(ETH_P_MARKER, marker))
        self._near["lo"].send(_frame(ETH_P_MARKER, marker, LOOPBACK_MAC))
        for end in self._near.values():
            self._discard_until(end, marker)
        for name, end in self._near.items():
            end.send(_frame(ETH_P_MARKER, marker, LOOPBACK_MAC if name == "lo" else FAR_MAC))
        self._discard_until(self._near["lo"], marker)

    def _came_out(self) -> Iterator[Sighting]:
        marker = struct.pack("!Q38x", self._marker)
        for interface, end in self._ends.items():
            for data in self._until_marker(end, marker):
                if packet := frames.parse(data):
                    if packet.what in (frames.What.OPENING, frames.What.DATA) and not frames.is_intact(data):
                        raise LabError(f"came out of {interface} with a wrong checksum: {data.hex()}")
                    yield Sighting(interface, packet)

    def _discard_until(self, end: socket.socket, marker: bytes) -> None:
        for _ in self._until_marker(end, marker):
            pass

    @staticmethod
    def _until_marker(end: socket.socket, marker: bytes) -> Iterator[bytes]:
        """The IP packets that arrived before the marker did."""
        deadline = time.monotonic() + PATIENCE
        while True:
            frame = _receive(end)
            ethertype = int.from_bytes(frame[12:14], "big")
            if ethertype in (ETH_P_IP, ETH_P_IPV6):
                yield frame[14:]
            elif ethertype == ETH_P_MARKER and frame[14:] == marker:
                return
            elif not frame and not select.select([end], [], [], max(0, deadline - time.monotonic()))[0]:
                raise LabError(f"a marker was lost, waited {PATIENCE} s for it")

    def _was_delivered(self) -> Iterator[Sighting]:
        for key, _ in self._deliveries.select(0):
            end, number = key.fileobj, key.data
            assert isinstance(end, socket.socket)
            while True:
                try:
                    data, ancillary, _flags, sender = end.recvmsg(2048, 64, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                if end.family == socket.AF_INET:
                    packet = frames.parse(data)
                else:  # without its header: the destination is beside it, in a struct in6_pktinfo
                    source = socket.inet_pton(socket.AF_INET6, sender[0].partition("%")[0])
                    packet = frames.parse_segment(number, source, ancillary[0][2][:16], data)
                if packet:
                    yield Sighting(OWN, packet)

    def close(self) -> None:
        """Close all sockets."""
        self._stack.close()


def _packet_socket(namespace: Namespace, interface: str, ethertype: int) -> socket.socket:
    end = namespace.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # 0: nothing, until it is bound
    end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.bind((interface, ethertype))
    return end


def _delivery_socket(namespace: Namespace, family: int, number: int) -> socket.socket:
    """A raw socket that gets a copy of each packet of a protocol that passes the input hook."""
    end = namespace.socket(family, socket.SOCK_RAW, number)
    end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    if family == socket.AF_INET6:
        end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    return end


def _receive(end: socket.socket) -> bytes:
    """The next frame that has arrived, or b""."""
    try:
        return end.recv(2048, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def _lost_by_socket(end: socket.socket) -> int:
    """Frames that the socket dropped for lack of room since the last call."""
    _received, lost = struct.unpack("II", end.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    return int(lost)


def _lost_by_delivery(end: socket.socket) -> int:
    """Packets that a raw socket ever dropped for lack of room, as beside large transfers of other programs."""
    counts = end.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 4 * (SK_MEMINFO_DROPS + 1))
    return int(struct.unpack_from("I", counts, 4 * SK_MEMINFO_DROPS)[0])
