"""`nftproxy run` as a process, and a cluster for it: an API server and a packet lab.

    with World() as world:
        world.put(service(), slice_of("10.1.0.4@node-a"))
        assert world.outcomes(Origin.POD, "10.96.0.10") == at("10.1.0.4")

What is put has reached the kernel when `put` returns.  That is seen by packets: a beacon, a Service and a slice, is
moved to another port after each change, and as the agent gets changes of a resource in their order, and writes what it
has got together, a connection to the beacon's new port tells that all before it is in force.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from email.message import Message
from http.client import HTTPResponse
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from nftproxy.lab import Lab, Namespace, Origin, endpoint
from nftproxy.lab.apiserver import ApiServer
from nftproxy.lab.topology import CLUSTER_CIDR, CLUSTER_CIDR6, NODE_NAME, SERVICE_CIDR, SERVICE_CIDR6
from tests.support.waiting import PATIENCE, wait_until
from tests.system.e2e.objects import Object, node, service, service_cidr, slice_of
from tests.system.packets.cluster import IP, IP6, Connecting

CHECKOUT = Path(__file__).resolve().parents[3]
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
    """Look until what is seen is what is wanted.

    Raises:
        AssertionError: it isn't, after so many seconds.
    """
    wait_until(lambda: look() == wanted, lambda: f"now {look()!r} instead of {wanted!r}", patience=timeout, pause=0.005)


class Answer(NamedTuple):
    """What a server said over HTTP."""

    status: int
    body: str
    headers: Message


def ask_http(namespace: Namespace, url: str) -> Answer | None:
    """GET a URL from inside a namespace; None if nobody listens."""

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


class Agent:
    """One `nftproxy run` in a node's namespace, that finds the API by a kubeconfig.

    Args:
        namespace: the node's.
        name: the node's name.
        server: the API, for whose kubeconfig there must be a route.
        directory: where its files go, its log among them.
        more: further fields of its configuration, in YAML.

    Attributes:
        config: the file of its configuration.
    """

    def __init__(self, namespace: Namespace, name: str, server: ApiServer, directory: Path, more: str = "") -> None:
        self._namespace = namespace
        self._name = name
        self._kubeconfig = server.write_kubeconfig(directory / f"{name}.kubeconfig")
        self.config = directory / f"{name}.yaml"
        self.config.write_text(CONFIG + more)
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        """Start it, and wait until it says that it is healthy."""
        self.launch()
        self.wait_until_healthy()

    def launch(self) -> None:
        """Start it, and wait for nothing."""
        command = [sys.executable, "-m", "nftproxy", "run", "--hostname-override", self._name]
        command += ["--config", str(self.config), "--kubeconfig", str(self._kubeconfig)]
        command += ["--agent-socket", str(self.config.with_suffix(".sock"))]
        with self._log.open("a") as log:
            environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
            self._process = self._namespace.popen(command, cwd=CHECKOUT, stdout=log, stderr=log, env=environment)

    def wait_until_healthy(self) -> None:
        """Wait until /healthz says so; the log is in the error if it doesn't."""

        def look() -> int:
            assert self._process is None or self._process.poll() is None, self.log
            answer = ask_http(self._namespace, "http://127.0.0.1:10256/healthz")
            return answer.status if answer else 0

        eventually(look, 200)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(PATIENCE)

    @property
    def process(self) -> int:
        """The number of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """All that it has said."""
        return self._log.read_text()

    def check_log(self) -> None:
        """Nothing that it has said may be an error: neither one that it expected nor one that it didn't."""
        errors = [line for line in self.log.splitlines() if " ERROR " in line or line.startswith("Traceback")]
        assert not errors, self.log


class World(Connecting):
    """A node of a cluster, with its agent and the API.  A context manager.

    Args:
        directory: where files go.
        name: the node's name.
        zone: the node's zone.
        more: further fields of the agent's configuration, in YAML.

    Attributes:
        lab: the node, and packets.
        server: the API.
        agent: the process.
    """

    def __init__(self, directory: Path, name: str = NODE_NAME, zone: str = "zone-a", more: str = "") -> None:
        self.name = name
        self._node = node(name, IP.node, IP6.node, zone=zone)
        self._cidrs = service_cidr("kubernetes", SERVICE_CIDR, SERVICE_CIDR6)
        self._beacons = itertools.count(1024)
        with ExitStack() as stack:
            self.lab = stack.enter_context(Lab())
            for ip in (IP, IP6):
                self.lab.add_address(ip.own)
            self.server = stack.enter_context(ApiServer(tls=True, authenticate=True, make_socket=self.lab.node.socket))
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
        """Let the cluster have no Services, and the Node and the ServiceCIDRs that it had first."""
        for kind in ("Service", "EndpointSlice"):
            for each in self.server.objects(kind):
                self.server.delete(kind, each["metadata"]["namespace"], each["metadata"]["name"])
        for each in self.server.objects("ServiceCIDR"):
            if each["metadata"]["name"] != "kubernetes":
                self.server.delete("ServiceCIDR", "", each["metadata"]["name"])
        self.put(self._node, self._cidrs)
        self.lab.node.flush_conntrack()

    def put(self, *objects: Object) -> None:
        """Let objects appear or change, and wait until the kernel has it."""
        self.server.put(*objects)
        self.settle()

    def delete(self, *objects: Object) -> None:
        """Let objects go, and wait until the kernel has it."""
        for each in objects:
            self.server.delete(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
        self.settle()

    def settle(self) -> None:
        """Wait until all Services and slices that there are have reached the kernel."""
        port = next(self._beacons)
        beacon = service("beacon", vips=[BEACON], ports=[str(port)])
        self.server.put(beacon, slice_of(BEACON_POD, name="beacon", ports=[str(port)]))
        eventually(lambda: self.lab.connect(Origin.POD, BEACON, port), endpoint(BEACON_POD, port))

    def http(self, url: str) -> Answer | None:
        """GET a URL from the node itself; None if nobody listens."""
        return ask_http(self.lab.node, url)
