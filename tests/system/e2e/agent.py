"""`nftproxy run` as a process, and a cluster for it: an API server and a packet lab.

    with World() as world:
        world.put(service(), slice_of("10.1.0.4@node-a"))
        assert world.outcomes(Origin.POD, "10.96.0.10") == at("10.1.0.4")

`put` returns once the kernel has the objects.  Packets show this: each change is followed by a move of the beacon, a
Service with a slice, to another port.  The agent receives the changes of a resource in order, and writes the changes
received together in one go.  So a connection to the beacon's new port proves that all earlier changes are in force.
"""

from __future__ import annotations

import itertools
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from email.message import Message
from http.client import HTTPResponse
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Namespace, Origin, endpoint
from nftproxy_conformance.lab.topology import CLUSTER_CIDR, CLUSTER_CIDR6, NODE_NAME, SERVICE_CIDR, SERVICE_CIDR6

from nftproxy.agent.socket.answers import NodeInputs
from nftproxy.commands.agent_client import AgentClient
from tests.support.cluster import IP, IP6, Prober
from tests.support.flowtables import FOR_AGENTS, trying_lab
from tests.support.processes import AgentProcess
from tests.support.waiting import PATIENCE, wait_until
from tests.system.e2e.objects import Object, node, service, service_cidr, slice_of

BEACON, BEACON_POD = "10.96.255.1", "10.1.1.250"

CONFIG = f"""
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: {CLUSTER_CIDR},{CLUSTER_CIDR6}
nftables:
  minSyncPeriod: 10ms
"""


def eventually(look: Callable[[], object], wanted: object, timeout: float = PATIENCE) -> None:
    """Call `look` until it returns the wanted value.

    Raises:
        AssertionError: `look` hasn't returned the value within `timeout` seconds.
    """
    wait_until(lambda: look() == wanted, lambda: f"now {look()!r} instead of {wanted!r}", patience=timeout, pause=0.005)


class Answer(NamedTuple):
    """The response of an HTTP server."""

    status: int
    body: str
    headers: Message


def ask_http(namespace: Namespace, url: str) -> Answer | None:
    """GET a URL from inside a namespace.  Return None if nobody listens."""

    def get() -> Answer | None:
        try:
            with urllib.request.urlopen(url, timeout=15) as response:
                assert isinstance(response, HTTPResponse)
                return Answer(response.status, response.read().decode(), response.headers)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode(), error.headers)
        except (urllib.error.URLError, OSError):
            return None

    return namespace.call(get)


def metric(namespace: Namespace, name: str) -> float:
    """The sum of the series of a metric of the agent in a namespace."""
    answer = ask_http(namespace, "http://127.0.0.1:10249/metrics")
    assert answer
    lines = [line for line in answer.body.splitlines() if line.startswith(name)]
    assert lines, name
    return sum(float(line.rpartition(" ")[2]) for line in lines)


class Agent(AgentProcess):
    """A process `nftproxy run` in a node's namespace.  A kubeconfig leads it to the API server.

    Args:
        namespace: the node's namespace.
        name: the node's name.
        server: the API server.  The node must have a route to the address in its kubeconfig.
        directory: the directory of the agent's files and log.
        more: further fields of the agent's configuration, in YAML.

    Attributes:
        config: the agent's configuration file.
        socket_path: the agent's socket.
    """

    def __init__(self, namespace: Namespace, name: str, server: ApiServer, directory: Path, more: str = "") -> None:
        super().__init__(namespace, directory / f"{name}.log")
        self.config = directory / f"{name}.yaml"
        self.config.write_text(CONFIG + more)
        kubeconfig = server.write_kubeconfig(directory / f"{name}.kubeconfig")
        self.socket_path = self.config.with_suffix(".sock")
        self._arguments = ["--hostname-override", name, "--config", str(self.config), "--kubeconfig", str(kubeconfig)]
        self._arguments += ["--agent-socket", str(self.socket_path), *FOR_AGENTS]

    def start(self) -> None:
        """Start the agent, and wait until it is healthy."""
        self.launch()
        self.wait_until_healthy()

    def launch(self, *arguments: str) -> None:
        """Start the agent without waiting."""
        super().launch(*self._arguments, *arguments)

    def wait_until_healthy(self) -> None:
        """Wait until /healthz answers 200.  If the agent dies, the error shows its log."""

        def look() -> int:
            assert not self.has_died, self.log()
            answer = ask_http(self._namespace, "http://127.0.0.1:10256/healthz")
            return answer.status if answer else 0

        eventually(look, 200)


class World(Prober):
    """A node of a cluster, with its agent and the API server.  A context manager.

    Args:
        directory: the directory of the agent's files.
        name: the node's name.
        zone: the node's zone.
        more: further fields of the agent's configuration, in YAML.
        host: the node's address at which the API server listens.

    Attributes:
        lab: the node, and the packets sent to it.
        server: the API server.
        agent: the agent's process.
    """

    def __init__(
        self, directory: Path, name: str = NODE_NAME, zone: str = "zone-a", more: str = "", host: str = "127.0.0.1"
    ) -> None:
        self.name = name
        self._node = node(name, IP.node, IP6.node, zone=zone)
        self._cidrs = service_cidr("kubernetes", SERVICE_CIDR, SERVICE_CIDR6)
        self._beacons = itertools.count(1024)
        with ExitStack() as stack:
            self.lab = stack.enter_context(trying_lab())
            for ip in (IP, IP6):
                self.lab.add_address(ip.own)
            made = ApiServer(hosts=[host], tls=True, authenticate=True, make_socket=self.lab.node.socket)
            self.server = stack.enter_context(made)
            self.server.put(self._node, self._cidrs)
            self.agent = Agent(self.lab.node, name, self.server, directory, more)
            self.agent.start()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def clear(self) -> None:
        """Delete all Services, and restore the first Node and the first ServiceCIDR."""
        for kind in ("Service", "EndpointSlice"):
            for each in self.server.objects(kind):
                self.server.delete(kind, each["metadata"]["namespace"], each["metadata"]["name"])
        for each in self.server.objects("ServiceCIDR"):
            if each["metadata"]["name"] != "kubernetes":
                self.server.delete("ServiceCIDR", "", each["metadata"]["name"])
        self.put(self._node, self._cidrs)
        self.lab.node.flush_conntrack()

    def put(self, *objects: Object) -> None:
        """Create or change objects, and wait until the kernel has them."""
        self.server.put(*objects)
        self.settle()

    def delete(self, *objects: Object) -> None:
        """Delete objects, and wait until the kernel has dropped them."""
        for each in objects:
            self.server.delete(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
        self.settle()

    def settle(self) -> None:
        """Wait until the kernel has all present objects.

        The Node and the ServiceCIDRs have watches of their own, so the agent is queried for both before the beacon.  On
        a slow machine a change may be postponed, and the beacon comes before it.
        """
        eventually(self._followed, self._given())
        port = next(self._beacons)
        beacon = service("beacon", vips=[BEACON], ports=[str(port)])
        self.server.put(beacon, slice_of(BEACON_POD, name="beacon", ports=[str(port)]))
        eventually(lambda: self.lab.connect(Origin.POD, BEACON, port), endpoint(BEACON_POD, port))
        eventually(lambda: metric(self.lab.node, "nftproxy_services_postponed"), 0.0)

    def _followed(self) -> tuple[str, set[str]]:
        """The zone and the ServiceCIDRs that the agent's rules follow."""
        inputs = AgentClient(str(self.agent.socket_path)).get(NodeInputs, "/v1/node")
        return inputs.zone, set(inputs.service_cidrs)

    def _given(self) -> tuple[str, set[str]]:
        """The zone and the ServiceCIDRs that the API server has."""
        (ours,) = (each for each in self.server.objects("Node") if each["metadata"]["name"] == self.name)
        cidrs = (each["spec"]["cidrs"] for each in self.server.objects("ServiceCIDR"))
        return ours["metadata"].get("labels", {}).get("topology.kubernetes.io/zone", ""), set(itertools.chain(*cidrs))

    def http(self, url: str) -> Answer | None:
        """GET a URL from the node itself.  Return None if nobody listens."""
        return ask_http(self.lab.node, url)
