"""Connections that are refused, by a reset or an ICMP error, are tried again at another endpoint, with real sockets."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab.pods import RealHost, RealNetwork, RealNode

from nftproxy.extensions.failover.agent.unanswered import STUCK, UnansweredReader
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.model.addresses import Address
from nftproxy.model.events import Put
from nftproxy.model.objects import EndpointSlice, Place, Service
from nftproxy.pipeline import Pipeline
from tests.support.cluster import Ip
from tests.support.factories import pipeline, service, slice_of
from tests.support.waiting import wait_until

REFUSED = {"failover": "refused"}
SPORTS = itertools.count(4321)
RST_ACK = 0x14
FORGED = 4711
NODE_A = {"here", "gone-here", "node-a"}
"""The endpoints on node-a, and the node itself."""
ERRORS = {
    False: ["net-unreachable", "host-unreachable", "prot-unreachable", "port-unreachable", "net-prohibited",
            "host-prohibited", "admin-prohibited"],
    True: ["no-route", "admin-prohibited", "addr-unreachable", "port-unreachable", "policy-fail", "reject-route"],
}  # fmt: skip
"""The ICMP errors that nft can send, of IPv4 and IPv6."""
TOO_BIG = {False: (3, 4), True: (2, 0)}
"""Type and code of the ICMP error about a packet that is too large for a network, of IPv4 and IPv6."""
UNREACHABLE, TIME_EXCEEDED = {False: (3, 1), True: (1, 3)}, {False: (11, 0), True: (3, 0)}


class World:
    """Node-a with our rules, node-b, and clients everywhere.  "dead" endpoints have no server, "live" ones have one.

    Nobody has the addresses of "vanished" endpoints, so that their nodes answer with ICMP errors.
    """

    def __init__(self, network: RealNetwork) -> None:
        self.node: RealNode = network.node("node-a")
        other = network.node("node-b")
        self.pod = self.node.pod("client", "10.1.0.9", "fd00:1::9")
        self.clients = {
            "pod": self.pod,
            "node": self.node,
            "outside": network.host("outside", "198.51.100.7", "2001:db8:100::7"),
        }
        self.dead = {
            "here": self.node.pod("here", "10.1.0.4", "fd00:1::4"),
            "away": other.pod("away", "10.1.1.4", "fd00:1:0:1::4"),
            "own": self.node,
        }
        self.vanished = {
            "here": self.node.pod("gone-here", "10.1.0.7", "fd00:1::7"),
            "away": other.pod("gone-away", "10.1.1.7", "fd00:1:0:1::7"),
        }
        for pod, node in zip(self.vanished.values(), (self.node, other), strict=True):
            pod.namespace.ip("addr flush dev eth0")
            solicits = itertools.product(("ipv4", "ipv6"), {"mcast_solicit": "1", "retrans_time_ms": "50"}.items())
            node.namespace.sysctl({f"{ip}/neigh/veth-{pod.name}/{name}": value for ip, (name, value) in solicits})
        for host in (self.node, other, *self.dead.values()):
            host.namespace.sysctl({"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0"})
        self.live = other.pod("live", "10.1.1.5", "fd00:1:0:1::5")
        self.other = other.pod("other", "10.1.1.6", "fd00:1:0:1::6")
        for pod in (self.live, self.other):
            pod.serve(8080)
        self.reader = UnansweredReader()
        self.pipeline: Pipeline

    def load(self, *objects: Service | EndpointSlice) -> None:
        """Load the rules of these objects alone."""
        self.pipeline = pipeline(*objects)
        self.node.node.reset()
        self.node.load(self.pipeline.full_transaction({}).text)

    def put(self, event: SilentPlaces | EndpointSlice) -> None:
        """Change the rules."""
        self.node.load(self.pipeline.ingest([Put(event)]).text)

    def web(self, ip: Ip, *hosts: RealHost, annotations: dict[str, str] = REFUSED) -> None:
        """Load a Service with endpoints on these hosts."""
        web = service(
            type="NodePort", cluster_ips=[ip.vip], external_ips=[ip.external], ports=["http:80:30080"],
            annotations=annotations,
        )  # fmt: skip
        self.load(web, endpoints(ip, *hosts))

    def leave_out(self, ip: Ip, *hosts: RealHost) -> None:
        """Leave out the endpoints on these hosts, as they refuse connections."""
        places = tuple(place(ip, each) for each in hosts)
        self.put(SilentPlaces(places, frozenset(places)))

    def stuck(self, ip: Ip) -> int:
        """The number of connections that the rules have noted, as they got an ICMP error."""
        return len(self.node.node.call(self.reader.retransmissions, ip.family, STUCK))

    def move(self, ip: Ip) -> None:
        """Have connection tracking forget the connections that got an ICMP error, as the agent does."""
        noted = self.node.node.call(self.reader.retransmissions, ip.family, STUCK)
        waiting = self.node.node.call(self.reader.unanswered, noted)
        # On Linux 5.10 a listing of a set that grows may have an element twice.
        assert self.node.node.call(self.reader.delete, waiting) == len({each.key for each in noted})

    def refused(self, ip: Ip) -> list[Place]:
        """The endpoints that the rules have noted."""
        return self.node.node.call(self.reader.refused, ip.family)


def endpoints(ip: Ip, *hosts: RealHost) -> EndpointSlice:
    """The EndpointSlice of the Service."""
    ends = [f"{ip.of(host)}@node-a" if host.name in NODE_A else f"{ip.of(host)}@node-b" for host in hosts]
    return slice_of(endpoints=ends, ports=("http:8080",))


def place(ip: Ip, host: RealHost) -> Place:
    """A host's endpoint."""
    return Place(Address(ip.of(host)), 8080)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two nodes with pods and clients."""
    with RealNetwork() as network:
        made = World(network)
        yield made
        made.reader.close()


class Attempts:
    """Connections that are under way at once.  `close` ends them."""

    def __init__(self, client: RealHost, address: str, port: int, count: int) -> None:
        self._kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.sockets = [self._begin(client, address, port) for _ in range(count)]

    def _begin(self, client: RealHost, address: str, port: int) -> socket.socket:
        made = client.namespace.socket(self._kind, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        made.connect_ex((address, port))
        return made

    def ended(self, timeout: float = 0.0) -> list[int]:
        """The error of each connection that has ended or is established (0)."""
        _, ready, _ = select.select([], self.sockets, [], timeout)
        return [each.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for each in ready]

    def close(self) -> None:
        """Close all of them."""
        for each in self.sockets:
            each.close()


@contextlib.contextmanager
def mute(host: RealHost) -> Iterator[None]:
    """Keep a host from answering."""
    host.namespace.run(
        ["nft", "add table inet t; add chain inet t c { type filter hook output priority 0; policy drop; }"]
    )
    try:
        yield
    finally:
        host.namespace.run(["nft", "delete table inet t"])


@contextlib.contextmanager
def rejects(host: RealHost, how: str) -> Iterator[None]:
    """Have a host reject connections to its server with an error."""
    rule = f"tcp dport 8080 reject with {how}"
    host.namespace.run(
        [
            "nft",
            f"add table inet t; add chain inet t c {{ type filter hook input priority 0; }}; add rule inet t c {rule}",
        ]
    )
    try:
        yield
    finally:
        host.namespace.run(["nft", "delete table inet t"])


FRONTS = [("pod", "vip"), ("node", "vip"), ("outside", "node"), ("outside", "external"), ("pod", "node")]


@pytest.mark.parametrize("dead", ["here", "away", "own"])
@pytest.mark.parametrize(("client", "front"), FRONTS)
def test_refused_connections_reach_another_endpoint(world: World, ip: Ip, client: str, front: str, dead: str) -> None:
    """Whoever the client is, and wherever the endpoint: no refusal reaches it, and its next packet another endpoint."""
    world.web(ip, world.dead[dead], world.live)
    made = Attempts(world.clients[client], *ip.front(front), 16)
    wait_until(lambda: world.refused(ip) == [place(ip, world.dead[dead])])
    world.leave_out(ip, world.dead[dead])
    wait_until(lambda: len(made.ended()) == 16)
    assert made.ended() == [0] * 16
    made.close()


@pytest.mark.parametrize(
    ("client", "front", "vanished"),
    [("pod", "vip", "here"), ("pod", "vip", "away"), ("node", "vip", "away"), ("outside", "node", "away")],
)
def test_connections_to_an_unreachable_endpoint_reach_another(
    world: World, ip: Ip, client: str, front: str, vanished: str
) -> None:
    """No client hears that a node can't reach a pod.  Once connection tracking forgets, all reach another endpoint."""
    gone = world.vanished[vanished]
    world.web(ip, gone, world.live)
    made = Attempts(world.clients[client], *ip.front(front), 16)
    wait_until(lambda: world.refused(ip) == [place(ip, gone)])
    world.leave_out(ip, gone)
    wait_until(lambda: world.stuck(ip) + len(made.ended()) == 16)
    world.move(ip)
    wait_until(lambda: len(made.ended()) == 16)
    assert made.ended() == [0] * 16
    made.close()


def test_every_icmp_error_that_ends_a_connection_is_dropped(world: World, ip: Ip) -> None:
    """Whatever the endpoints' firewalls answer: no client hears it, and its connection and the endpoint are noted."""
    here, away = world.dead["here"], world.dead["away"]
    for error in ERRORS[ip.is_ipv6]:
        how = f"icmp{'v6' * ip.is_ipv6} type {error}"
        world.web(ip, here, away)
        with rejects(here, how), rejects(away, how):
            made = Attempts(world.pod, ip.vip, 80, 4)
            wait_until(lambda: world.stuck(ip) == 4)
            assert made.ended() == [], error
            assert {place(ip, here), place(ip, away)} >= set(world.refused(ip)) > set(), error
            made.close()


def test_icmp_errors_pass_where_no_endpoint_would_do_better(world: World, ip: Ip) -> None:
    """The only endpoint, that of a Service without the word, and the endpoint itself can't be reached at once."""
    here, away = world.vanished["here"], world.vanished["away"]
    for hosts, words, fronts in (
        ([here], REFUSED, [ip.front("vip"), ip.front("node")]),
        ([here, away], {}, [ip.front("vip")]),
        ([here, away], REFUSED, [(ip.of(away), 8080)]),
    ):
        world.web(ip, *hosts, annotations=words)
        for front in fronts:
            with pytest.raises(OSError, match="No route to host"):
                world.pod.ask(*front)
    assert (world.refused(ip), world.stuck(ip)) == ([], 0)


def test_a_pod_that_refuses_itself_reaches_another_endpoint(world: World, ip: Ip) -> None:
    """A pod with a closed port is a client of its own Service: its connections to itself are tried again, too."""
    itself = world.dead["here"]
    world.web(ip, itself, world.live)
    made = Attempts(itself, ip.vip, 80, 16)
    wait_until(lambda: world.refused(ip) == [place(ip, itself)])
    world.leave_out(ip, itself)
    wait_until(lambda: len(made.ended()) == 16)
    assert made.ended() == [0] * 16
    made.close()


def test_refusals_from_an_endpoint_that_has_just_left_are_dropped(world: World, ip: Ip) -> None:
    """A connection whose endpoint leaves the slices before it refuses reaches the only endpoint that is left."""
    dead = world.dead["away"]
    world.web(ip, dead)
    dead.namespace.run(
        ["nft", "add table inet t; add chain inet t c { type filter hook input priority 0; policy drop; }"]
    )
    made = Attempts(world.pod, ip.vip, 80, 4)
    world.put(endpoints(ip, world.live))
    dead.namespace.run(["nft", "delete table inet t"])
    wait_until(lambda: len(made.ended()) == 4)
    assert made.ended() == [0] * 4
    made.close()


def test_refusals_pass_where_no_endpoint_would_do_better(world: World, ip: Ip) -> None:
    """The only endpoint that isn't silent, and a silent endpoint that the list needs, refuse their clients at once."""
    here, away = world.dead["here"], world.dead["away"]
    for hosts, silent in (([here], []), ([here, away], [here, away])):
        world.web(ip, *hosts)
        world.leave_out(ip, *silent)
        for front in ("vip", "node"):
            with pytest.raises(ConnectionRefusedError):
                world.pod.ask(*ip.front(front))
    assert world.refused(ip) == []


@pytest.mark.parametrize("annotations", [{}, {"failover": "silent"}])
def test_other_refusals_pass(world: World, ip: Ip, annotations: dict[str, str]) -> None:
    """A Service without the word refuses, and so does the endpoint itself at its own address with it."""
    here, away = world.dead["here"], world.dead["away"]
    world.web(ip, here, away, annotations=annotations)
    with pytest.raises(ConnectionRefusedError):
        world.pod.ask(ip.vip, 80)
    world.web(ip, here, away)
    with pytest.raises(ConnectionRefusedError):
        world.pod.ask(ip.of(away), 8080)


# ---- attacks


def checksum(data: bytes) -> bytes:
    """The Internet checksum (RFC 1071) of an even number of bytes."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)


def packed(address: str) -> bytes:
    """An address of either family."""
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def ip_packet(source: str, destination: str, protocol: int, body: bytes) -> bytes:
    """A packet with the id, or the flow label, `FORGED`.  The kernel writes the checksum of an IPv4 header."""
    ends = packed(source), packed(destination)
    if ":" in source:
        return struct.pack("!IHBB16s16s", 6 << 28 | FORGED, len(body), protocol, 64, *ends) + body
    return struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), FORGED, 0, 64, protocol, 0, *ends) + body


def pseudo_header(source: str, destination: str, protocol: int, length: int) -> bytes:
    """The part of the header that a checksum covers (RFC 9293 3.1, RFC 8200 8.1)."""
    return packed(source) + packed(destination) + struct.pack("!II", length, protocol)


def reset(source: str, destination: str, dport: int, acknowledges: int) -> bytes:
    """A refusal as an endpoint sends it."""
    tcp = struct.pack("!HHIIBBHHH", 8080, dport, 0, acknowledges, 5 << 4, RST_ACK, 0, 0, 0)
    pseudo = pseudo_header(source, destination, socket.IPPROTO_TCP, len(tcp))
    return ip_packet(source, destination, socket.IPPROTO_TCP, tcp[:16] + checksum(pseudo + tcp) + tcp[18:])


def icmp_error(source: str, destination: str, sport: int, endpoint: str, kind: tuple[int, int]) -> bytes:
    """An ICMP error of some type and code about the client's first packet to an endpoint."""
    packet = ip_packet(
        destination, endpoint, socket.IPPROTO_TCP, struct.pack("!HHIIBBHHH", sport, 8080, 1, 0, 5 << 4, 2, 0, 0, 0)
    )
    is_ipv6 = ":" in source
    body = struct.pack("!BBHI", *kind, 0, 1280 * (is_ipv6 and kind == TOO_BIG[True])) + packet
    protocol = socket.IPPROTO_ICMPV6 if is_ipv6 else socket.IPPROTO_ICMP
    pseudo = pseudo_header(source, destination, protocol, len(body)) if is_ipv6 else b""
    return ip_packet(source, destination, protocol, body[:2] + checksum(pseudo + body) + body[4:])


class Forger:
    """A pod of node-a that sends refusals in the name of others, and the node's count of these."""

    def __init__(self, world: World, ip: Ip) -> None:
        self._world = world
        family = socket.AF_INET6 if ip.is_ipv6 else socket.AF_INET
        self._client = ip.of(world.pod)
        self._socket = world.dead["here"].namespace.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
        world.node.load(
            "table inet forged {\n chain c {\n type filter hook prerouting priority -300\n"
            f"{'ip6 flowlabel' if ip.is_ipv6 else 'ip id'} {FORGED} counter\n }}\n}}\n"
        )
        self._sent = 0

    def send(self, packet: bytes) -> None:
        """Send a packet to the client, and wait until the node has it."""
        self._sent += 1
        self._socket.sendto(packet, (self._client, 0))
        wait_until(
            lambda: f"packets {self._sent} " in self._world.node.node.run(["nft", "list", "table", "inet", "forged"])
        )

    def close(self) -> None:
        """Forget the count."""
        self._socket.close()
        self._world.node.load("delete table inet forged")


def test_forged_resets_of_a_connection_that_waits(world: World, ip: Ip) -> None:
    """A refusal that another pod forges has a waiting connection tried again, and never resets it.

    It acknowledges 0, which connection tracking takes for any number, and clients for none.
    """
    with waiting(world, ip) as (sport, forger):

        def is_noted() -> bool:
            forger.send(reset(ip.of(world.live), ip.of(world.pod), sport, 0))
            return world.refused(ip) == [place(ip, world.live)]

        wait_until(is_noted)


def test_forged_icmp_errors_of_a_connection_that_waits(world: World, ip: Ip) -> None:
    """An ICMP error that another pod forges has a waiting connection tried again, and never ends it.

    A packet that was too large for a network is no refusal, but its sender must learn it.
    """
    source, client, endpoint = (ip.of(each) for each in (world.dead["here"], world.pod, world.live))
    with waiting(world, ip) as (sport, forger):
        for kinds in (TOO_BIG, UNREACHABLE, TIME_EXCEEDED):
            forger.send(icmp_error(source, client, sport, endpoint, kinds[ip.is_ipv6]))
            assert world.stuck(ip) == (kinds is not TOO_BIG)
        world.move(ip)


@contextlib.contextmanager
def waiting(world: World, ip: Ip) -> Iterator[tuple[int, Forger]]:
    """The port of a connection that waits for an endpoint, and a forger.  In the end it must reach another endpoint."""
    with contextlib.ExitStack() as stack:
        world.web(ip, world.live)
        family = socket.AF_INET6 if ip.is_ipv6 else socket.AF_INET
        client = stack.enter_context(world.pod.namespace.socket(family, socket.SOCK_STREAM))
        with mute(world.live):
            client.bind((ip.of(world.pod), sport := next(SPORTS)))
            client.setblocking(False)
            client.connect_ex((ip.vip, 80))
            world.put(endpoints(ip, world.live, world.other))
            yield sport, stack.enter_context(contextlib.closing(Forger(world, ip)))
            world.put(endpoints(ip, world.other))
        wait_until(lambda: select.select([], [client], [], 0)[1])
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_forged_refusals_of_an_established_connection(world: World, ip: Ip) -> None:
    """No refusal ends an established connection, whatever it acknowledges, and none is noted."""
    world.web(ip, world.live, world.dead["away"])
    world.leave_out(ip, world.dead["away"])
    with world.pod.talk(ip.vip, 80, sport=(sport := next(SPORTS))) as conversation:
        assert conversation.ask().name == "live"
        victim, client = ip.of(world.live), ip.of(world.pod)
        with contextlib.closing(Forger(world, ip)) as forger:
            for acknowledges in (0, 1, 2**31, 2**32 - 1):
                forger.send(reset(victim, client, sport, acknowledges))
            for kinds in (UNREACHABLE, TIME_EXCEEDED):
                forger.send(icmp_error(victim, client, sport, victim, kinds[ip.is_ipv6]))
            assert conversation.ask().name == "live"
    assert (world.refused(ip), world.stuck(ip)) == ([], 0)
