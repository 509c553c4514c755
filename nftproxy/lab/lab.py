"""The packet lab: a scratch node on real kernel networking; the lab plays everything around it.

    with Lab() as lab:
        lab.load("table ip t { ... }")
        assert lab.connect(Origin.POD, "10.96.0.10", 80) == endpoint("10.1.0.4", 8080)

The node is a network namespace with two interfaces (topology.py).  Their far ends are in another namespace,
without an IP stack to speak of: there the lab writes and reads raw frames (wire.py), as each pod, each other node
and the outside world.  The node's own connections are written to raw sockets, and so pass its output hook.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from nftproxy.lab import topology
from nftproxy.lab.flight import Flight, packed, text
from nftproxy.lab.frames import PROTOCOLS, What, packet
from nftproxy.lab.links import add_addresses, join
from nftproxy.lab.namespace import LabError, Namespace
from nftproxy.lab.node import Node
from nftproxy.lab.outcome import Address, Outcome, Probe
from nftproxy.lab.topology import PODS, SITE, UPLINK, Origin, Site
from nftproxy.lab.wire import BATCH, FAR_MAC, NODE_MAC, OWN, Sending, Wire

FIRST_PORT, LAST_PORT = 20000, 65535  # source ports that are handed out: those below are the tests' own
# Flows that conntrack is left to remember.  The node has 64,512 ports to masquerade with for each endpoint, and the
# kernel drops a connection when it finds no free one in 128 tries, so long before the last is taken.
MEMORY = 40_000


def obstacle() -> str:
    """Why there can be no lab on this machine; "" if there can: for `pytest.mark.skipif`."""
    if os.geteuid():
        return "the lab needs root, for network namespaces and raw sockets"
    if not shutil.which("ip"):
        return "the lab needs iproute2"
    if not importlib.util.find_spec("nftables"):
        return "the lab needs libnftables' Python binding"
    return ""


class Lab:
    """A scratch node, ready for rules and connections.  A context manager, which `close` ends too.

    Args:
        pods_interface: the name of the node's interface to its pods.
        site: the node's addresses and routes, which aren't those above if somebody else's node is to be played.
        memory: after how many connections conntrack is made to forget all of them, at most three quarters of what
            the machine lets it remember.

    Raises:
        LabError: the lab can't be built, usually for lack of root's rights.

    Attributes:
        node: the node's namespace, to run functions and processes in.
    """

    def __init__(self, pods_interface: str = PODS, *, site: Site = SITE, memory: int = MEMORY) -> None:
        self._interfaces = {
            Origin.POD: pods_interface,
            Origin.NODE: OWN,
            Origin.OUTSIDE: site.uplink,
            Origin.REMOTE_POD: site.uplink,
        }
        self._tokens = itertools.count(1)
        self._ports: dict[tuple[str, str], int] = {}  # (source address, protocol) -> the next source port
        self._remembered = 0  # flows that conntrack holds, at most
        self._must_forget = False
        self._added: list[tuple[str, str]] = []
        with ExitStack() as stack:
            self.node = stack.enter_context(Node(topology.NODE_NAME))
            self._far = stack.enter_context(Namespace("far"))
            self._far.sysctl({"ipv6/conf/default/disable_ipv6": "1"})
            _connect_wires(self.node, self._far, pods_interface, site)
            self._wire = Wire(self.node, self._far, (site.uplink, pods_interface))
            stack.callback(self._wire.close)
            self._far.call(self._wire.tie_to_cpu)
            self._memory = min(memory, self.node.conntrack_room() * 3 // 4)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the node, and everything that was started on it."""
        self._stack.close()

    def reset(self) -> None:
        """Make the lab as good as new: no rules, no conntrack entries, no added addresses."""
        self.node.forget()
        self._remembered = 0
        while self._added:
            self.remove_address(*self._added[-1])

    def load(self, rules: str) -> str:
        """Apply nft text on the node in one transaction, as `nft -f` would, and return what it prints.

        Another thread may connect meanwhile.

        Raises:
            LabError: it is refused; the message has the library's.
        """
        return self.node.load(rules)

    def add_address(self, address: str, interface: str = UPLINK) -> None:
        """Give the node one more IP address, alone or with a prefix length, until `reset`.

        It is never the kernel's choice of a source: of IPv6 addresses that would be the newest one (preferred_lft 0).
        """
        add_addresses(self.node, interface, address, options="preferred_lft 0")
        self._added.append((address, interface))

    def remove_address(self, address: str, interface: str = UPLINK) -> None:
        """Take an added address away again."""
        self._added.remove((address, interface))
        self.node.ip(f"address del {address if '/' in address else _alone(address)} dev {interface}")

    def connect(
        self,
        origin: Origin,
        address: str,
        port: int,
        protocol: str = "tcp",
        *,
        source: str | None = None,
        sport: int | None = None,
    ) -> Outcome:
        """Try one new connection.  Arguments are those of `Probe`, errors those of `connect_many`."""
        return self.connect_many([Probe(origin, address, port, protocol, source, sport)])[0]

    def connect_many(self, probes: Iterable[Probe]) -> list[Outcome]:
        """Try new connections, one after the other; returns what became of each, in the same order.

        Between two batches conntrack is made to forget everything whenever the lab's `memory` is full, and when an
        address has used all its source ports for a protocol, so that no connection continues another's flow.

        Raises:
            LabError: the machine lost packets, so that outcomes are unknown.
            ValueError: a probe's protocol or address is none.
        """
        return self._far.call(self._connect_many, list(probes))

    def _connect_many(self, probes: list[Probe]) -> list[Outcome]:
        chosen: dict[str, str] = {}  # the node's source addresses, by destination
        outcomes = []
        for start in range(0, len(probes), BATCH):
            batch = [self._flight(probe, chosen) for probe in probes[start : start + BATCH]]
            self._make_room(len(batch))
            outcomes += self._fly(batch)
        return outcomes

    def _flight(self, probe: Probe, chosen: dict[str, str]) -> Flight:
        protocol, destination = probe.protocol.lower(), packed(probe.address)
        if protocol not in PROTOCOLS:
            raise ValueError(f"no protocol of the lab: {probe.protocol!r}")
        source = packed(probe.source or self._default_source(probe, chosen))
        sport = self._next_port(text(source), protocol) if probe.sport is None else probe.sport
        complete = Probe(probe.origin, text(destination), probe.port, protocol, text(source), sport)
        return Flight(complete, next(self._tokens), self._interfaces[probe.origin], source, sport, destination)

    def _default_source(self, probe: Probe, chosen: dict[str, str]) -> str:
        if probe.origin is not Origin.NODE:
            return topology.DEFAULT_SOURCES[probe.origin][":" in probe.address]
        if probe.address not in chosen:
            chosen[probe.address] = self.node.source_for(probe.address)
        return chosen[probe.address]

    def _next_port(self, source: str, protocol: str) -> int:
        port = self._ports.get((source, protocol), FIRST_PORT)
        if port > LAST_PORT:
            port, self._must_forget = FIRST_PORT, True
        self._ports[source, protocol] = port + 1
        return port

    def _make_room(self, coming: int) -> None:
        if self._must_forget or self._remembered + coming > self._memory:
            self.node.flush_conntrack()
            self._remembered, self._must_forget = 0, False
        self._remembered += coming

    def _fly(self, batch: list[Flight]) -> list[Outcome]:
        flights = {flight.token: flight for flight in batch}
        outcomes: dict[int, Outcome] = {}
        sightings, is_complete = self._wire.exchange([flight.opening() for flight in batch])
        for sighting in sightings:
            token = sighting.packet.token
            outcome = flights[token].judge(sighting) if token in flights else None
            # what arrived has arrived, even if a closed port rejected it
            if outcome and (token not in outcomes or sighting.packet.what is What.OPENING):
                outcomes[token] = outcome
        if len(outcomes) < len(batch) and not is_complete:
            raise LabError("the machine was too busy and lost frames: whether the rules dropped any is unknown")
        return [outcomes.get(flight.token) or flight.lost() for flight in batch]

    def reply(self, outcome: Outcome) -> Address | None:
        """Answer a connection that left the node; returns whom the client takes the answer to be from.

        Returns:
            The source address and port of the answer when it reaches the client; with everything in order those
            that the client connected to.  None if it doesn't reach the client.

        Raises:
            LabError: the machine lost packets.
            ValueError: the connection did not leave the node.
        """
        return self._far.call(self._reply, outcome)

    def _reply(self, outcome: Outcome) -> Address | None:
        probe, client = outcome.probe, outcome.source
        if probe is None or client is None or outcome.interface == OWN:
            raise ValueError(f"nobody out there could answer {outcome}")
        server = outcome.endpoint or Address(probe.address, probe.port)
        protocol = PROTOCOLS[probe.protocol]
        segment = protocol.answer(server.port, client.port, outcome.token)
        answer = packet(packed(server.ip), packed(client.ip), protocol, segment)
        sightings, is_complete = self._wire.exchange([Sending(outcome.interface, answer, packed(client.ip))])
        for interface, seen in sightings:
            is_ours = seen.what is What.ANSWER and seen.token == outcome.token
            to = Address(text(seen.destination), seen.dport)
            if is_ours and interface == self._interfaces[probe.origin] and to == (probe.source, probe.sport):
                return Address(text(seen.source), seen.sport)
        if not is_complete:
            raise LabError("the machine was too busy and lost frames: whether the answer got lost is unknown")
        return None


def _alone(address: str) -> str:
    return f"{address}/{128 if ':' in address else 32}"


def _connect_wires(node: Node, far: Namespace, pods_interface: str, site: Site) -> None:
    """Give the node its interfaces, addresses and routes; the far ends have the same names."""
    for name, addresses in ((site.uplink, site.addresses), (pods_interface, site.pods)):
        join(node, name, far, name, macs=(NODE_MAC.hex(":"), FAR_MAC.hex(":")))
        add_addresses(node, name, *addresses)
    defaults = [f"default via {gateway}" for gateway in site.gateways] or ["0.0.0.0/0", "::/0"]
    node.ip(
        *(f"route add {way} dev {site.uplink}" for way in defaults),
        *(f"route add {network} dev {pods_interface}" for network in site.pod_networks),
    )
