"""The fast path, by an agent on a node between a client and pods with sockets of their own.

It takes a kernel with flowtables, which tools.vm boots:
`python -m tools.vm --suite bookworm -- python -m pytest tests/system/e2e/test_fast_path.py`
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from nftproxy_conformance.lab import Namespace, obstacle
from nftproxy_conformance.lab.node import Node

from nftproxy.agent.socket.answers import AgentState, FastPathState
from nftproxy.commands.agent_client import AgentClient
from nftproxy.kernel.nfnetlink.nft_queries import fast_path_comment
from nftproxy.trace.links import add_addresses, join
from tests.support.flowtables import has_flowtables
from tests.support.objects import endpoint_slice, service
from tests.support.processes import AgentProcess
from tests.support.waiting import PATIENCE, wait_until

CLIENT, CLIENT6 = "10.1.0.9", "fd00:1::9"
PODS = ("10.1.0.4", "10.1.0.5")
POD6 = "fd00:1::4"
SERVICE, SERVICE6, PORT, POD_PORT = "10.96.0.10", "fd00:96::10", 80, 8080
CONFIG = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.1.0.0/16,fd00:1::/48
nftproxy:
  fastPath:
    interfaces: [client, "po*"]
"""


class Way:
    """A client, a node with an agent, and a namespace for all pods.  A context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with ExitStack() as stack:
            self.node = stack.enter_context(Node("node"))
            self.client = stack.enter_context(Namespace("client"))
            self.pods = stack.enter_context(Namespace("pods"))
            for end, addresses in ((self.client, (CLIENT, CLIENT6)), (self.pods, (*PODS, POD6))):
                self._connect(end, addresses)
            self.agent = AgentProcess(self.node, directory / "log")
            stack.callback(self.agent.kill)
            self.stack = stack.pop_all()

    def _connect(self, end: Namespace, addresses: tuple[str, ...]) -> None:
        join(self.node, end.name, end, "eth0", macs=("02:00:00:00:00:01", "02:00:00:00:00:02"))
        for interface, near in (("eth0", end), (end.name, self.node)):
            near.ip(f"link set dev {interface} address 02:00:00:00:00:01")
        add_addresses(end, "eth0", *addresses)
        end.ip("link set dev lo up", "route add 0.0.0.0/0 dev eth0", "route add ::/0 dev eth0")
        self.node.ip(*(f"route add {each} dev {end.name}" for each in addresses))

    def start(self, config: str = CONFIG) -> None:
        """Start the agent, and wait until it has loaded the rules."""
        (self._directory / "config.yaml").write_text(config)
        paths = {"config": "config.yaml", "source": "manifests", "agent-socket": "sock"}
        given = [each for name, path in paths.items() for each in (f"--{name}", str(self._directory / path))]
        self.agent.launch(*given, "--hostname-override=node-a")
        wait_until(lambda: self.status() is not None, self.agent.log)

    def status(self) -> AgentState | None:
        """The agent's state, None until it is healthy."""
        with contextlib.suppress(Exception):
            found = AgentClient(str(self._directory / "sock"), 30.0).get(AgentState, "/v1/status")
            return found if found.is_healthy else None
        return None

    def fast_path(self) -> FastPathState | None:
        """The fast path, as the agent sees it."""
        found = self.status()
        return found.fast_path if found else None

    def has_interfaces(self, *names: str) -> None:
        """Wait until the fast path has exactly these interfaces."""
        wait_until(lambda: (found := self.fast_path()) and set(found.interfaces) == set(names), self.fast_path)

    def has_connections(self, count: int) -> None:
        """Wait until so many connections are on the fast path."""
        wait_until(lambda: (found := self.fast_path()) and found.connections == count, self.fast_path)

    def serve(self, *pods: str, protocol: str = "UDP") -> None:
        """Give the Service these endpoints."""
        put = self._directory / "manifests"
        put.mkdir(exist_ok=True)
        for number, (front, endpoints) in enumerate(((SERVICE, pods), (SERVICE6, (POD6,)))):
            name = f"web-{number}"
            ports = [f"a:{PORT}/{protocol}"]
            objects = [
                service(name, vips=[front], ports=ports),
                endpoint_slice(
                    name,
                    *endpoints,
                    service=name,
                    family="IPv6" if ":" in front else "IPv4",
                    ports=[f"a:{POD_PORT}/{protocol}"],
                ),
            ]
            (put / f"{name}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def passed(self) -> int:
        """The packets that the node's forward hook has seen."""
        counters = json.loads(self.nft("--json", "list", "table", "inet", "seen"))["nftables"]
        (count,) = [part["counter"]["packets"] for each in counters for part in each.get("rule", {}).get("expr", ())]
        return int(count)

    def handle(self) -> str:
        """The kernel's number of the fast path's table, which no other table ever has."""
        return self.nft("--handle", "list", "table", "inet", "nftproxy-fast-path").partition("\n")[0]

    def nft(self, *arguments: str) -> str:
        """Call nft on the node."""

        def call() -> str:
            return subprocess.run(["nft", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout

        return self.node.call(call)


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Way]:
    """A client, a node with an agent that serves UDP, and pods."""
    if why := obstacle():
        pytest.skip(why)
    if not has_flowtables():
        pytest.skip("this kernel has no flowtables (CONFIG_NF_FLOW_TABLE_INET)")
    with ExitStack() as stack:
        made = Way(tmp_path)
        stack.callback(made.stack.close)
        made.node.load(
            "table inet seen {\n  chain c {\n    type filter hook forward priority 2000\n    counter\n  }\n}\n"
        )
        made.serve(PODS[0])
        yield made


class Flow:
    """A UDP client that keeps its port, and servers on all pods that say which of them they are."""

    def __init__(self, way: Way, front: str = SERVICE, pods: tuple[str, ...] = PODS) -> None:
        self._way, self._pods = way, pods
        family = socket.AF_INET6 if ":" in front else socket.AF_INET
        self._servers = {}
        for pod in pods:
            server = way.stack.enter_context(way.pods.socket(family, socket.SOCK_DGRAM))
            server.bind((pod, POD_PORT))
            self._servers[server] = pod
        self._client = way.stack.enter_context(way.client.socket(family, socket.SOCK_DGRAM))
        self._client.connect((front, PORT))
        self._client.settimeout(1.0)

    def ask(self) -> str:
        """Send a datagram and its answer.  Return the pod, "" if none gets it."""
        with contextlib.suppress(OSError):
            self._client.send(b"?")
            for server in select.select(list(self._servers), [], [], 1.0)[0]:
                _, client = server.recvfrom(9)
                server.sendto(b"!", client)
                self._client.recv(9)
                return self._servers[server]
        return ""

    def is_fast(self) -> bool:
        """True if twenty datagrams and their answers reach a pod past the forward hook."""
        before = self._way.passed()
        assert all(self.ask() for _ in range(20))
        return self._way.passed() == before

    def becomes_fast(self) -> None:
        """Wait until it is on the fast path."""
        wait_until(self.is_fast, self._way.agent.log, pause=0.5)


@pytest.mark.parametrize(("front", "pods"), [(SERVICE, PODS), (SERVICE6, (POD6,))], ids=["IPv4", "IPv6"])
def test_an_established_flow_takes_the_fast_path(way: Way, front: str, pods: tuple[str, ...]) -> None:
    """Packets of an assured UDP flow pass no chain, `status` counts it, and short exchanges stay on the usual way."""
    way.start()
    way.has_interfaces("client", "pods")
    flow = Flow(way, front, pods)
    assert flow.ask()
    way.has_connections(0)
    flow.becomes_fast()
    way.has_connections(1)


def test_a_flow_leaves_an_endpoint_that_is_gone(way: Way) -> None:
    """A flow on the fast path goes to the next endpoint once its own is gone, and is fast again there."""
    way.start()
    flow = Flow(way)
    flow.becomes_fast()
    way.serve(PODS[1])
    wait_until(lambda: flow.ask() == PODS[1], way.agent.log)
    flow.becomes_fast()
    way.serve()
    wait_until(lambda: not flow.ask(), way.agent.log)


def test_flows_stay_through_a_restart_and_repairs(way: Way) -> None:
    """A restart and a repair leave the table.  After another program's deletion of it, flows go on and are fast again.

    A flow without a packet for 30 s (nf_flowtable_udp_timeout) leaves the fast path, so it may have to come back.
    """
    way.start()
    flow = Flow(way)
    flow.becomes_fast()
    before = way.handle()
    way.agent.stop()
    flow.becomes_fast()
    way.start()
    way.has_interfaces("client", "pods")
    flow.becomes_fast()
    way.nft("delete table ip nftproxy")
    flow.becomes_fast()
    assert way.handle() == before
    way.nft("delete table inet nftproxy-fast-path")
    flow.becomes_fast()
    assert way.handle() != before


def test_the_fast_path_goes_with_its_configuration(way: Way) -> None:
    """An agent without the setting removes the table, and flows go on."""
    way.start()
    flow = Flow(way)
    flow.becomes_fast()
    way.agent.stop()
    way.start(CONFIG.partition("nftproxy:")[0])
    wait_until(lambda: way.node.call(fast_path_comment) is None, way.agent.log)
    assert flow.ask()
    assert not flow.is_fast()


def test_interfaces_are_followed(way: Way) -> None:
    """Interfaces that come, go and change their names are followed in the same table."""
    way.start()
    flow = Flow(way)
    flow.becomes_fast()
    before = way.handle()
    many = [f"pod{number}" for number in range(200)]
    way.node.ip(*(f"link add {each} type dummy" for each in many), "link add other type dummy")
    way.has_interfaces("client", "pods", *many)
    flow.becomes_fast()
    way.node.ip(*(f"link delete {each}" for each in many[1:]), "link set pod0 name gone", "link set other name pod7")
    way.has_interfaces("client", "pods", "pod7")
    flow.becomes_fast()
    assert way.handle() == before


def test_tcp_connections_take_it_and_end_as_usual(way: Way) -> None:
    """Megabytes of TCP pass by the forward hook.  Each end of a connection, and a reset, leaves the fast path."""
    way.serve(PODS[0], protocol="TCP")
    way.start()
    server = way.stack.enter_context(way.pods.socket(socket.AF_INET, socket.SOCK_STREAM))
    server.bind((PODS[0], POD_PORT))
    server.listen()

    def connect() -> tuple[socket.socket, socket.socket]:
        client = way.stack.enter_context(way.client.socket(socket.AF_INET, socket.SOCK_STREAM))
        client.settimeout(PATIENCE)
        client.connect((SERVICE, PORT))
        accepted, _ = server.accept()
        accepted.settimeout(PATIENCE)
        return client, way.stack.enter_context(accepted)

    for is_reset in (False, True):
        client, accepted = connect()
        for size in (1, 4_000_000):
            before = way.passed()
            left = size
            while left:
                sent = client.send(bytes(min(left, 50_000)))
                got = 0
                while got < sent:
                    got += len(accepted.recv(sent - got))
                left -= sent
        assert way.passed() - before < 10, "packets of established connections pass the forward hook"
        way.has_connections(1)
        if is_reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
            client.close()
            with pytest.raises(ConnectionResetError):
                accepted.recv(1)
        else:
            client.shutdown(socket.SHUT_WR)
            assert accepted.recv(1) == b""
            accepted.sendall(b"last")
            accepted.close()
            assert client.recv(9) == b"last"
        way.has_connections(0)


def test_large_packets_are_refused_as_usual(way: Way) -> None:
    """A datagram larger than the way to the pod is answered with an ICMP error, although its flow is fast."""
    way.start()
    flow = Flow(way)
    way.node.ip("link set pods mtu 1300")
    flow.becomes_fast()
    client = flow._client
    client.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
    client.send(bytes(1400))
    time.sleep(0.5)
    with pytest.raises(OSError, match="Message too long"):
        client.send(bytes(1400))
