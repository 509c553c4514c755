"""The packet lab: a scratch node on real kernel networking.  The lab plays all hosts around it.

    with Lab() as lab:
        lab.load("table ip t { ... }")
        assert lab.connect(Origin.POD, "10.96.0.10", 80) == endpoint("10.1.0.4", 8080)

The node is a network namespace with two interfaces (topology.py).  Their far ends are in another namespace, where the
lab writes and reads raw frames (wire.py) in the name of pods, other nodes and outside hosts.  The node's own
connections are written to raw sockets, and so pass its output hook.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_interface
from typing import TYPE_CHECKING, Self

from nftproxy.rules.renderer import Renderer
from nftproxy.trace.frames import TRANSPORTS, packed, packet, unpacked
from nftproxy.trace.links import add_addresses, join
from nftproxy.trace.node import FAR_MAC, NODE_MAC
from nftproxy_conformance.lab import topology
from nftproxy_conformance.lab.established import Connection, Established, connection
from nftproxy_conformance.lab.flight import Flight
from nftproxy_conformance.lab.frames import ANSWERS, What, refusal, unreachable
from nftproxy_conformance.lab.namespace import LabError, Namespace
from nftproxy_conformance.lab.node import Node
from nftproxy_conformance.lab.outcome import FIRST_PORT, LAST_PORT, PING, Address, Kind, Outcome, Probe
from nftproxy_conformance.lab.topology import INTERFACES, OWN, PODS, SITE, UPLINK, Origin, Site
from nftproxy_conformance.lab.wire import BATCH, Sending, Sighting, Wire

if TYPE_CHECKING:
    from nftproxy_conformance.lab.fast_path_trial import FastPathTrial

# Conntrack entries before a flush.  The node has 64,512 ports to masquerade with for each endpoint, and the kernel
# drops a connection if 128 tries find no free port.  That happens long before the last port is taken.
MEMORY = 40_000


class Lab:
    """A scratch node, ready for rules and connections.  Use it as a context manager, or call `close`.

    Args:
        site: the node's addresses and routes, by default those of topology.py.
        memory: conntrack is flushed after this many connections, and at the latest at three quarters of the machine's
            limit.
        fast_path: renders the fast path.  With it, each connection is established and tried on the fast path.

    Raises:
        Unavailable: the lab can't be built, usually for lack of root's rights.

    Attributes:
        node: the node's namespace, to run functions and processes in.
        fast_path: the trial of established connections, None without a fast path.
    """

    def __init__(self, *, site: Site = SITE, memory: int = MEMORY, fast_path: Renderer | None = None) -> None:
        self._tokens = itertools.count(1)
        self._ports: dict[tuple[str, str], int] = {}  # (source address, protocol) -> the next source port
        self._remembered = 0  # flows that conntrack holds, at most
        self._must_forget = False
        self._added: list[tuple[str, str]] = []
        with ExitStack() as stack:
            self.node = stack.enter_context(Node(topology.NODE_NAME))
            self._far = stack.enter_context(Namespace("far"))
            self._far.sysctl({"ipv6/conf/default/disable_ipv6": "1"})
            _connect_wires(self.node, self._far, site)
            self._wire = Wire(self.node, self._far, (UPLINK, PODS))
            stack.callback(self._wire.close)
            self._far.call(self._wire.tie_to_cpu)
            self._memory = min(memory, self.node.conntrack_room() * 3 // 4)
            self._answers = True
            self._established = Established(self._wire)
            self.fast_path = self._fast_path_trial(fast_path) if fast_path else None
            self._stack = stack.pop_all()

    def _fast_path_trial(self, renderer: Renderer) -> FastPathTrial:
        # The lab can do without the fast path, so that it can be taken away (tests/extensions/test_taken_away.py).
        from nftproxy_conformance.lab.fast_path_trial import FastPathTrial

        trial = FastPathTrial(renderer, self.node, self._established)
        trial.load()
        return trial

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the node, and everything that was started on it."""
        self._stack.close()

    def reset(self) -> None:
        """Reset the lab: no rules, no conntrack entries, no added addresses."""
        self.node.reset()
        if self.fast_path:
            self.fast_path.load()
        self._remembered = 0
        if self._added:
            self.node.ip(
                *(f"address del {ip_interface(address)} dev {interface}" for address, interface in self._added)
            )
        self._added.clear()

    def load(self, rules: str) -> str:
        """Apply nft text on the node in one transaction, as `nft -f` would, and return what it prints.

        Another thread may connect meanwhile.

        Raises:
            LabError: libnftables refuses it.  The message has the library's.
        """
        return self.node.load(rules)

    def add_address(self, address: str, interface: str = UPLINK) -> None:
        """Give the node one more IP address, alone or with a prefix length, until `reset`.

        The kernel never chooses it as a source.  Of IPv6 addresses it would choose the newest (hence preferred_lft 0).
        """
        add_addresses(self.node, interface, address, options="preferred_lft 0")
        self._added.append((address, interface))

    def remove_address(self, address: str, interface: str = UPLINK) -> None:
        """Remove an added address."""
        self._added.remove((address, interface))
        self.node.ip(f"address del {ip_interface(address)} dev {interface}")

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
        """Try a new connection, with the arguments of `Probe` and the errors of `connect_many`."""
        return self.connect_many([Probe(origin, address, port, protocol, source, sport)])[0]

    def connect_many(self, probes: Iterable[Probe]) -> list[Outcome]:
        """Try new connections, one after another, and return their outcomes in the same order.

        Between batches conntrack is flushed if the lab's `memory` is full, or if an address has used all its source
        ports for a protocol, so that no connection continues another's flow.

        Raises:
            LabError: the machine lost packets, so that outcomes are unknown.
            WentAstray: an established connection goes on in another way than it began.
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
            if self.fast_path and self._answers:
                self.fast_path.go_on(outcomes[start:])
        return outcomes

    def _flight(self, probe: Probe, chosen: dict[str, str]) -> Flight:
        protocol, destination = probe.protocol.lower(), packed(probe.address)
        if protocol not in {*TRANSPORTS, PING}:
            raise ValueError(f"no protocol of the lab: {probe.protocol!r}")
        if protocol == PING and probe.port:
            raise ValueError(f"a ping has no port: {probe.port}")
        source = packed(probe.source or self._default_source(probe, chosen))
        sport = self._next_port(unpacked(source), protocol) if probe.sport is None else probe.sport
        complete = Probe(probe.origin, unpacked(destination), probe.port, protocol, unpacked(source), sport)
        return Flight(complete, next(self._tokens), INTERFACES[probe.origin], source, sport, destination)

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
            self.forget()
        self._remembered += coming

    def forget(self) -> None:
        """Flush conntrack, which otherwise keeps entries of earlier connections for a while."""
        self.node.flush_conntrack()
        self._remembered, self._must_forget = 0, False

    def _fly(self, batch: list[Flight]) -> list[Outcome]:
        flights = {flight.token: flight for flight in batch}
        outcomes: dict[int, Outcome] = {}
        sightings, is_complete = self._wire.exchange([flight.opening() for flight in batch])
        for sighting in sorted(sightings, key=_weight):
            token = sighting.packet.token
            if token in flights and (outcome := flights[token].judge(sighting)):
                outcomes[token] = outcome
        found = [outcomes.get(token) for token in flights]
        if not is_complete and any(each is None or each.kind is Kind.REJECTED for each in found):  # perhaps delivered
            raise LabError("the machine was too busy and lost frames: whether the rules dropped any is unknown")
        return [outcomes.get(flight.token) or flight.lost() for flight in batch]

    @contextmanager
    def unanswered(self) -> Iterator[None]:
        """Drop all answers to connections while the context lasts, also on the fast path."""
        self._answers = False
        try:
            yield
        finally:
            self._answers = True

    def establish(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Establish the TCP connections among these that the node forwards, and return them.

        Raises:
            LabError: the machine lost packets.
            WentAstray: an answer didn't reach its client.
        """
        fit = [each for each in outcomes if each.probe and each.probe.protocol == "tcp" and connection(each)]
        for batch in _batches(fit):
            self._far.call(self._established.establish, batch)
        return fit

    def next_packets(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Send the next packet of each client of established connections, and return the outcomes in the same order.

        A packet that goes on has the connection's outcome.

        Raises:
            LabError: the machine lost packets.
        """
        changed: dict[int, Outcome] = {}
        for batch in _batches(outcomes):
            changed |= self._far.call(self._established.next_packets, batch)
        return [changed.get(each.token, each) for each in outcomes]

    def reply(self, outcome: Outcome) -> Address | None:
        """Answer a connection that left the node, and return the answer's source as the client sees it.

        Returns:
            Source address and port: if all is well, those that the client connected to.  None if the answer is lost.

        Raises:
            LabError: the machine lost packets.
            ValueError: the connection did not leave the node.
        """
        return self._far.call(self._answer, [outcome], What.ANSWER)[0]

    def refuse_many(self, outcomes: Sequence[Outcome], *, by_icmp: bool = False) -> list[Address | None]:
        """Refuse TCP connections that left the node, as closed ports do.  Otherwise as `reply` for each.

        Args:
            outcomes: of the connections.
            by_icmp: whether to answer with ICMP errors.  Connection tracking keeps these connections.
        """
        return self._far.call(self._answer, outcomes, What.UNREACHABLE if by_icmp else What.RESET)

    def _answer(self, outcomes: Sequence[Outcome], what: What) -> list[Address | None]:
        heard: dict[int, Address] = {}
        for start in range(0, len(outcomes), BATCH):
            batch = {each.token: each for each in outcomes[start : start + BATCH]}
            sightings, is_complete = self._wire.exchange([_answer_to(each, what) for each in batch.values()])
            for interface, seen in sightings:
                probe = batch[seen.token].probe if seen.what is what and seen.token in batch else None
                server, to = Address(unpacked(seen.source), seen.sport), Address(unpacked(seen.destination), seen.dport)
                if what is What.UNREACHABLE:  # it quotes the client's packet
                    server, to = to, server
                if probe and interface == INTERFACES[probe.origin] and to == (probe.source, probe.sport):
                    heard[seen.token] = server
            if not is_complete and heard.keys() < batch.keys():
                raise LabError("the machine was too busy and lost frames: whether an answer got lost is unknown")
        return [heard.get(each.token) for each in outcomes]


def _batches(outcomes: Sequence[Outcome]) -> Iterator[dict[int, Connection]]:
    """The connections of these outcomes by their tokens, some at a time."""
    for start in range(0, len(outcomes), BATCH):
        yield {each.token: made for each in outcomes[start : start + BATCH] if (made := connection(each))}


_WEIGHTS = {What.OPENING: 1, What.ANSWER: 2}
"""The weights of sightings: an arrival counts even if a closed port rejected it, and a ping's answer counts most."""


def _weight(sighting: Sighting) -> int:
    return _WEIGHTS.get(sighting.packet.what, 0)


def _answer_to(outcome: Outcome, what: What) -> Sending:
    """The server's answer to a connection, or its refusal, and where to send it."""
    probe, client = outcome.probe, outcome.source
    if probe is None or client is None or outcome.interface == OWN:
        raise ValueError(f"no host could answer {outcome}")
    server = outcome.endpoint or Address(probe.address, probe.port)
    transport, here, there = TRANSPORTS[probe.protocol], packed(server.ip), packed(client.ip)
    if what is What.UNREACHABLE:
        opening = packet(there, here, transport, transport.opening(client.port, server.port, outcome.token))
        return Sending(outcome.interface, unreachable(here, there, opening), there)
    make = refusal if what is What.RESET else ANSWERS[probe.protocol]
    answer = packet(here, there, transport, make(server.port, client.port, outcome.token))
    return Sending(outcome.interface, answer, there)


def _connect_wires(node: Node, far: Namespace, site: Site) -> None:
    """Give the node its interfaces, addresses and routes.  The far ends have the same names."""
    for name, addresses in ((UPLINK, site.addresses), (PODS, site.pods)):
        join(node, name, far, name, macs=(NODE_MAC.hex(":"), FAR_MAC.hex(":")))
        add_addresses(node, name, *addresses)
    defaults = [f"default via {gateway}" for gateway in site.gateways] or ["0.0.0.0/0", "::/0"]
    node.ip(
        *(f"route add {way} dev {UPLINK}" for way in defaults),
        *(f"route add {network} dev {PODS}" for network in site.pod_networks),
    )
