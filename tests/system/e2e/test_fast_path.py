"""The fast path, by an agent on a node between a client and pods with sockets of their own.

It takes a kernel with flowtables, which tools.vm boots:
`python -m tools.vm --suite bookworm -- python -m pytest tests/system/e2e/test_fast_path.py`
"""

from __future__ import annotations

import contextlib
import errno
import json
import platform
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from nftproxy_conformance.lab import Namespace, obstacle
from nftproxy_conformance.lab.node import Node

from nftproxy.agent.socket import answers
from nftproxy.agent.socket.answers import AgentState
from nftproxy.commands.agent_client import AgentClient
from nftproxy.extensions.fast_path.agent.fast_path import MOST_INTERFACES
from nftproxy.extensions.fast_path.fields import FastPath, FastPathScope
from nftproxy.extensions.fast_path.rules import FAST_PATH_TABLE
from nftproxy.kernel.nfnetlink.nft_queries import inet_table_comment
from nftproxy.sources.interfaces import interface_names
from nftproxy.trace.links import add_addresses, join
from tests.support.flowtables import has_flowtables
from tests.support.objects import endpoint_slice, service
from tests.support.processes import AgentProcess
from tests.support.waiting import PATIENCE, wait_until
from tests.system.e2e.agent import ask_http
from tests.system.e2e.silent_town import Connections

CLIENT, CLIENT6 = "10.1.0.9", "fd00:1::9"
PODS = ("10.1.0.4", "10.1.0.5")
POD6 = "fd00:1::4"
SERVICE, SERVICE6, PORT, POD_PORT = "10.96.0.10", "fd00:96::10", 80, 8080
ANSWERED = 5.0
"""Seconds within which a datagram and its answer arrive, also on an emulated processor that is busy."""
HELD = 12
"""Connections that are enough to move new ones away from a pod."""
RELEASE = tuple(map(int, platform.release().split(".")[:2]))
"""The kernel's."""
CONFIG = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.1.0.0/16,fd00:1::/48
nftproxy:
  fastPath:
    interfaces: [client, "po*"]
"""


class FastPathState(NamedTuple):
    """The interfaces of the fast path, and the connections on it, -1 if unknown."""

    interfaces: tuple[str, ...]
    connections: int

    @classmethod
    def read(cls, line: str) -> Self:
        """Read the line of `status`."""
        found = re.fullmatch(r"(?:(\d+)|an unknown number of) connections, at \d+ interfaces: (.*)", line)
        assert found, line
        interfaces = tuple(found[2].split(", ")) if found[2] != "none" else ()
        return cls(interfaces, int(found[1]) if found[1] else -1)


class Entry(NamedTuple):
    """Seconds until an entry of connection tracking ends, 0 while it is on the fast path, and its packets each way."""

    timeout: int
    packets: list[int]


class Way:
    """A client, a node with an agent, and a namespace for all pods.  A context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with ExitStack() as stack:
            self.node = stack.enter_context(Node("node"))
            self.client = stack.enter_context(Namespace("client"))
            self.pods = stack.enter_context(Namespace("pods"))
            self.connect(self.client, "client", (CLIENT, CLIENT6))
            self.connect(self.pods, "pods", (*PODS, POD6))
            self.agent = AgentProcess(self.node, directory / "log")
            stack.callback(self.agent.kill)
            self.stack = stack.pop_all()

    def connect(self, end: Namespace, name: str, addresses: tuple[str, ...]) -> None:
        """Connect a namespace by an interface of the node with this name."""
        join(self.node, name, end, "eth0", macs=("02:00:00:00:00:01", "02:00:00:00:00:02"))
        for interface, near in (("eth0", end), (name, self.node)):
            near.ip(f"link set dev {interface} address 02:00:00:00:00:01")
        add_addresses(end, "eth0", *addresses)
        end.ip("link set dev lo up", "route add 0.0.0.0/0 dev eth0", "route add ::/0 dev eth0")
        self.node.ip(*(f"route add {each} dev {name}" for each in addresses))

    def start(self, config: str = CONFIG) -> None:
        """Start the agent, and wait until it has loaded the rules."""
        (self._directory / "config.yaml").write_text(config)
        paths = {"config": "config.yaml", "source": "manifests", "agent-socket": "sock"}
        given = [each for name, path in paths.items() for each in (f"--{name}", str(self._directory / path))]
        self.agent.launch(*given, "--hostname-override=node-a")
        wait_until(lambda: self.status() is not None, self.agent.log)

    @property
    def client_of_agent(self) -> AgentClient:
        """A client of the agent's socket."""
        return AgentClient(str(self._directory / "sock"), PATIENCE)

    def status(self) -> AgentState | None:
        """The agent's state, None until it is healthy."""
        with contextlib.suppress(Exception):
            found = self.client_of_agent.get(AgentState, "/v1/status")
            return found if found.is_healthy else None
        return None

    def explain(self, what: str) -> str:
        """The output of `nftproxy explain`."""
        return _run(
            [sys.executable, "-m", "nftproxy", "explain", what, "--agent-socket", str(self._directory / "sock")]
        )

    def counted(self) -> int:
        """The connections that the Service has counted."""
        answer = ask_http(self.node, "http://127.0.0.1:10249/metrics")
        assert answer
        found = re.findall(r'^nftproxy_service_connections_total{.*"web-0".*} (\d+)$', answer.body, re.MULTILINE)
        return sum(map(int, found))

    def connects(self, listener: socket.socket) -> bool:
        """True if a new connection to the Service reaches a listener.  Close it."""
        with contextlib.suppress(OSError), self.client.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
            client.settimeout(ANSWERED)
            client.connect((SERVICE, PORT))
            listener.settimeout(ANSWERED)
            listener.accept()[0].close()
            return True
        return False

    def fast_path(self) -> FastPathState | None:
        """The fast path, as the agent sees it."""
        found = self.status()
        lines = found.features.get("Fast path", ()) if found else ()
        return FastPathState.read(lines[0]) if lines else None

    def has_interfaces(self, *names: str) -> None:
        """Wait until the fast path has exactly these interfaces, by name or by the beginning of names."""
        wait_until(lambda: (found := self.fast_path()) and self._present(found) == set(names), self.fast_path)

    def _present(self, found: FastPathState) -> set[str]:
        chosen = FastPath(found.interfaces).chosen(self.node.call(interface_names))
        return set(chosen) | {each for each in found.interfaces if not each.endswith("*")}

    def has_connections(self, count: int) -> None:
        """Wait until so many connections are on the fast path."""
        wait_until(lambda: (found := self.fast_path()) and found.connections == count, self.fast_path)

    def serve(
        self, *pods: str, protocol: str = "UDP", metadata: Mapping[str, object] | None = None, **spec: object
    ) -> None:
        """Give the Service these endpoints.  `spec` has further fields of the Service."""
        put = self._directory / "manifests"
        put.mkdir(exist_ok=True)
        for number, (front, endpoints) in enumerate(((SERVICE, pods), (SERVICE6, (POD6,)))):
            name = f"web-{number}"
            ports = [f"a:{PORT}/{protocol}"]
            objects = [
                service(name, spec, vips=[front], ports=ports, metadata=metadata or {}),
                endpoint_slice(
                    name,
                    *endpoints,
                    service=name,
                    family="IPv6" if ":" in front else "IPv4",
                    ports=[f"a:{POD_PORT}/{protocol}"],
                ),
            ]
            (put / f"{name}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def reload(self, config: str) -> None:
        """Change the configuration, which the agent notices."""
        (self._directory / "config.yaml").write_text(config)

    def entry(self, protocol: str) -> Entry:
        """Connection tracking's only entry for a protocol whose destination is the Service."""
        text = self.node.call(Path("/proc/thread-self/net/nf_conntrack").read_text)
        (line,) = [each for each in text.splitlines() if f" {protocol} " in each and f" dst={SERVICE} " in each]
        timeout = re.search(rf" {protocol} +\d+ (\d+) ", line)
        return Entry(int(timeout[1]) if timeout else 0, list(map(int, re.findall(r"packets=(\d+)", line))))

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
        self._client.settimeout(ANSWERED)

    def ask(self, question: bytes = b"?") -> str:
        """Send a datagram and its answer.  Return the pod, "" if none gets it."""
        with contextlib.suppress(OSError):
            self._client.send(question)
            for server in select.select(list(self._servers), [], [], ANSWERED)[0]:
                got, client = server.recvfrom(len(question) + 1)
                assert got == question
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


def test_a_connection_to_a_vanished_pod_is_reset(way: Way) -> None:
    """With failover `gone`, a TCP connection on the fast path is reset once its pod is in no slice."""
    failover = {"annotations": {"nftproxy.dev/failover": "gone"}}
    way.serve(*PODS, protocol="TCP", metadata=failover)
    way.start()
    stream = Stream(way)
    stream.becomes_fast()
    (other,) = set(PODS) - {stream.pod}
    way.serve(other, protocol="TCP", metadata=failover)

    def is_reset() -> bool:
        try:
            stream.client.send(b"?")
        except (ConnectionResetError, BrokenPipeError):
            return True
        return False

    wait_until(is_reset, way.agent.log)


def test_flows_stay_through_a_restart_and_repairs(way: Way) -> None:
    """A restart and a repair leave the table.  After another program's deletion of it, flows go on and are fast again.

    The deletion may cost a flow its next packet, as Linux 6.12 does.
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
    flow.ask()
    flow.becomes_fast()
    assert way.handle() != before


def test_the_fast_path_goes_with_its_configuration(way: Way) -> None:
    """An agent without the setting removes the table, and flows go on."""
    way.start()
    flow = Flow(way)
    flow.becomes_fast()
    way.agent.stop()
    way.start(CONFIG.partition("nftproxy:")[0])
    wait_until(lambda: way.node.call(inet_table_comment, FAST_PATH_TABLE) is None, way.agent.log)
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


@pytest.mark.skipif(
    RELEASE < (6, 17),
    reason="this kernel knows no beginnings of names in a flowtable (before Linux 6.17)",
)
def test_a_new_kernel_follows_beginnings_of_names(way: Way) -> None:
    """The flowtable has the beginning of names itself, so a new interface is on the fast path without an agent."""
    way.start()
    wait_until(lambda: (found := way.fast_path()) and set(found.interfaces) == {"client", "po*"}, way.fast_path)
    way.agent.stop()
    way.node.ip("link delete pods")
    way.connect(way.pods, "port", (*PODS, POD6))
    Flow(way).becomes_fast()


def test_interfaces_beyond_the_limit_take_the_usual_way(way: Way) -> None:
    """The fast path has as many interfaces as its limit, the named ones first, and the agent names the rest.

    A star alone stands for names, as no kernel shall add loopback.
    """
    way.start(CONFIG.replace('"po*"', 'pods, "*"'))
    count = MOST_INTERFACES + 6
    way.node.ip(*(f"link add more{number:04} type dummy" for number in range(count)))
    way.has_interfaces("client", "pods", *(f"more{number:04}" for number in range(MOST_INTERFACES - 2)))
    first, last = f"more{MOST_INTERFACES - 2:04}", f"it has {MOST_INTERFACES} interfaces"
    wait_until(lambda: re.search(f"the fast path is without {first}, .*: {last}", way.agent.log()), way.agent.log)
    Flow(way).becomes_fast()


class Stream:
    """A TCP connection through the Service, with both of its ends."""

    def __init__(self, way: Way, place: tuple[str, int] = (SERVICE, PORT), pods: tuple[str, ...] = PODS) -> None:
        self._way = way
        listeners = {way.stack.enter_context(_listener(way, pod)): pod for pod in pods}
        self.client = way.stack.enter_context(way.client.socket(socket.AF_INET, socket.SOCK_STREAM))
        self.client.settimeout(PATIENCE)
        self.client.connect(place)
        (ready,) = select.select(list(listeners), [], [], PATIENCE)[0]
        self.pod = listeners[ready]
        self.server = way.stack.enter_context(ready.accept()[0])
        self.server.settimeout(PATIENCE)
        for each in listeners:
            each.close()

    def carry(self, size: int) -> None:
        """Send so many bytes to the pod, and half of them back."""
        for sender, receiver, left in ((self.client, self.server, size), (self.server, self.client, size // 2)):
            while left > 0:
                sent = sender.send(bytes(min(left, 50_000)))
                got = 0
                while got < sent:
                    got += len(receiver.recv(sent - got))
                left -= sent

    def becomes_fast(self) -> None:
        """Carry data until none of it passes the forward hook."""

        def is_fast() -> bool:
            before = self._way.passed()
            self.carry(200_000)
            return self._way.passed() == before

        wait_until(is_fast, self._way.agent.log)


def _listener(way: Way, pod: str) -> socket.socket:
    made = way.pods.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((pod, POD_PORT))
    made.listen()
    return made


def test_tcp_connections_take_it_and_end_as_usual(way: Way) -> None:
    """Megabytes of TCP pass by the forward hook.  Each end of a connection, and a reset, leaves the fast path.

    From Linux 6.14 on these packets take the fast path too, which the connection leaves after idle seconds (CLOSING).
    """
    way.serve(PODS[0], protocol="TCP")
    way.start()
    for is_reset in (False, True):
        stream = Stream(way)
        stream.becomes_fast()
        before = way.passed()
        stream.carry(4_000_000)
        assert way.passed() == before, "packets of established connections pass the forward hook"
        way.has_connections(1)
        if is_reset:
            stream.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
            stream.client.close()
            with pytest.raises(ConnectionResetError):
                stream.server.recv(1)
        else:
            stream.client.shutdown(socket.SHUT_WR)
            assert stream.server.recv(1) == b""
            stream.server.sendall(b"last")
            stream.server.close()
            assert stream.client.recv(9) == b"last"
        assert way.passed() > before or RELEASE >= (6, 14), "the end of a connection passes by the forward hook"
        way.has_connections(0)


@pytest.mark.parametrize("scope", FastPathScope)
def test_only_configured_connections_take_it(way: Way, scope: FastPathScope) -> None:
    """A connection to a pod's own address takes the fast path only if all connections do."""
    way.serve(PODS[0], protocol="TCP")
    way.start(f"{CONFIG}    connections: {scope.value}\n")
    way.has_interfaces("client", "pods")
    direct = Stream(way, (PODS[0], POD_PORT))
    direct.carry(4_000_000)
    before = way.passed()
    if scope is FastPathScope.ALL:
        direct.becomes_fast()
    else:
        direct.carry(200_000)
        assert way.passed() > before
    Stream(way).becomes_fast()


def test_a_connection_goes_on_with_one_of_its_interfaces(way: Way) -> None:
    """If only the client's interface is configured, the connection's answers take the usual way, and all arrives."""
    way.serve(PODS[0], protocol="TCP")
    way.start(CONFIG.replace(', "po*"', ""))
    way.has_interfaces("client")
    stream = Stream(way)
    for _ in range(20):
        stream.carry(1_000_000)
    before = way.passed()
    stream.carry(1_000_000)
    assert way.passed() > before


def test_connections_stay_through_changes(way: Way) -> None:
    """A connection stays, and stays fast, while its pod is drained and goes, rules of another shape replace the rules,
    and another configuration is read.
    """
    way.serve(PODS[0], protocol="TCP")
    way.start()
    stream = Stream(way)
    stream.becomes_fast()
    before = way.handle()
    way.serve(f"{PODS[0]} draining", PODS[1], protocol="TCP")
    wait_until(lambda: Stream(way).pod == PODS[1], way.agent.log)
    stream.becomes_fast()
    way.serve(PODS[1], protocol="TCP", metadata={"annotations": {"nftproxy.dev/failover": "silent, refused"}})
    wait_until(lambda: "unanswered" in way.nft("list", "sets"), way.agent.log)
    stream.becomes_fast()
    way.reload(CONFIG + "  serviceCounts: true\n")
    wait_until(lambda: "counter" in way.nft("list", "table", "ip", "nftproxy"), way.agent.log)
    stream.becomes_fast()
    assert stream.pod == PODS[0]
    assert way.handle() == before


def test_a_client_is_remembered_beside_the_fast_path(way: Way) -> None:
    """A client with a fast connection reaches the same pod with each further connection."""
    way.serve(*PODS, protocol="TCP", sessionAffinity="ClientIP")
    way.start()
    stream = Stream(way)
    stream.becomes_fast()
    assert {Stream(way).pod for _ in range(20)} == {stream.pod}


def test_counts_limits_and_top_see_fast_connections(way: Way) -> None:
    """A fast connection counts as one, to the Service's count, to its client's limit, and to `top`."""
    way.serve(PODS[0], protocol="TCP", metadata={"annotations": {"nftproxy.dev/client-connections": "2"}})
    way.start(CONFIG + "  serviceCounts: true\n")
    first, second = Stream(way), Stream(way)
    first.becomes_fast()
    second.becomes_fast()
    wait_until(lambda: way.counted() == 2, way.agent.log)
    found = way.client_of_agent.get(answers.Connections, "/v1/connections", namespace="")
    assert [(each.service, each.endpoint, each.connections, each.unanswered) for each in found.rows] == [
        ("shop/web-0", f"{PODS[0]}:{POD_PORT}", 2, 0)
    ]
    listener = way.stack.enter_context(_listener(way, PODS[0]))
    assert not way.connects(listener)
    second.client.close()
    second.server.close()
    wait_until(lambda: way.connects(listener), way.agent.log)
    first.becomes_fast()


def test_least_connections_counts_fast_connections(way: Way) -> None:
    """Fast connections to a pod move its Service's new connections to the other pod, down to an eighth of its share."""
    least = {"annotations": {"nftproxy.dev/algorithm": "least-connections"}}
    way.serve(PODS[0], protocol="TCP", metadata=least)
    way.start()
    held = [Stream(way) for _ in range(HELD)]
    way.serve(*PODS, protocol="TCP", metadata=least)

    def is_moved() -> bool:
        for stream in held:
            stream.becomes_fast()
        return f"6.2 %  {PODS[0]}:{POD_PORT}" in way.explain("svc/shop/web-0")

    wait_until(is_moved, way.agent.log)
    way.has_connections(HELD)


def test_failover_beside_a_fast_connection(way: Way) -> None:
    """While a pod falls silent, new connections go to the other pod, and a fast connection to that stays fast."""
    way.serve(*PODS, protocol="TCP", metadata={"annotations": {"nftproxy.dev/failover": "silent"}})
    add_addresses(way.node, "pods", "10.1.0.1")  # for the agent's probes
    way.start()
    stream = Stream(way)
    stream.becomes_fast()
    (other,) = set(PODS) - {stream.pod}
    rules = "type filter hook input priority 0; ip daddr"
    way.pods.call(_run, ["nft", f"table ip silence {{ chain c {{ {rules} {other} drop; }}; }}"])
    listener = way.stack.enter_context(_listener(way, stream.pod))
    with contextlib.closing(Connections(way.client, SERVICE)) as connections:

        def begin(count: int) -> None:
            connections.begin(count)
            connections.wait(1)
            while select.select([listener], [], [], 0)[0]:
                listener.accept()[0].close()

        def is_left_out() -> bool:
            begin(8)
            found = way.status()
            return found is not None and found.features["Silent endpoints"] == (f"{other}:{POD_PORT}",)

        wait_until(is_left_out, way.agent.log)
        stream.becomes_fast()
        begin(20)
        assert connections.wait(PATIENCE) == 0
        stream.becomes_fast()


def test_timeouts_are_those_of_connection_tracking(way: Way) -> None:
    """An idle connection leaves the fast path, and its entry has the usual timeout, which ends as usual.  Connection
    tracking counts the packets that took the fast path.
    """
    way.node.sysctl(
        {f"netfilter/nf_flowtable_{each}_timeout": "2" for each in ("tcp", "udp")}
        | {"netfilter/nf_conntrack_acct": "1"}
    )
    way.start()
    flow = Flow(way)
    flow.becomes_fast()
    before = way.entry("udp")
    assert flow.is_fast()
    assert {now - old for old, now in zip(before.packets, way.entry("udp").packets, strict=True)} == {20}
    way.has_connections(0)
    assert 60 < way.entry("udp").timeout <= 120, "nf_conntrack_udp_timeout_stream"
    flow.becomes_fast()
    way.serve(PODS[0], protocol="TCP")
    wait_until(lambda: not flow.ask(), way.agent.log)
    stream = Stream(way)
    stream.becomes_fast()
    way.has_connections(0)
    assert 60_000 < way.entry("tcp").timeout <= 86_400, "conntrack.tcpEstablishedTimeout, by default a day"
    stream.becomes_fast()


def test_traffic_control_sees_every_packet(way: Way) -> None:
    """Traffic control at both interfaces, and a chain at ingress before the flowtable, see the fast path's packets.  A
    chain behind the flowtable doesn't, and `doctor` names it.
    """
    way.start()
    way.has_interfaces("client", "pods")
    for interface, direction in (("client", "ingress"), ("pods", "egress")):
        for rest in ("qdisc add dev {} clsact", "filter add dev {} {} protocol ip matchall action pass"):
            way.node.call(_run, ["tc", *rest.format(interface, direction).split()])
    for priority in (-10, 10):
        way.node.load(
            f"table netdev at{priority + 10} {{ chain c {{ type filter hook ingress device client priority {priority};"
            " udp dport 80 counter; }; }"
        )
    flow = Flow(way)
    flow.becomes_fast()

    def seen() -> list[int]:
        texts = [way.nft("list", "table", "netdev", each) for each in ("at0", "at20")]
        texts += [
            way.node.call(_run, ["tc", "-s", "filter", "show", "dev", interface, direction])
            for interface, direction in (("client", "ingress"), ("pods", "egress"))
        ]
        return list(map(_number, texts))

    before = seen()
    assert flow.is_fast()
    assert [now - old for old, now in zip(before, seen(), strict=True)] == [20, 0, 20, 20]


def _number(text: str) -> int:
    found = re.search(r"packets (\d+)|(\d+) pkt", text)
    assert found, text
    return int(found[1] or found[2])


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_fragments_arrive(way: Way) -> None:
    """A datagram in fragments arrives whole by the usual way, although its flow is fast."""
    way.start()
    flow = Flow(way)
    flow.becomes_fast()
    before = way.passed()
    assert flow.ask(b"?" * 4_000) == PODS[0]
    assert way.passed() > before
    flow.becomes_fast()


def test_large_packets_are_refused_as_usual(way: Way) -> None:
    """A datagram larger than the way to the pod is answered with an ICMP error, although its flow is fast."""
    way.start()
    flow = Flow(way)
    way.node.ip("link set pods mtu 1300")
    flow.becomes_fast()
    client = flow._client
    client.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO

    def is_too_large() -> bool:
        try:
            client.send(bytes(1400))
        except OSError as error:
            return error.errno == errno.EMSGSIZE
        return False

    wait_until(is_too_large, way.agent.log)
