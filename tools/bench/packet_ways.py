"""Nodes that an established flow passes, each with rules of its own, for tools/bench/packets.py and throughput.py."""

from __future__ import annotations

import ctypes
import os
import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from nftproxy_conformance.lab.namespace import LabError, Namespace
from nftproxy_conformance.lab.node import Node

from nftproxy.extensions.fast_path.rules import TEMPLATE, FastPathFacts
from nftproxy.installed import ALL_TEMPLATES
from nftproxy.kernel.conntrack.connection_counts import offloaded_connections
from nftproxy.kernel.nfnetlink.flowtable import follow_interfaces
from nftproxy.model.addresses import FAST_PATH_TABLE, Family
from nftproxy.policy import facts
from nftproxy.rules.renderer import Renderer
from nftproxy.templates_dir import template_texts, templates_dir
from nftproxy.trace.links import add_addresses, join
from tests.support.factories import pipeline, service, slice_of
from tests.support.flowtables import has_flowtables
from tests.support.processes import CHECKOUT

KUBE_PROXY = CHECKOUT / "examples" / "migrate" / "nftables.nft"
"""The rules of kube-proxy: its Service has the addresses of `Kind` in IPv4."""

FAST = (
    Renderer(template_texts(ALL_TEMPLATES))
    .whole_table(facts.Part(TEMPLATE, FastPathFacts(f"inet {FAST_PATH_TABLE}", "ct status assured", packets=1)))
    .text
)
BATCH, BATCHES = 100, 4
"""Packets in a system call, which the kernel carries in turn, and calls in a burst of about 2 milliseconds."""
PAYLOAD = 64  # bytes
PATIENCE = 5.0  # seconds
LONG = "86400"
"""Seconds for which the kernel remembers a flow while others are established, which takes minutes on slow machines.  A
flow that it has forgotten would be measured as one that was never answered."""
ASSURED = 2.1  # seconds after which a UDP flow is assured (nf_conntrack_proto_udp.c)


class Kind(NamedTuple):
    """A kind of flow: its family and protocol, and how many further Services and interfaces the node has."""

    is_ipv6: bool = False
    is_tcp: bool = False
    services: int = 0
    interfaces: int = 0

    @property
    def client(self) -> str:
        """The client's address."""
        return "fd00:1::9" if self.is_ipv6 else "10.1.0.9"

    @property
    def gateway(self) -> str:
        """The address to which the ends of the flow send."""
        return "fd00:1::1" if self.is_ipv6 else "10.1.0.1"

    @property
    def pods(self) -> tuple[str, str]:
        """The addresses of the pods."""
        return ("fd00:1::4", "fd00:1::5") if self.is_ipv6 else ("10.1.0.4", "10.1.0.5")

    @property
    def direct(self) -> tuple[str, int]:
        """A pod's own address and port."""
        return self.pods[0], 8080 if self.is_tcp else 5353

    @property
    def service(self) -> tuple[str, int]:
        """The Service's address and port."""
        return "fd00:96::10" if self.is_ipv6 else "10.96.0.10", 80 if self.is_tcp else 53

    @property
    def family(self) -> str:
        """The family of rules, as nft names it."""
        return "ip6" if self.is_ipv6 else "ip"

    @property
    def protocol(self) -> str:
        """The protocol, as nft names it."""
        return "tcp" if self.is_tcp else "udp"


class Flow(NamedTuple):
    """Packets to a place through a node."""

    name: str
    rules: str
    place: tuple[str, int]
    is_fast: bool = False
    kind: Kind = Kind()


def flows(kind: Kind, *others: Path) -> Iterator[Flow]:
    """All flows of a kind that are compared, also with other directories of templates.  The first has no table."""
    track = (
        f"table {kind.family} floor {{ chain c {{ type filter hook prerouting priority 0; ct state invalid drop; }}; }}"
    )
    yield Flow("no table", "", kind.direct, kind=kind)
    yield Flow("connection tracking alone", track, kind.direct, kind=kind)
    nodes = {"connection tracking and NAT alone": nat(kind), "nftproxy": ours(kind, templates_dir())}
    nodes["kube-proxy"] = kube_proxy(kind)
    for name, rules in (nodes | {f"nftproxy, {other}": ours(kind, other) for other in others}).items():
        yield Flow(f"{name}, directly", rules, kind.direct, kind=kind)
        yield Flow(f"{name}, through a Service", rules, kind.service, kind=kind)
    if has_flowtables():
        fast = FAST + nodes["nftproxy"]
        yield Flow("nftproxy with the fast path, directly", fast, kind.direct, is_fast=True, kind=kind)
        yield Flow("nftproxy with the fast path, through a Service", fast, kind.service, is_fast=True, kind=kind)


def nat(kind: Kind) -> str:
    """Rules that translate the Service's address, and nothing else."""
    (front, port), (pod, pod_port) = kind.service, kind.direct
    to = f"[{pod}]:{pod_port}" if kind.is_ipv6 else f"{pod}:{pod_port}"
    return f"""
table {kind.family} floor {{
  chain in {{
    type nat hook prerouting priority -100
    {kind.family} daddr {front} {kind.protocol} dport {port} dnat to {to}
  }}
  chain out {{
    type nat hook postrouting priority 100
    meta mark 0x4000 masquerade
  }}
}}
"""


def kube_proxy(kind: Kind) -> str:
    """The rules of kube-proxy.  It has the same in IPv6, so these are made from those of IPv4."""
    rules = KUBE_PROXY.read_text(encoding="utf-8")
    if not kind.is_ipv6:
        return rules
    for old, new in _IN_IPV6.items():
        rules = re.sub(old, new, rules)
    return rules


_IN_IPV6 = {
    r"table ip ": "table ip6 ",
    r"\bip ([sd])addr": r"ip6 \1addr",
    r"ipv4_addr": "ipv6_addr",
    r"10\.1\.0\.0/16": "fd00:1::/48",
    r"10\.96\.0\.0/16": "fd00:96::/112",
    r"dnat to 10\.1\.0\.(\d+):": r"dnat to [fd00:1::\1]:",
    r"(?<!__)\b10\.96\.0\.10\b": "fd00:96::10",
    r"(?<!__)\b10\.1\.0\.(\d+)\b": r"fd00:1::\1",
    r"(?<![_:])\b(\d+)\.(\d+)\.(\d+)\.(\d+)\b": r"fd00::\1:\2:\3:\4",
}
"""Regular expressions and their replacements, in this order.  Names of chains keep their addresses."""


def ours(kind: Kind, templates: Path) -> str:
    """Our rules of a node with a Service, and the other Services of the kind."""
    (front, port), (_, pod_port) = kind.service, kind.direct
    others = [
        each
        for number in range(kind.services)
        for name, vip in [(f"other/s{number}", f"10.{100 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}")]
        for each in (
            service(name, cluster_ips=[vip], ports=["dns:53/udp"]),
            slice_of(name, ["10.1.7.7"], ports=["dns:5353/udp"]),
        )
    ]
    made = pipeline(
        service("shop/web", cluster_ips=[front], ports=[f"a:{port}/{kind.protocol}"]),
        slice_of(
            "shop/web",
            kind.pods,
            ports=[f"a:{pod_port}/{kind.protocol}"],
            family=Family.IPV6 if kind.is_ipv6 else Family.IPV4,
        ),
        *others,
        renderer=Renderer(template_texts(ALL_TEMPLATES, templates)),
    )
    return made.full_transaction({}).text


class Message(ctypes.Structure):
    """A `struct mmsghdr` (socket(7), sendmmsg(2))."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("parts", ctypes.c_void_p),
        ("part_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_size_t),  # an int and its padding
        ("sent", ctypes.c_size_t),
    )


class Part(ctypes.Structure):
    """A `struct iovec`."""

    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Sender:
    """Sends the same payload again and again, at little cost of its own."""

    def __init__(self) -> None:
        self._payload = ctypes.create_string_buffer(PAYLOAD)
        self._part = Part(ctypes.addressof(self._payload), PAYLOAD)
        message = Message(parts=ctypes.addressof(self._part), part_count=1)
        self._messages = (Message * BATCH)(*(message for _ in range(BATCH)))
        self._call = ctypes.CDLL(None, use_errno=True).sendmmsg

    def burst(self, way: Way) -> float:
        """The nanoseconds of this thread that a packet of a burst takes, with the work of the kernel.

        Raises:
            LabError: the kernel didn't take all of them.
        """
        began = time.thread_time_ns()
        for _ in range(BATCHES):
            if self._call(way.socket.fileno(), self._messages, BATCH, 0) != BATCH:
                raise LabError(f"not all packets were sent: {os.strerror(ctypes.get_errno())}")
            way.read()
        return (time.thread_time_ns() - began) / (BATCH * BATCHES)


class Hop:
    """A client, a node with these rules, and pods.  A context manager."""

    def __init__(self, flow: Flow) -> None:
        self.name, self._kind, self._is_fast = flow.name, flow.kind, flow.is_fast
        with ExitStack() as stack:
            self.node = stack.enter_context(Node("node"))
            self.client = stack.enter_context(Namespace("client"))
            self.pods = stack.enter_context(Namespace("pods"))
            _join(self.client, self.node, flow.kind, (flow.kind.client,))
            _join(self.pods, self.node, flow.kind, flow.kind.pods)
            more = [f"more{number}" for number in range(flow.kind.interfaces)]
            self.node.ip(*(f"link add {each} type veth peer name {each}-peer" for each in more), "link set lo up")
            self.node.load(flow.rules)
            if flow.is_fast:
                self.node.call(follow_interfaces, ["client", "pods", *more])
            if flow.rules:
                self.node.sysctl({f"netfilter/nf_conntrack_udp_timeout{each}": LONG for each in ("", "_stream")})
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Way(Hop):
    """A hop with a flow that is established."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self._read = 0
        with self._stack.pop_all() as stack:
            self.socket = stack.enter_context(self.client.socket(self._family, self._type))
            self._establish(flow.place, stack)
            if flow.is_fast:
                self._enter()
            self.socket.settimeout(None)
            self._stack = stack.pop_all()

    @property
    def _family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if self._kind.is_ipv6 else socket.AF_INET

    @property
    def _type(self) -> socket.SocketKind:
        return socket.SOCK_STREAM if self._kind.is_tcp else socket.SOCK_DGRAM

    def _establish(self, place: tuple[str, int], stack: ExitStack) -> None:
        self._servers = [stack.enter_context(self.pods.socket(self._family, self._type)) for _ in self._kind.pods]
        for server, address in zip(self._servers, self._kind.pods, strict=True):
            server.bind((address, self._kind.direct[1]))
            if self._kind.is_tcp:
                server.listen()
            else:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # the least that the kernel allows
        self.socket.settimeout(PATIENCE)
        self.socket.connect(place)
        if self._kind.is_tcp:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            (chosen,) = select.select(self._servers, [], [], PATIENCE)[0]
            self._server = stack.enter_context(chosen.accept()[0])
            self._server.settimeout(PATIENCE)
            return
        self.socket.send(b"question")
        (chosen,) = select.select(self._servers, [], [], PATIENCE)[0]
        chosen.sendto(b"answer", chosen.recvfrom(64)[1])
        self.socket.recv(64)

    def _enter(self) -> None:
        """Let the flow take the fast path."""
        if not self._kind.is_tcp:
            time.sleep(ASSURED)
            self.socket.send(b"question")

    def check(self) -> None:
        """Check that the flow is still known, and still on the fast path if there is one.

        Raises:
            LabError: it isn't, so that its time is another flow's.
        """
        entries = self.node.call(Path("/proc/thread-self/net/nf_conntrack").read_text).splitlines()
        if any(f" {self._kind.protocol} " in each and "UNREPLIED" in each for each in entries):
            raise LabError(f"{self.name}: the kernel has forgotten the flow")
        if self._is_fast and self.node.call(offloaded_connections) != 1:
            raise LabError(f"{self.name}: the flow doesn't take the fast path")

    def read(self) -> None:
        """Read the data of a batch, if it comes by TCP.  Of UDP nobody reads."""
        left = BATCH * PAYLOAD * self._kind.is_tcp
        while left:
            left -= len(self._server.recv(left))
            self._read += BATCH * (not left)

    def arrived(self) -> int:
        """Return how many packets have come to the pod's socket.  Datagrams that it dropped count."""
        if self._kind.is_tcp:
            return self._read
        while readable := select.select(self._servers, [], [], 0)[0]:
            readable[0].recv(PAYLOAD)
        return self.pods.call(_udp6_arrived if self._kind.is_ipv6 else _udp_arrived)


_COUNTERS = ("InDatagrams", "RcvbufErrors", "MemErrors")


def _udp_arrived() -> int:
    names, values = (
        line.split()[1:]
        for line in Path("/proc/thread-self/net/snmp").read_text().splitlines()
        if line.startswith("Udp:")
    )
    counts = dict(zip(names, map(int, values), strict=True))
    return sum(counts[each] for each in _COUNTERS)


def _udp6_arrived() -> int:
    lines = Path("/proc/thread-self/net/snmp6").read_text().splitlines()
    counts = {name: int(value) for name, value in map(str.split, lines)}
    return sum(counts.get(f"Udp6{each}", 0) for each in _COUNTERS)


def _join(end: Namespace, node: Node, kind: Kind, addresses: tuple[str, ...]) -> None:
    """Join clients or pods to the node, with routes both ways."""
    macs = ("02:00:00:00:00:01", "02:00:00:00:00:02")
    name, gateway = end.name, kind.gateway
    join(node, name, end, "eth0", macs=macs)
    for interface, near, mac in (("eth0", end, macs[0]), (name, node, macs[1])):
        near.ip(f"link set dev {interface} arp on")
        targets = (gateway,) if near is end else addresses
        near.ip(*(f"neigh add {each} lladdr {mac} dev {interface}" for each in targets))
    add_addresses(end, "eth0", *addresses)
    end.ip("link set dev lo up", f"route add {gateway} dev eth0")
    end.ip(f"route add default via {gateway} dev eth0 src {addresses[0]}")
    node.ip(*(f"route add {each} dev {name}" for each in addresses))
