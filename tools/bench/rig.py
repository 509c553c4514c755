"""A scratch node with an API server and the agent, each a process of its own, and a connection to write to the API."""

from __future__ import annotations

import http.client
import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from nftproxy_conformance.lab import Namespace
from nftproxy_conformance.lab.node import Node

from nftproxy.config.parse_config import EMPTY_CONFIG
from nftproxy.kernel.nfnetlink import nft_queries
from nftproxy.kernel.nfnetlink.sockets import open_socket
from nftproxy.model.addresses import TABLE, Family
from tests.support.processes import AgentProcess, start_module
from tests.support.waiting import wait_until
from tools.bench import cluster
from tools.bench.cluster import CLUSTER_CIDR, NODE, NODE_IP, SERVICE_CIDR, Pod, Size
from tools.bench.listener import Listener

LOADING = 900.0  # seconds: a busy machine takes minutes for 100,000 Services
SETTLING = 3.0  # seconds: conntrack is swept, memory given back, and the first Events sent
LOOK = 0.005  # seconds between two looks at the kernel's generation while everything is loaded
ENDING = 300.0  # seconds


class Rig:
    """A cluster of some size, and a node in it.

    Attributes:
        size: of the cluster.
        node: the node's namespace.
        agent: the process, which `start_agent` starts.
    """

    def __init__(self, size: Size, node: Node, port: int, agent: AgentProcess, options: list[str]) -> None:
        self.size = size
        self.node = node
        self.agent = agent
        self._options = options
        self._http = http.client.HTTPConnection("127.0.0.1", port)
        node.call(self._http.connect)
        self._fresh = itertools.count(cluster.SPARE * 3 // 2)

    def start_agent(self) -> float:
        """Start the agent.  Returns the seconds from there until the kernel holds everything."""
        before = self.node.call(nft_queries.generation)
        began = time.monotonic()
        self.agent.launch(*self._options)
        return self.node.call(self._wait_for_rules, before) - began

    def _wait_for_rules(self, before: int) -> float:
        """When the kernel held everything, by the monotonic clock."""
        kernel, seen = open_socket(), 0.0

        def has_come() -> bool:
            nonlocal before, seen
            assert not self.agent.has_died, self.agent.log()
            self.agent.check_log()
            now, seen = nft_queries.generation_by(kernel), time.monotonic()
            before, has_changed = now, now != before
            return has_changed and self._is_complete()

        with kernel:
            wait_until(has_come, self.agent.log, patience=LOADING, pause=LOOK)
        return seen

    def _is_complete(self) -> bool:
        """Whether there are hooks, which come last, and as many elements as Services and endpoints need at least."""
        if not any(has_hook for family in Family for has_hook in nft_queries.chains(family, TABLE).values()):
            return False
        counts = [each.count for family in Family for each in nft_queries.sets(family)]
        assert None not in counts, "this kernel doesn't report how many elements a set has; Linux 6.18 does"
        return sum(filter(None, counts)) >= self.size.services * (1 + self.size.endpoints)

    def settle(self) -> None:
        """Wait until the agent has finished the work that follows a load."""
        time.sleep(SETTLING)

    def stop_agent(self) -> None:
        """End the agent.  Its rules stay."""
        self.agent.check_log()
        self.agent.stop()

    def fresh_pod(self) -> Pod:
        """A pod that no Service has had yet."""
        return Pod(next(self._fresh))

    def listener(self) -> Listener:
        """A listener for the commits on the node."""
        return Listener(self.node)

    def write(self, method: str, path: str, body: cluster.Object | None = None) -> float:
        """Write to the API.  Returns when it had answered, by the monotonic clock."""
        data = b"" if body is None else json.dumps(body).encode()
        self._http.request(method, path, data, {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        answered = time.monotonic()
        text = answer.read()
        assert answer.status < 300, text
        return answered

    def api_requests(self, verb: str) -> int:
        """How many requests the API server has had of a verb, such as LIST."""
        self._http.request("GET", "/metrics")
        lines = self._http.getresponse().read().decode().splitlines()
        requests = (line.rpartition(" ") for line in lines if line.startswith("apiserver_request_total{"))
        return sum(int(value) for name, _, value in requests if f'verb="{verb}"' in name)


@contextmanager
def assembled(size: Size, node: Node | None = None) -> Iterator[Rig]:
    """A cluster of a size, and a node without an agent yet.

    Args:
        size: of the cluster.
        node: the node's namespace, by default a new namespace.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nftproxy-bench-")))
        if node is None:
            node = stack.enter_context(Node(NODE))
            node.ip(f"addr add {NODE_IP}/32 dev lo")  # else the agent warns that it is elsewhere, by an Event
        server, port = _start_api_server(node, cluster.write(size, directory / "cluster.json"), directory)
        stack.callback(server.wait, ENDING)
        stack.callback(server.terminate)
        config = dict(EMPTY_CONFIG) | {
            "mode": "nftables",
            "hostnameOverride": NODE,
            "clientConnection": {"kubeconfig": str(directory / "kubeconfig")},
            "clusterCIDR": CLUSTER_CIDR,
        }
        (directory / "config.yaml").write_text(yaml.safe_dump(config))
        agent = AgentProcess(node, directory / "agent.log")
        stack.callback(agent.kill)
        yield Rig(size, node, port, agent, ["--config", str(directory / "config.yaml")])


def _start_api_server(node: Namespace, manifests: Path, directory: Path) -> tuple[subprocess.Popen[str], int]:
    """The process of an API server with the objects of a file, which writes a kubeconfig, and its port."""
    options = [f"--manifests={manifests}", f"--kubeconfig={directory}/kubeconfig", f"--service-cidr={SERVICE_CIDR}"]
    with (directory / "apiserver.log").open("w") as log:
        module = "nftproxy_conformance.apiserver"
        process = start_module(node, module, *options, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("http"), (directory / "apiserver.log").read_text()
    return process, int(line.rpartition(":")[2])
