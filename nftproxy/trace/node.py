"""A throw-away node, and packets that come to it one at a time.

The node is a network namespace with the addresses of the real node, an interface to its pods and an uplink.  Their far
ends are in another namespace, where raw frames are written.  The node's own packets are written to raw sockets, and so
pass its output hook.

Markers show without a timeout that a packet has no further effect.  All packets are sent by the same thread, tied to
one CPU.  A veth or loopback device puts them on that CPU's backlog, a queue, and each packet's consequences follow
there too.  So a marker, a packet of a protocol that no rule sees, comes after the packet, and a second marker after its
consequences.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from ipaddress import ip_interface
from types import MappingProxyType
from typing import NamedTuple

from nftproxy.explanation.packets import NodeFacts
from nftproxy.explanation.question import SourceKind
from nftproxy.kernel.namespace import NetworkNamespace
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.trace.frames import TRANSPORTS, bare_packet, packed, packet, unpacked
from nftproxy.trace.links import add_addresses, join
from nftproxy.trace.outcome import Opening

NODE_MAC, FAR_MAC = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
ETHERTYPES = {Family.IPV4: 0x0800, Family.IPV6: 0x86DD}
SOCKET_FAMILIES = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
MARKER, MARKERS = 253, 2  # a protocol number for experiments (RFC 3692), and the markers after each packet
FIRST_PORT = 20000  # source ports count up from here, so that no packet continues another's connection

# As on every node that forwards, but without rate limits for rejections, and without duplicate address detection.
NODE_SYSCTLS: Mapping[str, str] = MappingProxyType(
    {
        "ipv4/ip_forward": "1",
        "ipv4/conf/all/rp_filter": "0",
        "ipv4/conf/default/rp_filter": "0",
        "ipv4/conf/all/send_redirects": "0",
        "ipv4/conf/default/send_redirects": "0",
        "ipv4/icmp_ratelimit": "0",
        "ipv4/icmp_ratemask": "0",  # also exempts from icmp_msgs_per_sec
        "ipv6/conf/all/forwarding": "1",
        "ipv6/conf/default/forwarding": "1",
        "ipv6/conf/all/accept_dad": "0",
        "ipv6/conf/default/accept_dad": "0",
        "ipv6/icmp/ratelimit": "0",
        "ipv6/icmp/ratemask": "",
    }
)


def obstacle() -> str:
    """The reason why no node can be made on this machine, or ""."""
    if os.geteuid():
        return "root is needed, for network namespaces and raw sockets"
    if not shutil.which("ip"):
        return "iproute2 is missing"
    if not find_spec("nftables"):
        return "libnftables' Python binding is missing"
    return ""


class NewConnection(NamedTuple):
    """A connection to open.  `kind` is the kind of its source, and decides the interface through which it enters."""

    kind: SourceKind
    source: Address
    address: Address
    port: int
    protocol: Protocol = Protocol.TCP


class ThrowAwayNode(NetworkNamespace):
    """A node with an interface to its pods, and an uplink.

    Args:
        facts: addresses and networks of the real node.

    Raises:
        OSError: the machine doesn't allow it.
        Unavailable: a namespace or an interface can't be made.
    """

    def __init__(self, facts: NodeFacts) -> None:
        super().__init__("node")
        self._ports = itertools.count(FIRST_PORT)
        self._interfaces = {SourceKind.POD: facts.pods_interface, SourceKind.NODE: "lo"}
        self._uplink = facts.uplink
        with ExitStack() as stack:
            stack.callback(super().close)
            far = stack.enter_context(NetworkNamespace("far"))
            self._link(far, facts)
            self._ends = {name: stack.enter_context(_end(far, name)) for name in (facts.pods_interface, facts.uplink)}
            self._own = {
                family: stack.enter_context(self.socket(number, socket.SOCK_RAW, socket.IPPROTO_RAW))
                for family, number in SOCKET_FAMILIES.items()
            }
            self.call(os.sched_setaffinity, 0, {max(os.sched_getaffinity(0))})
            self._stack = stack.pop_all()

    def _link(self, far: NetworkNamespace, facts: NodeFacts) -> None:
        """Give the node its interfaces, addresses and routes."""
        far.sysctl({"ipv6/conf/default/disable_ipv6": "1"})
        self.sysctl(NODE_SYSCTLS)
        self.ip("link set lo up")
        for name in (facts.uplink, facts.pods_interface):
            join(self, name, far, name, macs=(NODE_MAC.hex(":"), FAR_MAC.hex(":")))
        add_addresses(self, facts.uplink, *(str(ip_interface(address)) for address in facts.addresses))
        self.ip(
            *(f"route add {everything} dev {facts.uplink}" for everything in ("0.0.0.0/0", "::/0")),
            *(f"route add {network} dev {facts.pods_interface}" for network in facts.pod_networks),
        )

    def send(self, connection: NewConnection) -> Opening:
        """Send the opening packet of a connection, and the markers after it.

        Raises:
            OSError: it can't be sent.
        """
        transport = TRANSPORTS[connection.protocol.value]
        interface = self._interfaces.get(connection.kind, self._uplink)
        source, destination = packed(connection.source), packed(connection.address)
        number = self.call(socket.if_nametoindex, interface)
        opening = Opening(source, next(self._ports), destination, connection.port, number)
        segment = transport.opening(opening.sport, opening.dport, opening.sport)
        self.call(self._write, interface, packet(source, destination, transport, segment), destination)
        for _ in range(MARKERS):
            self.call(self._write, interface, bare_packet(source, source, MARKER, b""), source)
        return opening

    def _write(self, interface: str, data: bytes, destination: bytes) -> None:
        family = Family.IPV6 if len(destination) == 16 else Family.IPV4
        if interface in self._ends:
            self._ends[interface].send(NODE_MAC + FAR_MAC + ETHERTYPES[family].to_bytes(2, "big") + data)
            return
        with contextlib.suppress(PermissionError):  # the output hook dropped the packet
            self._own[family].sendto(data, (unpacked(destination), 0))

    def close(self) -> None:
        """Remove the node."""
        self._stack.close()


def _end(far: NetworkNamespace, interface: str) -> socket.socket:
    end = far.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.bind((interface, 0))  # for sending alone
    return end
