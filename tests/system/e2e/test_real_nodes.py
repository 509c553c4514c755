"""Three nodes with real pods, clients and connections, each node with its agent, around one API server."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import RealHost, RealNetwork, RealNode, obstacle
from nftproxy_conformance.lab.frames import RST
from nftproxy_conformance.lab.topology import SERVICE_CIDR, SERVICE_CIDR6, UPLINK
from nftproxy_conformance.lab.wire import ETH_P_ALL

from nftproxy.trace.frames import TRANSPORTS, packet
from tests.support.cluster import IP, IP6, Ip
from tests.support.waiting import PATIENCE, wait_until
from tests.system.e2e.agent import BEACON, Agent, ask_http, eventually
from tests.system.e2e.objects import Object, node, service, service_cidr, slice_of

pytestmark = pytest.mark.slow

_beacons = itertools.count(1024)

NODES = ("node-a", "node-b", "node-c")
BRIEF = 0.2
"""Seconds for a connection that is dropped, or that is tried again if it fails."""


class Town(NamedTuple):
    """By node: the machine, the agent, a server pod on port 8080 and a client pod.  Also a client outside."""

    server: ApiServer
    nodes: dict[str, RealNode]
    agents: dict[str, Agent]
    servers: dict[str, RealHost]
    clients: dict[str, RealHost]
    outside: RealHost

    def put(self, *objects: Object) -> None:
        """Create or change objects, and wait until every node's kernel has them."""
        self.server.put(*objects)
        self.settle()

    def settle(self) -> None:
        """Wait until every kernel has all Services and slices, by a beacon as in agent.py."""
        port = next(_beacons)
        name = f"port-{port}"
        beacon = service("beacon", vips=[BEACON], ports=[f"{name}:{port}"])
        self.server.put(beacon, slice_of(self.servers["node-b"].address, name="beacon", ports=[f"{name}:8080"]))
        for client in self.clients.values():
            eventually(who(client, BEACON, port, timeout=BRIEF), "web-1")

    def slices(self, *names: str, condition: str = "ready", ports: str = "8080") -> list[Object]:
        """Slices of both families with the server pods of these nodes."""
        pods = [(name, self.servers[name]) for name in names]
        return [
            slice_of(
                *(f"{pod.address if family == 'IPv4' else pod.address6}@{name} {condition}" for name, pod in pods),
                family=family,
                ports=[f"tcp:{ports}/TCP", f"udp:{ports}/UDP"],
            )
            for family in ("IPv4", "IPv6")
        ]


def web(**spec: Any) -> Object:
    """The Service of the server pods, with a node port."""
    return service(ports=["tcp:80:30080/TCP", "udp:80:30080/UDP"], type="NodePort", **spec)


@pytest.fixture(scope="module")
def shared_town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """Three nodes around an API server, which is on the first node."""
    if why := obstacle():
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("town")
    with ExitStack() as stack:
        network = stack.enter_context(RealNetwork())
        nodes = {name: network.node(name) for name in NODES}
        first = nodes["node-a"]
        servers, clients = {}, {}
        for number, (name, machine) in enumerate(nodes.items()):
            machine.serve(8080)
            prefix, prefix6 = f"10.1.{number}", f"fd00:1:0:{number}" if number else "fd00:1"
            servers[name] = machine.pod(f"web-{number}", f"{prefix}.4", f"{prefix6}::4")
            for protocol in ("tcp", "udp"):
                servers[name].serve(8080, protocol)
                servers[name].serve(9090, protocol)
            clients[name] = machine.pod(f"client-{number}", f"{prefix}.200", f"{prefix6}::c8")
        outside = network.host("outside", IP.client, IP6.client)
        server = stack.enter_context(
            ApiServer(hosts=(first.address,), tls=True, authenticate=True, make_socket=first.namespace.socket)
        )
        server.put(service_cidr("kubernetes", SERVICE_CIDR, SERVICE_CIDR6))
        agents = {}
        for name, machine in nodes.items():
            server.put(node(name, machine.address, machine.address6))
            agents[name] = Agent(machine.namespace, name, server, directory)
            agents[name].start()
        yield Town(server, nodes, agents, servers, clients, outside)
        for agent in agents.values():
            agent.check_log()


@pytest.fixture
def town(shared_town: Town) -> Town:
    """Three nodes in a cluster without Services."""
    for kind in ("Service", "EndpointSlice"):
        for each in shared_town.server.objects(kind):
            shared_town.server.delete(kind, each["metadata"]["namespace"], each["metadata"]["name"])
    shared_town.settle()
    return shared_town


def who(
    host: RealHost, address: str, port: int = 80, protocol: str = "tcp", *, sport: int = 0, timeout: float = PATIENCE
) -> Callable[[], str]:
    """A function that returns the name of the server that answers, or the name of the error."""

    def look() -> str:
        try:
            return host.ask(address, port, protocol, sport=sport, timeout=timeout).name
        except OSError as error:
            return type(error).__name__

    return look


def anyone(host: RealHost, address: str, port: int = 80) -> set[str]:
    """The servers that answer 24 connections, or the names of the errors."""
    return {who(host, address, port)() for _ in range(24)}


def address_of(host: RealHost, ip: Ip) -> str:
    """The host's address of the family."""
    return host.address6 if ip.is_ipv6 else host.address


def test_served_on_every_node(town: Town, ip: Ip) -> None:
    """A ClusterIP and every node's node port reach every endpoint, from pods and from outside."""
    town.put(web(), *town.slices(*NODES))
    everyone = {"web-0", "web-1", "web-2"}
    for name in NODES:
        assert anyone(town.clients[name], ip.vip) == everyone
        assert anyone(town.outside, address_of(town.nodes[name], ip), 30080) == everyone
        assert anyone(town.nodes[name], ip.vip) == everyone


def test_real_source_address_is_kept(town: Town, ip: Ip) -> None:
    """A server sees the address of the client pod, whether the pod is on its own node or another."""
    town.put(web(), *town.slices("node-b"))
    for name in NODES:
        client = town.clients[name]
        eventually(who(client, ip.vip), "web-1")
        assert client.ask(ip.vip, 80).client.ip == address_of(client, ip)


def test_real_hairpin(town: Town, ip: Ip) -> None:
    """A pod reaches itself through its Service."""
    town.put(web(), *town.slices("node-b"))
    eventually(who(town.servers["node-b"], ip.vip), "web-1")


def test_internal_policy_local_real(town: Town, ip: Ip) -> None:
    """Through the ClusterIP pods and nodes reach only the endpoint on their node, and without it no endpoint."""
    town.put(web(internalTrafficPolicy="Local"), *town.slices("node-a", "node-b"))
    for name, server in (("node-a", "web-0"), ("node-b", "web-1")):
        assert anyone(town.clients[name], ip.vip) == {server}
        assert anyone(town.nodes[name], ip.vip) == {server}
    assert who(town.clients["node-c"], ip.vip, timeout=BRIEF)() == "TimeoutError"


def test_external_policy_local_real(town: Town, ip: Ip) -> None:
    """Through node ports clients outside reach only the node's own endpoint, which sees their addresses."""
    town.put(web(externalTrafficPolicy="Local"), *town.slices("node-a", "node-b"))
    for name, server in (("node-a", "web-0"), ("node-b", "web-1")):
        address = address_of(town.nodes[name], ip)
        assert anyone(town.outside, address, 30080) == {server}
        assert town.outside.ask(address, 30080).client.ip == address_of(town.outside, ip)
    assert who(town.outside, address_of(town.nodes["node-c"], ip), 30080, timeout=BRIEF)() == "TimeoutError"


def test_proxy_restarts(town: Town, ip: Ip) -> None:
    """While the agent is stopped and after its start, old connections last and new connections are served."""
    town.put(web(), *town.slices("node-b"))
    client, agent = town.clients["node-a"], town.agents["node-a"]
    eventually(who(client, ip.vip), "web-1")
    with client.talk(ip.vip, 80) as conversation:
        assert conversation.ask().name == "web-1"
        agent.stop()
        assert conversation.ask().name == "web-1"
        assert client.ask(ip.vip, 80).name == "web-1"
        agent.start()
        assert conversation.ask().name == "web-1"
    town.put(*town.slices("node-c"))
    eventually(who(client, ip.vip), "web-2")


def test_api_server_restarts(town: Town, ip: Ip) -> None:
    """Without the API server old connections last and new connections are served, and changes arrive on its return."""
    town.put(web(), *town.slices("node-b"))
    client = town.clients["node-a"]
    eventually(who(client, ip.vip), "web-1")
    with client.talk(ip.vip, 80) as conversation:
        town.server.stop()
        assert conversation.ask().name == "web-1"
        assert client.ask(ip.vip, 80).name == "web-1"
        answer = ask_http(town.nodes["node-a"].namespace, "http://127.0.0.1:10256/healthz")
        assert answer is not None
        assert answer.status == 200
        town.server.start()
        assert conversation.ask().name == "web-1"
    town.put(*town.slices("node-c"))
    for name in NODES:
        eventually(who(town.clients[name], ip.vip), "web-2")


@pytest.mark.parametrize("is_node_port", [False, True], ids=["ClusterIP", "NodePort"])
def test_udp_server_pod_cycles(town: Town, ip: Ip, is_node_port: bool) -> None:
    """A client that keeps its UDP port follows the server pods from node to node, and is refused between them."""
    town.put(web(), *town.slices("node-a"))
    client = town.outside if is_node_port else town.clients["node-a"]
    address, port = (address_of(town.nodes["node-a"], ip), 30080) if is_node_port else (ip.vip, 80)
    sport = 4000 + 2 * is_node_port + ip.is_ipv6
    look = who(client, address, port, "udp", sport=sport, timeout=BRIEF)
    eventually(look, "web-0")
    town.put(*town.slices("node-b"))
    eventually(look, "web-1")
    town.put(*town.slices())
    eventually(look, "ConnectionRefusedError")
    town.put(*town.slices("node-c"))
    eventually(look, "web-2")


def test_tcp_outlives_its_endpoint(town: Town, ip: Ip) -> None:
    """A TCP connection outlives the removal of its endpoint, while new connections go to the new endpoint."""
    town.put(web(), *town.slices("node-b"))
    client = town.clients["node-a"]
    eventually(who(client, ip.vip), "web-1")
    with client.talk(ip.vip, 80) as conversation:
        assert conversation.ask().name == "web-1"
        town.put(*town.slices("node-c"))
        eventually(who(client, ip.vip), "web-2")
        assert conversation.ask().name == "web-1"


def test_pods_reach_each_other_without_the_proxy(town: Town, ip: Ip) -> None:
    """Connections to pods' own addresses, on the same node or another, aren't translated and keep their source."""
    town.put(web(), *town.slices(*NODES))
    for client in town.clients.values():
        for server in town.servers.values():
            answer = client.ask(address_of(server, ip), 8080)
            assert (answer.name, answer.client.ip) == (server.name, address_of(client, ip))


def test_large_requests(town: Town, ip: Ip) -> None:
    """Datagrams that need several packets, and 256 KiB over TCP, reach the server through the Service whole."""
    town.put(web(), *town.slices("node-b"))
    client = town.clients["node-a"]
    eventually(who(client, ip.vip, 80, "udp", timeout=BRIEF), "web-1")
    family = socket.AF_INET6 if ip.is_ipv6 else socket.AF_INET
    with client.namespace.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(PATIENCE)
        datagrams.connect((ip.vip, 80))
        datagrams.send(b"?" * 8000)
        assert datagrams.recv(2048).split()[0] == b"web-1"
    with client.namespace.socket(family, socket.SOCK_STREAM) as stream:
        stream.settimeout(PATIENCE)
        stream.connect((ip.vip, 80))
        stream.sendall(b"?" * (256 << 10))
        stream.shutdown(socket.SHUT_WR)
        answers = b""
        while data := stream.recv(65536):
            answers += data
    assert {line.split()[0] for line in answers.splitlines()} == {b"web-1"}
    assert answers.count(b"\n") >= (256 << 10) // 2048  # an answer for each read of at most 2,048 bytes


class Segment(NamedTuple):
    """A TCP segment as captured on a wire."""

    source: bytes
    destination: bytes
    sport: int
    dport: int
    sequence: int
    acknowledged: int
    flags: int
    length: int


def segment(packet: bytes) -> Segment | None:
    """Parse an IP packet without options or extension headers.  Return None if it isn't TCP."""
    is_ipv6 = packet[0] >> 4 == 6
    header, width = (40, 16) if is_ipv6 else (20, 4)
    if packet[6 if is_ipv6 else 9] != socket.IPPROTO_TCP:
        return None
    source = packet[header - 2 * width : header - width]
    sport, dport, sequence, acknowledged, flags = struct.unpack_from("!HHIIH", packet, header)
    length = len(packet) - header - (flags >> 12) * 4
    return Segment(source, packet[header - width : header], sport, dport, sequence, acknowledged, flags & 0x3F, length)


class Wiretap:
    """Captures all TCP segments that pass a host's interface from now on, in either direction."""

    def __init__(self, host: RealHost) -> None:
        self._socket = host.namespace.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        self._socket.bind((UPLINK, ETH_P_ALL))
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def segments(self) -> list[Segment]:
        """Return the segments captured since the last call."""
        seen = []
        with contextlib.suppress(BlockingIOError):
            while True:
                seen.append(segment(self._socket.recv(65536)))
        return [each for each in seen if each is not None]


@pytest.mark.parametrize(("distance", "be_liberal"), [(-100_000, "0"), (-100_000, "1"), (100_000, "1")])
def test_out_of_window_packets(town: Town, ip: Ip, distance: int, be_liberal: str) -> None:
    """A server's packet out of the window ends no connection: it arrives from the Service's address, or not at all.

    If the packet arrived untranslated, the client would answer it with a reset, which would end the server's side of
    the connection (k/k#74839).  From version 6.1 on, Linux translates packets from before the window.  It translates
    packets from beyond the window only with `conntrack.tcpBeLiberal`.
    """
    town.put(web(), *town.slices("node-b"))
    client, server = town.clients["node-a"], town.servers["node-b"]
    eventually(who(client, ip.vip), "web-1")
    family = socket.AF_INET6 if ip.is_ipv6 else socket.AF_INET
    vip, pod = (socket.inet_pton(family, address) for address in (ip.vip, address_of(server, ip)))
    liberal = "netfilter/nf_conntrack_tcp_be_liberal"
    town.nodes["node-a"].namespace.sysctl({liberal: be_liberal})  # as the agent does it
    with Wiretap(server) as at_server, Wiretap(client) as at_client, client.talk(ip.vip, 80) as conversation:
        before = conversation.ask()
        (answer,) = [each for each in at_server.segments() if each.source == pod and each.length]
        sequence = (answer.sequence + distance) % 2**32
        header = struct.pack("!HHIIHHHH", 8080, answer.dport, sequence, answer.acknowledged, 0x5018, 9, 0, 0)
        stray = packet(pod, answer.destination, TRANSPORTS["tcp"], header + b"stray!")
        with server.namespace.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
            raw.sendto(stray, (address_of(client, ip), 0))
        assert [conversation.ask() for _ in range(3)] == [before] * 3
        at_the_server = at_server.segments()
        at_the_client = [each for each in at_client.segments() if each.dport == conversation.port]
    town.nodes["node-a"].namespace.sysctl({liberal: "0"})
    assert [each.sequence for each in at_the_server if each.length == len(b"stray!")] == [sequence]
    assert not [each for each in at_the_server if each.flags & RST]
    assert {each.source for each in at_the_client} == {vip}


def host_network(town: Town, *names: str) -> list[Object]:
    """Slices of both families with servers in the host network of these nodes."""
    return [
        slice_of(
            *(f"{address_of(town.nodes[name], ip)}@{name}" for name in names),
            family="IPv6" if ip.is_ipv6 else "IPv4",
            ports=["tcp:8080/TCP", "udp:8080/UDP"],
        )
        for ip in (IP, IP6)
    ]


def test_host_network_endpoints(town: Town, ip: Ip) -> None:
    """Pods, all nodes and clients outside reach an endpoint in a node's host network."""
    town.put(web(), *host_network(town, "node-b"))
    for host in (*town.clients.values(), *town.nodes.values()):
        assert who(host, ip.vip)() == "node-b"
    for name in NODES:
        assert who(town.outside, address_of(town.nodes[name], ip), 30080)() == "node-b"


def test_internal_policy_local_to_host_network(town: Town, ip: Ip) -> None:
    """Pods and nodes reach only the server in their node's host network, and without it no server."""
    town.put(web(internalTrafficPolicy="Local"), *host_network(town, "node-a", "node-b"))
    for name in ("node-a", "node-b"):
        assert who(town.clients[name], ip.vip)() == name
        assert who(town.nodes[name], ip.vip)() == name
    assert who(town.clients["node-c"], ip.vip, timeout=BRIEF)() == "TimeoutError"


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_rolling_update(town: Town, ip: Ip, policy: str) -> None:
    """No connection fails while servers are replaced in turn and each terminates before it goes."""
    with ThreadPoolExecutor(1) as executor:
        town.put(web(externalTrafficPolicy=policy), *town.slices("node-a"))
        is_over = threading.Event()
        look = who(town.outside, address_of(town.nodes["node-a"], ip), 30080)

        answers: list[str] = []

        def keep_asking() -> None:
            while not is_over.is_set():
                answers.append(look())

        def roll(*states: list[str]) -> None:
            for endpoints in states:
                town.put(slice_of(*endpoints, ports=["tcp:8080/TCP"]))
                enough = len(answers) + 5
                wait_until(lambda enough=enough: asking.done() or len(answers) >= enough)  # type: ignore[misc]

        asking = executor.submit(keep_asking)
        pod, machine = town.servers["node-a"], town.nodes["node-a"]
        first, second = (f"{address_of(host, ip)}@node-a" for host in (pod, machine))
        try:
            roll([first, second], [f"{first} draining", second], [second])
            roll([f"{second} draining"], [f"{second} draining", first], [first])
        finally:
            is_over.set()
        asking.result()
        assert set(answers) == {"web-0", "node-a"}
