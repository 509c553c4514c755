"""Three real nodes with two Services for the same two pods: "web" leaves silent endpoints out, "other" doesn't."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab.namespace import Namespace
from nftproxy_conformance.lab.pods import RealHost, RealNetwork, RealNode
from nftproxy_conformance.lab.topology import SERVICE_CIDR, SERVICE_CIDR6

from tests.support import objects
from tests.support.cluster import IP, IP6, Ip
from tests.support.processes import CHECKOUT
from tests.system.e2e.agent import Agent, eventually, metric
from tests.system.e2e.objects import node, service_cidr, slice_of

PORT = 80
SILENT = "left out, as it doesn't answer this node, or refuses its connections"
NEEDED = "doesn't answer this node, or refuses its connections, but half of the list is left out already"


def failover(words: str) -> dict[str, dict[str, str]]:
    """The metadata of a Service with failover after these failures."""
    return {"annotations": {"nftproxy.dev/failover": words}}


ANNOTATION = failover("silent")
PLAIN = {IP: IP.vip2, IP6: IP6.vip2}


class Town:
    """Node-a with the agent and a client pod, and node-b and node-c with a server pod each."""

    def __init__(
        self, network: RealNetwork, nodes: list[RealNode], server: ApiServer, agent: Agent, pods: dict[str, RealHost]
    ) -> None:
        self.network, self.nodes, self.server, self.agent, self.pods = network, nodes, server, agent, pods
        self.client = nodes[0].pod("client", "10.1.0.9", "fd00:1::9")

    def ranges(self, ip: Ip) -> str:
        """The pod range of node-b."""
        return "fd00:1:0:1::/64" if ip is IP6 else "10.1.1.0/24"

    def other_ranges(self, ip: Ip) -> str:
        """The pod range of node-c."""
        return "fd00:1:0:2::/64" if ip is IP6 else "10.1.2.0/24"

    def place(self, ip: Ip) -> str:
        """The address and port of node-b's server."""
        pod = self.pods["web-b"]
        return f"[{pod.address6}]:8080" if ip is IP6 else f"{pod.address}:8080"

    def status(self) -> list[str]:
        """The endpoints that the agent reports as silent."""
        return list(json.loads(self._command("status", "-o", "json"))["agent"]["features"]["Silent endpoints"])

    def explain(self, address: str) -> str:
        """The output of `explain` for the Service at an address."""
        return self._command("explain", f"{f'[{address}]' if ':' in address else address}:{PORT}")

    def shares(self, name: str) -> dict[str, float]:
        """The percentage of new connections to a Service that each endpoint gets, if any, by `explain`."""
        explained = self._command("explain", f"svc/{objects.NAMESPACE}/{name}")
        found = re.findall(r"([\d.]+) %  \[?([0-9a-f.:]+?)\]?:8080", explained)
        return {address: float(share) for share, address in found}

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        return metric(self.nodes[0].namespace, name)

    def pauses(self, place: str) -> list[float]:
        """The seconds of each time that an endpoint was left out, from the agent's log."""
        lines = rf"^(\S+ \S+) .*endpoint {re.escape(place)} .*(?:doesn't answer|answers again)"
        moments = [datetime.fromisoformat(each) for each in re.findall(lines, self.agent.log(), re.MULTILINE)]
        return [(back - left).total_seconds() for left, back in zip(moments[::2], moments[1::2], strict=True)]

    def remove_service(self, name: str) -> None:
        """Delete a Service and its EndpointSlices."""
        self.server.delete("Service", objects.NAMESPACE, name)
        for family in ("ipv4", "ipv6"):
            self.server.delete("EndpointSlice", objects.NAMESPACE, f"{name}-{family}-1")

    def silences(self, name: str) -> int:
        """The number of silent endpoints reported on a Service.  All reports share an Event, which counts them."""
        found = [each for each in self.server.objects("Event") if each["reason"] == "EndpointSilent"]
        ours = [each for each in found if each["regarding"]["name"] == name]
        return sum(each.get("series", {"count": 1})["count"] for each in ours)

    def _command(self, *words: str) -> str:
        command = [sys.executable, "-m", "nftproxy", *words, "--agent-socket", str(self.agent.socket_path)]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        return done.stdout

    def answering(self, address: str) -> set[str]:
        """The pods that answer 16 connections to an address, and "refused", as while the agent has no rules for it.

        If two pods get equal shares, both appear.
        """
        return {self._answer(address) for _ in range(16)}

    def _answer(self, address: str) -> str:
        with contextlib.suppress(ConnectionRefusedError):
            return self.client.ask(address, PORT, timeout=10).name
        return "refused"


class Connections:
    """A client's connections, and the seconds until each was answered.  `close` closes the unanswered connections."""

    def __init__(self, client: RealHost | Namespace, address: str) -> None:
        self._namespace = client if isinstance(client, Namespace) else client.namespace
        self._address = address
        self._waiting: dict[int, tuple[socket.socket, float]] = {}
        self._poll = select.poll()
        self.began: list[float] = []
        self.took: list[float] = []

    def begin(self, count: int) -> None:
        """Begin `count` more connections."""
        kind = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        for _ in range(count):
            made = self._namespace.socket(kind, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its port is free at once
            made.connect_ex((self._address, PORT))
            self._waiting[made.fileno()] = made, time.monotonic()
            self._poll.register(made, select.POLLOUT)

    def wait(self, seconds: float) -> int:
        """Take answers until all connections have an answer or the time is over.  Return how many are unanswered."""
        end = time.monotonic() + seconds
        while self._waiting and (left := end - time.monotonic()) > 0:
            for number, _ in self._poll.poll(left * 1000):
                made, began = self._waiting.pop(number)
                self._poll.unregister(number)
                assert not made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                self.began.append(began)
                self.took.append(time.monotonic() - began)
                made.close()
        return len(self._waiting)

    def wait_until(self, moment: float) -> None:
        """Take answers until a moment of the monotonic clock."""
        self.wait(moment - time.monotonic())
        time.sleep(max(0.0, moment - time.monotonic()))

    def close(self) -> None:
        """Close the unanswered connections."""
        for made, _ in self._waiting.values():
            made.close()


def put_service(
    server: ApiServer,
    name: str,
    vips: Iterable[str],
    endpoints: Iterable[str],
    *,
    metadata: Mapping[str, object] = ANNOTATION,
) -> None:
    """Create a Service of both families with endpoints, each as "address@node"."""
    server.put(objects.service(name, {"type": "ClusterIP"}, vips=vips, ports=[str(PORT)], metadata=metadata))
    ends = {False: list[str](), True: list[str]()}
    for each in endpoints:
        ends[":" in each].append(each)
    server.put(slice_of(*ends[False], name=name, family="IPv4"), slice_of(*ends[True], name=name, family="IPv6"))


@contextlib.contextmanager
def town(directory: Path) -> Iterator[Town]:
    """Three nodes, and two Services with the same two pods."""
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
        ends = [f"{address}@node-{pod.name[-1]}" for pod in pods.values() for address in (pod.address, pod.address6)]
        put_service(server, "web", (IP.vip, IP6.vip), ends)
        put_service(server, "other", (IP.vip2, IP6.vip2), ends, metadata={})
        agent = Agent(nodes[0].node, "node-a", server, directory)
        made = Town(network, nodes, server, agent, pods)
        agent.start()
        for address in (IP.vip, IP6.vip, IP.vip2, IP6.vip2):
            eventually(functools.partial(made.answering, address), {"web-b", "web-c"})
        yield made
        agent.check_log()
