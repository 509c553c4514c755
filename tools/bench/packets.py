"""The cost of tables for a packet of an established flow: `python -m tools.bench.packets`, as root.

A client sends UDP datagrams to a pod that has answered once, through a node in between: three network namespaces,
joined by veth.  The kernel carries each packet within the system call that sends it, up to the pod's socket, so the
processor time of the sender is measured.  Each kind of node has namespaces of its own, and all take turns with short
bursts, so that other work of the machine falls on all of them.  The nodes have

* no table, and so no connection tracking either
* connection tracking, which a single rule asks for
* connection tracking and NAT, and nothing else, which every proxy pays that translates addresses
* our rules, and the rules of kube-proxy in nftables mode, for a Service.  More Services make neither longer for an
  established packet.
* our rules with the fast path, if the kernel has flowtables
"""

from __future__ import annotations

import ctypes
import os
import random
import select
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.lab.namespace import LabError, Namespace
from nftproxy_conformance.lab.node import Node

from nftproxy.kernel.conntrack.connection_counts import offloaded_connections
from nftproxy.kernel.nfnetlink.flowtable import follow_interfaces
from nftproxy.model.addresses import FAST_PATH_TABLE
from nftproxy.policy.facts import FastPathFacts
from nftproxy.rules.renderer import TEMPLATE_NAMES, Renderer
from nftproxy.templates_dir import templates_dir
from nftproxy.trace.links import add_addresses, join
from tests.support.factories import pipeline, service, slice_of
from tests.support.flowtables import has_flowtables
from tests.support.processes import CHECKOUT

CLIENT, PODS = "10.1.0.9", ("10.1.0.4", "10.1.0.5")
DIRECT, SERVICE = (PODS[0], 5353), ("10.96.0.10", 53)
KUBE_PROXY = CHECKOUT / "examples" / "migrate" / "nftables.nft"
"""The rules of kube-proxy: its Service has the addresses above."""

FAST = (
    Renderer({name: (templates_dir() / name).read_text(encoding="utf-8") for name in TEMPLATE_NAMES})
    .fast_path(FastPathFacts(f"inet {FAST_PATH_TABLE}", match=""))
    .text
)
CONNTRACK = "table ip floor { chain c { type filter hook prerouting priority 0; ct state invalid drop; }; }"
NAT = """
table ip floor {
  chain in {
    type nat hook prerouting priority -100
    ip daddr 10.96.0.10 udp dport 53 dnat to 10.1.0.4:5353
  }
  chain out {
    type nat hook postrouting priority 100
    meta mark 0x4000 masquerade
  }
}
"""

BATCH, BATCHES = 100, 4
"""Packets in a system call, which the kernel carries in turn, and calls in a burst of about 2 milliseconds."""
TURNS = 1_000
PAYLOAD = 64  # bytes
ENOUGH = 0.999
"""The part of the packets that must be seen to arrive: the pod's socket, which nobody reads, counts what it drops."""
PATIENCE = 5.0  # seconds
ASSURED = 2.1  # seconds after which a UDP flow is assured (nf_conntrack_proto_udp.c)


class Flow(NamedTuple):
    """Packets to a place through a node."""

    name: str
    rules: str
    place: tuple[str, int]
    is_fast: bool = False


class Found(NamedTuple):
    """The nanoseconds of a packet of a flow, of bursts by turns."""

    name: str
    bursts: list[float]

    @property
    def nanoseconds(self) -> float:
        """The time in the fastest twentieth of the bursts: slower bursts were disturbed by other programs."""
        return statistics.quantiles(self.bursts, n=20)[0]


def flows(*others: Path) -> Iterator[Flow]:
    """All flows that are compared, also with other directories of templates.  The first has no table."""
    kube_proxy = KUBE_PROXY.read_text(encoding="utf-8")
    yield Flow("no table", "", DIRECT)
    yield Flow("connection tracking alone", CONNTRACK, DIRECT)
    nodes = {"connection tracking and NAT alone": NAT, "nftproxy": ours(templates_dir()), "kube-proxy": kube_proxy}
    for name, rules in (nodes | {f"nftproxy, {other}": ours(other) for other in others}).items():
        yield Flow(f"{name}, directly", rules, DIRECT)
        yield Flow(f"{name}, through a Service", rules, SERVICE)
    if has_flowtables():
        yield Flow("nftproxy with the fast path, directly", FAST + nodes["nftproxy"], DIRECT, is_fast=True)
        yield Flow("nftproxy with the fast path, through a Service", FAST + nodes["nftproxy"], SERVICE, is_fast=True)


def ours(templates: Path) -> str:
    """The rules of a node with a single Service."""
    made = pipeline(
        service("shop/web", cluster_ips=[SERVICE[0]], ports=["dns:53/udp"]),
        slice_of("shop/web", PODS, ports=["dns:5353/udp"]),
        renderer=Renderer({name: (templates / name).read_text(encoding="utf-8") for name in TEMPLATE_NAMES}),
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
    """Sends the same datagram again and again, at little cost of its own."""

    def __init__(self) -> None:
        self._payload = ctypes.create_string_buffer(PAYLOAD)
        self._part = Part(ctypes.addressof(self._payload), PAYLOAD)
        message = Message(parts=ctypes.addressof(self._part), part_count=1)
        self._messages = (Message * BATCH)(*(message for _ in range(BATCH)))
        self._call = ctypes.CDLL(None, use_errno=True).sendmmsg

    def burst(self, to: socket.socket) -> float:
        """The nanoseconds of this thread that a packet of a burst takes, with the work of the kernel.

        Raises:
            LabError: the kernel didn't take all of them.
        """
        began = time.thread_time_ns()
        for _ in range(BATCHES):
            if self._call(to.fileno(), self._messages, BATCH, 0) != BATCH:
                raise LabError(f"not all packets were sent: {os.strerror(ctypes.get_errno())}")
        return (time.thread_time_ns() - began) / (BATCH * BATCHES)


class Way:
    """A client, a node with these rules, pods, and a flow that is established.  A context manager."""

    def __init__(self, flow: Flow) -> None:
        self.name = flow.name
        with ExitStack() as stack:
            node = stack.enter_context(Node("node"))
            client = stack.enter_context(Namespace("client"))
            self._pods = stack.enter_context(Namespace("pods"))
            _join(client, node, (CLIENT,))
            _join(self._pods, node, PODS)
            node.load(flow.rules)
            if flow.is_fast:
                node.call(follow_interfaces, ["client", "pods"])
            self.socket = stack.enter_context(client.socket(socket.AF_INET, socket.SOCK_DGRAM))
            self._establish(flow.place, stack, node, is_fast=flow.is_fast)
            self._stack = stack.pop_all()

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _establish(self, place: tuple[str, int], stack: ExitStack, node: Node, *, is_fast: bool) -> None:
        self._servers = [stack.enter_context(self._pods.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in PODS]
        for server, address in zip(self._servers, PODS, strict=True):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # the least that the kernel allows
            server.bind((address, DIRECT[1]))
        self.socket.connect(place)
        self.socket.send(b"question")
        chosen = select.select(self._servers, [], [], PATIENCE)[0][0]
        chosen.sendto(b"answer", chosen.recvfrom(64)[1])
        self.socket.settimeout(PATIENCE)
        self.socket.recv(64)
        if is_fast:  # once the flow is assured
            time.sleep(ASSURED)
            self.socket.send(b"question")
            if node.call(offloaded_connections) != 1:
                raise LabError(f"{self.name}: the flow doesn't take the fast path")
        self.socket.settimeout(None)

    def arrived(self) -> int:
        """How many datagrams have come to the pod's socket so far.  Most find it full.  The rest is read here."""
        while readable := select.select(self._servers, [], [], 0)[0]:
            readable[0].recv(PAYLOAD)
        names, values = (
            line.split()[1:]
            for line in self._pods.call(Path("/proc/thread-self/net/snmp").read_text).splitlines()
            if line.startswith("Udp:")
        )
        counts = dict(zip(names, map(int, values), strict=True))
        return counts["InDatagrams"] + counts["RcvbufErrors"] + counts["MemErrors"]


def _join(end: Namespace, node: Node, addresses: tuple[str, ...]) -> None:
    """Join clients or pods to the node, with routes both ways."""
    macs = ("02:00:00:00:00:01", "02:00:00:00:00:02")
    name = end.name
    join(node, name, end, "eth0", macs=macs)
    for interface, near, mac in (("eth0", end, macs[0]), (name, node, macs[1])):
        near.ip(f"link set dev {interface} arp on")
        targets = ("10.1.0.1",) if near is end else addresses
        near.ip(*(f"neigh add {each} lladdr {mac} dev {interface}" for each in targets))
    add_addresses(end, "eth0", *addresses)
    end.ip("link set dev lo up", "route add 10.1.0.1 dev eth0", f"route add default via 10.1.0.1 src {addresses[0]}")
    node.ip(*(f"route add {each} dev {name}" for each in addresses))


def measure(given: list[Flow], turns: int = TURNS) -> list[Found]:
    """Let the flows take turns, each time in another order.

    Raises:
        LabError: packets got lost on the way, so that the times say nothing.
    """
    with ExitStack() as stack:
        ways = [stack.enter_context(Way(flow)) for flow in given]
        sender, bursts = Sender(), {way.name: list[float]() for way in ways}
        before = {way.name: way.arrived() for way in ways}
        for turn in range(turns):
            for way in random.Random(turn).sample(ways, len(ways)):
                bursts[way.name].append(sender.burst(way.socket))
        sent = turns * BATCH * BATCHES
        deadline = time.monotonic() + PATIENCE
        for way in ways:
            while (found := way.arrived() - before[way.name]) < ENOUGH * sent:
                if time.monotonic() > deadline:
                    raise LabError(f"{way.name}: of {sent} packets {found} arrived")
                time.sleep(0.01)
    return [Found(*each) for each in bursts.items()]


def report(found: list[Found]) -> Iterator[str]:
    """The lines of a table."""
    yield "| | packets a second | a packet takes | above no table | middle half of the bursts |"
    yield "| --- | --- | --- | --- | --- |"
    least = found[0].nanoseconds
    for each in found:
        low, _, high = statistics.quantiles(each.bursts, n=4)
        yield (
            f"| {each.name} | {1e9 / each.nanoseconds:,.0f} | {each.nanoseconds / 1000:.2f} us"
            f" | {(each.nanoseconds - least) / 1000:.2f} us | {low / 1000:.2f} to {high / 1000:.2f} us |"
        )


@click.command()
@click.option("--turns", default=TURNS, help="How many bursts of each flow.")
@click.option(
    "--templates",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Other templates to compare with these; can be repeated.",
)
def main(turns: int, templates: tuple[Path, ...]) -> None:
    """Measure on a single processor."""
    if why := obstacle():
        raise click.ClickException(why)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for line in report(measure(list(flows(*templates)), turns)):
        click.echo(line)


if __name__ == "__main__":
    main()
