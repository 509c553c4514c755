"""The far ends of the node's interfaces: raw frames in, everything that the node lets out or delivers back.

How "nothing came out" is known without waiting.  All frames of a batch are sent by one thread that is tied to one
CPU.  A veth or loopback device puts each frame on that CPU's backlog, a queue, and what the node sends in
consequence goes on the same queue.  So a marker frame, of an ethertype that no rule sees, that is sent after the
batch arrives after all frames of the batch, and one that is sent when the first has arrived arrives after all that
those led to.  Two rounds are enough for the longest way there is: (1) into the node, from outside or through
loopback; (2) out of it, or a rejection back.  When the second marker is read, what hasn't been seen doesn't exist.

That holds unless the kernel lost frames for lack of room.  It counts those, so the lab knows when it doesn't know.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from nftproxy.lab import frames
from nftproxy.lab.namespace import LabError, Namespace

ETH_P_ALL, ETH_P_IP, ETH_P_IPV6 = 0x0003, 0x0800, 0x86DD
ETH_P_MARKER = 0x88B5  # IEEE 802: for local experiments
SOL_PACKET, PACKET_STATISTICS, PACKET_IGNORE_OUTGOING = 263, 6, 23  # linux/if_packet.h
SO_RCVBUFFORCE = 33  # asm-generic/socket.h: as SO_RCVBUF, not limited by net.core.rmem_max
RECEIVE_BUFFER = 8 << 20  # bytes; a small frame takes up to 1 KiB of it, a batch has BATCH of them
BATCH = 256  # connections at a time; the backlog has room for 1,000 frames (net.core.netdev_max_backlog)
PATIENCE = 5.0  # seconds to wait for a marker; it takes microseconds, unless the machine stands still

NODE_MAC, FAR_MAC = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
LOOPBACK_MAC = bytes(6)
OWN = ""  # in place of an interface: sent by the node itself, or delivered to it


class Sending(NamedTuple):
    """An IP packet, its destination, and the node's interface that it is to go in through, or OWN."""

    interface: str
    packet: bytes
    destination: bytes


class Sighting(NamedTuple):
    """A packet, and the node's interface that it came out of, or OWN."""

    interface: str
    packet: frames.Packet


class Exchange(NamedTuple):
    """What was seen after sending; and whether that was all, so that what wasn't seen did not happen."""

    sightings: list[Sighting]
    is_complete: bool


def _frame(ethertype: int, payload: bytes, destination: bytes = NODE_MAC) -> bytes:
    return destination + FAR_MAC + ethertype.to_bytes(2, "big") + payload


def _lost_by_backlog(cpu: int) -> int:
    """How many frames this CPU's backlog had no room for, ever: softnet_stat's second column."""
    for line in Path("/proc/net/softnet_stat").read_text(encoding="ascii").splitlines():
        columns = line.split()
        if len(columns) < 13 or int(columns[12], 16) == cpu:  # the CPU's number is there since kernel 5.10
            return int(columns[1], 16)
    raise LabError(f"the kernel has no counters for CPU {cpu}")


class Wire:
    """All sockets that the lab speaks and listens through.  Use it within the far namespace's thread only.

    Args:
        node: the node's namespace, with `interfaces` in it.
        far: the namespace with the other ends, under the same names.
        interfaces: their names.
    """

    def __init__(self, node: Namespace, far: Namespace, interfaces: tuple[str, ...]) -> None:
        self._marker = 0
        self._lost_by_ends = 0
        allowed = sorted(os.sched_getaffinity(0))
        self._cpu = allowed[os.getpid() % len(allowed)]  # test processes side by side take different ones
        numbers = {
            socket.AF_INET: (frames.TCP, frames.UDP, frames.SCTP, frames.ICMP),
            socket.AF_INET6: (frames.TCP, frames.UDP, frames.SCTP, frames.ICMPV6),
        }
        with ExitStack() as stack:
            self._ends = {name: stack.enter_context(_packet_socket(far, name, ETH_P_ALL)) for name in interfaces}
            self._near = {
                name: stack.enter_context(_packet_socket(node, name, ETH_P_MARKER)) for name in (*interfaces, "lo")
            }
            self._own = {
                family: stack.enter_context(node.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW))
                for family in (socket.AF_INET, socket.AF_INET6)
            }
            self._deliveries = {
                stack.enter_context(_delivery_socket(node, family, number)): number
                for family in numbers
                for number in numbers[family]
            }
            self._poll = select.poll()
            self._by_descriptor = {each.fileno(): each for each in self._deliveries}
            for descriptor in self._by_descriptor:
                self._poll.register(descriptor, select.POLLIN)
            self._stack = stack.pop_all()

    def tie_to_cpu(self) -> None:
        """Tie the calling thread to one CPU, so that all frames it sends are handled in order."""
        os.sched_setaffinity(0, {self._cpu})

    def exchange(self, sendings: Sequence[Sending]) -> Exchange:
        """Send up to BATCH packets, wait until all consequences have happened, and return those.

        Raises:
            LabError: a packet came out with a wrong checksum, or a marker is lost.
        """
        self._discard_leftovers()
        lost = self._lost()
        unsent = [sighting for sending in sendings if (sighting := self._send(sending))]
        self._wait()
        sightings = unsent + list(self._came_out()) + list(self._was_delivered())
        return Exchange(sightings, is_complete=self._lost() == lost)

    def _lost(self) -> int:
        """How many frames the kernel had no room for since the lab began, on this CPU."""
        self._lost_by_ends += sum(map(_lost_by_socket, self._ends.values()))
        return self._lost_by_ends + _lost_by_backlog(self._cpu)

    def _discard_leftovers(self) -> None:
        """Empty all sockets of what real servers and clients did meanwhile."""
        for end in self._ends.values():
            while _receive(end):
                pass
        for _ in self._was_delivered():
            pass

    def _send(self, sending: Sending) -> Sighting | None:
        """Send a packet; what is returned says that the node would not."""
        is_new = len(sending.destination) == 16
        if sending.interface != OWN:
            frame = _frame(ETH_P_IPV6 if is_new else ETH_P_IP, sending.packet)
            self._ends[sending.interface].send(frame)
            return None
        family = socket.AF_INET6 if is_new else socket.AF_INET
        try:
            self._own[family].sendto(sending.packet, (socket.inet_ntop(family, sending.destination), 0))
        except PermissionError:  # what the rules of the output hook swallow
            return None
        except OSError as error:
            packet = frames.parse(sending.packet)
            if packet is None or error.errno == errno.ENOBUFS:  # this machine's fault, not the node's
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
                    if packet.what is frames.What.OPENING and not frames.is_intact(data):
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
        for descriptor, _ in self._poll.poll(0):
            end = self._by_descriptor[descriptor]
            number, old = self._deliveries[end], end.family == socket.AF_INET
            while True:
                try:
                    data, ancillary, _flags, sender = end.recvmsg(2048, 64, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                if old:
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
    """A socket that gets a copy of what the input hook lets through of one protocol."""
    end = namespace.socket(family, socket.SOCK_RAW, number)
    end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    if family == socket.AF_INET6:
        end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    return end


def _receive(end: socket.socket) -> bytes:
    """The next frame that has arrived; b"" if none has."""
    try:
        return end.recv(2048, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def _lost_by_socket(end: socket.socket) -> int:
    """How many frames the socket had no room for since it was last asked."""
    _received, lost = struct.unpack("II", end.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    return int(lost)
