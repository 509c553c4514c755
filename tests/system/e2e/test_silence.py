"""Endpoints that don't answer are left out: real nodes that die without a word, real clients, a real agent.

Everybody connects to two Services with the same pods: "web" leaves out who doesn't answer, "plain" doesn't.  What loses
packets does so by rules on its node.
"""

from __future__ import annotations

import contextlib
import functools
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from nftproxy.lab import obstacle
from nftproxy.lab.apiserver import ApiServer
from nftproxy.lab.pods import RealHost, RealNetwork, RealNode
from nftproxy.lab.topology import SERVICE_CIDR, SERVICE_CIDR6
from tests.support import objects
from tests.system.e2e.agent import CHECKOUT, Agent, ask_http, eventually
from tests.system.e2e.objects import node, service_cidr, slice_of
from tests.system.packets.cluster import IP, IP6, Ip, each_ip

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

PORT = 80
SILENT = "left out, as connections from this node get no answer"
NEEDED = "connections from this node get no answer, but no more of the list may be left out"
ANNOTATION = {"annotations": {"nftproxy.dev/silent-endpoints": "leave-out"}}
PLAIN = {IP: IP.vip2, IP6: IP6.vip2}


class Town:
    """Node-a with the agent and a client pod, and node-b and node-c with a server pod each."""

    def __init__(
        self, network: RealNetwork, nodes: list[RealNode], server: ApiServer, agent: Agent, pods: dict[str, RealHost]
    ) -> None:
        self.network, self.nodes, self.server, self.agent, self.pods = network, nodes, server, agent, pods
        self.client = nodes[0].pod("client", "10.1.0.9", "fd00:1::9")

    def ranges(self, ip: Ip) -> str:
        """Where node-b's pods are."""
        return "fd00:1:0:1::/64" if ip is IP6 else "10.1.1.0/24"

    def other_ranges(self, ip: Ip) -> str:
        """Where node-c's pods are."""
        return "fd00:1:0:2::/64" if ip is IP6 else "10.1.2.0/24"

    def place(self, ip: Ip) -> str:
        """Where node-b's server answers."""
        pod = self.pods["web-b"]
        return f"[{pod.address6}]:8080" if ip is IP6 else f"{pod.address}:8080"

    def status(self) -> list[str]:
        """The endpoints that the agent takes for silent."""
        return list(json.loads(self._command("status", "-o", "json"))["agent"]["silent"])

    def explain(self, address: str) -> str:
        """What becomes of connections to the Service at an address."""
        return self._command("explain", f"{f'[{address}]' if ':' in address else address}:{PORT}")

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        answer = ask_http(self.nodes[0].namespace, "http://127.0.0.1:10249/metrics")
        assert answer
        lines = [line for line in answer.body.splitlines() if line.startswith(name)]
        assert lines, name
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def has_event(self) -> bool:
        """Whether there is an Event on the Service that leaves out who doesn't answer, and none on the other."""
        found = [each for each in self.server.objects("Event") if each["reason"] == "EndpointSilent"]
        return [each["regarding"]["name"] for each in found] == ["web"]

    def _command(self, *words: str) -> str:
        socket_path = self.agent.config.with_suffix(".sock")
        command = [sys.executable, "-m", "nftproxy", *words, "--agent-socket", str(socket_path)]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        return done.stdout

    def answering(self, address: str) -> set[str]:
        """Which pods answer some connections to an address: two that are drawn alike both do."""
        return {self.client.ask(address, PORT, timeout=10).name for _ in range(16)}


class Connections:
    """Connections that a client begins, and how long each took until it was answered; closed at the end."""

    def __init__(self, client: RealHost, address: str) -> None:
        self._client, self._address = client, address
        self._waiting: dict[int, tuple[socket.socket, float]] = {}
        self._poll = select.poll()
        self.took: list[float] = []

    def begin(self, count: int) -> None:
        """Begin so many more."""
        kind = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        for _ in range(count):
            made = self._client.namespace.socket(kind, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            made.connect_ex((self._address, PORT))
            self._waiting[made.fileno()] = made, time.monotonic()
            self._poll.register(made, select.POLLOUT)

    def wait(self, seconds: float) -> int:
        """Take answers for so long, or until all have one; how many have none."""
        end = time.monotonic() + seconds
        while self._waiting and (left := end - time.monotonic()) > 0:
            for number, _ in self._poll.poll(left * 1000):
                made, began = self._waiting.pop(number)
                self._poll.unregister(number)
                assert not made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                self.took.append(time.monotonic() - began)
                made.close()
        return len(self._waiting)

    def close(self) -> None:
        """Give up those that have no answer."""
        for made, _ in self._waiting.values():
            made.close()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """Three nodes and two Services with two pods."""
    with RealNetwork() as network, contextlib.ExitStack() as stack:
        nodes: list[RealNode] = [network.node(f"node-{letter}") for letter in "abc"]
        pods = {
            f"web-{letter}": each.pod(f"web-{letter}", f"10.1.{number}.4", f"fd00:1:0:{number}::4")
            for number, (letter, each) in enumerate(zip("bc", nodes[1:], strict=True), 1)
        }
        for pod in pods.values():
            pod.serve(8080)
        server = stack.enter_context(ApiServer(tls=True, authenticate=True, make_socket=nodes[0].node.socket))
        server.put(node("node-a", IP.node, IP6.node, zone="a"), service_cidr("kubernetes", SERVICE_CIDR, SERVICE_CIDR6))
        for name, metadata in (("web", ANNOTATION), ("other", {})):
            vips = {"web": (IP.vip, IP6.vip), "other": (IP.vip2, IP6.vip2)}[name]
            server.put(objects.service(name, {"type": "ClusterIP"}, vips=vips, ports=[str(PORT)], metadata=metadata))
            for family in ("IPv4", "IPv6"):
                ends = [
                    f"{pod.address6 if family == 'IPv6' else pod.address}@node-{pod.name[-1]}" for pod in pods.values()
                ]
                server.put(slice_of(*ends, name=name, family=family))
        agent = Agent(nodes[0].node, "node-a", server, tmp_path_factory.mktemp("node-a"))
        made = Town(network, nodes, server, agent, pods)
        agent.start()
        for address in (IP.vip, IP6.vip, IP.vip2, IP6.vip2):
            eventually(functools.partial(made.answering, address), {"web-b", "web-c"})
        yield made
        agent.check_log()


@each_ip
def test_node_that_dies_is_left_out(town: Town, ip: Ip) -> None:
    """Clients of a dead node's pod are answered by another one after a moment, and it serves again once it answers."""
    before = town.metric("nftproxy_silences_total")
    town.network.lose(town.ranges(ip))
    web, plain = Connections(town.client, ip.vip), Connections(town.client, PLAIN[ip])
    with contextlib.closing(web), contextlib.closing(plain):
        for _ in range(12):
            for each in (web, plain):
                each.begin(4)
                each.wait(0.1)
        eventually(town.status, [town.place(ip)])
        assert web.wait(30) == 0
        assert plain.wait(0.01) > 0
    assert town.answering(ip.vip) == {"web-c"}
    assert SILENT in town.explain(ip.vip)
    assert SILENT not in town.explain(PLAIN[ip])
    assert town.metric("nftproxy_silences_total") == before + 1
    assert town.metric("nftproxy_connections_moved_total") > 0
    eventually(town.has_event, wanted=True)
    town.network.route(town.ranges(ip), town.nodes[1])
    eventually(town.status, [], timeout=60)
    eventually(functools.partial(town.answering, ip.vip), {"web-b", "web-c"})


LOSSY = """
table {ip} lossy {{
  set seen {{
    typeof {ip} saddr . tcp sport
    flags dynamic
    size 65535
  }}
  chain forward {{
    type filter hook forward priority -300
    tcp dport != 8080 accept
    tcp flags & (syn | ack) != syn accept
    {ip} saddr . tcp sport @seen accept
    add @seen {{ {ip} saddr . tcp sport }} drop
  }}
}}
"""


@each_ip
def test_pod_that_is_slow_or_loses_packets_stays(town: Town, ip: Ip) -> None:
    """A pod stays though the first packet of every connection to it is lost, so that each is answered a second late."""
    before = town.metric("nftproxy_silences_total")
    family = "ip6" if ip is IP6 else "ip"
    town.nodes[1].load(LOSSY.format(ip=family))
    with contextlib.closing(Connections(town.client, ip.vip)) as web:
        for _ in range(15):
            web.begin(4)
            web.wait(0.15)
        assert web.wait(30) == 0
        assert len([seconds for seconds in web.took if seconds > 0.9]) >= 6
    town.nodes[1].load(f"delete table {family} lossy")
    assert (town.metric("nftproxy_silences_total"), town.status()) == (before, [])


@each_ip
def test_last_endpoint_is_never_left_out(town: Town, ip: Ip) -> None:
    """Where nobody answers the list keeps half of its endpoints, and whoever is there again answers at once."""
    town.network.lose(town.ranges(ip))
    town.network.lose(town.other_ranges(ip))
    with contextlib.closing(Connections(town.client, ip.vip)) as web:
        for _ in range(8):
            web.begin(6)
            web.wait(0.2)
        eventually(lambda: len(town.status()), 2)
        explained = town.explain(ip.vip)
        assert (SILENT in explained, NEEDED in explained) == (True, True)
        town.network.route(town.ranges(ip), town.nodes[1])
        town.network.route(town.other_ranges(ip), town.nodes[2])
        assert web.wait(60) == 0
    eventually(town.status, [], timeout=60)
