"""A scratch node with an API server and the agent, and a writer that knows when the kernel has what it wrote."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nftproxy.kernel import nftables_netlink
from nftproxy.kernel.netlink import open_socket
from nftproxy.lab import Namespace
from nftproxy.lab.node import Node
from nftproxy.model.addresses import TABLE, Family
from tools.bench import cluster
from tools.bench.cluster import Pod, Size
from tools.bench.listener import Listener
from tools.bench.processes import AgentProcess, ApiProcess

LOADING = 900.0  # seconds: a busy machine takes minutes for 100,000 Services
SETTLING = 3.0  # seconds: conntrack is swept, memory given back, and the first Events sent
LOOK = 0.005  # seconds between two looks at the kernel's generation while everything is loaded


class World:
    """A cluster of a size and a node in it.

    Args:
        size: of the cluster.
        node: the node's namespace; by default a new one.
        profile: where cProfile's figures of the agent go, when it ends.
    """

    def __init__(self, size: Size, node: Node | None = None, profile: Path | None = None) -> None:
        self.size = size
        self._profile = profile
        with ExitStack() as stack:
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nftproxy-bench-")))
            self.node = node or stack.enter_context(Node(cluster.NODE))
            self.manifests = cluster.write(size, self._directory / "cluster.json")
            self.api = ApiProcess(self.node, self.manifests, self._directory)
            stack.callback(self.api.close)
            self._writer = _Connection(self.node, self.api.port)
            stack.callback(self._writer.close)
            self._agent: AgentProcess | None = None
            stack.callback(self._kill_agent)
            self._fresh = itertools.count(cluster.SPARE * 3 // 2)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def agent(self) -> AgentProcess:
        """The agent, which has been started."""
        assert self._agent is not None
        return self._agent

    def start_agent(self) -> float:
        """Start it; the seconds from there until the kernel holds everything."""
        before = self.node.call(nftables_netlink.generation)
        self._agent = AgentProcess(self.node, self.api.kubeconfig, self._directory, self._profile)
        return self.node.call(self._wait_for_rules, before)

    def _wait_for_rules(self, before: int) -> float:
        deadline = time.monotonic() + LOADING
        kernel = open_socket()
        try:
            while time.monotonic() < deadline:
                now = nftables_netlink.generation_by(kernel)
                seen = time.monotonic()
                if now != before:
                    if self._is_complete():
                        return seen - self.agent.began
                    before = now
                self.agent.check()
                time.sleep(LOOK)
        finally:
            kernel.close()
        raise TimeoutError(self.agent.log)

    def _is_complete(self) -> bool:
        """Whether there are hooks, which come last, and as many elements as Services and endpoints need at least."""
        if not any(has_hook for family in Family for has_hook in nftables_netlink.chains(family, TABLE).values()):
            return False
        counts = [each.count for family in Family for each in nftables_netlink.sets(family, TABLE)]
        assert None not in counts, "this kernel doesn't report how many elements a set has; Linux 6.18 does"
        return sum(filter(None, counts)) >= self.size.services * (1 + self.size.endpoints)

    def settle(self) -> None:
        """Wait until what follows the rules after they were loaded is done, so that nothing else goes on."""
        time.sleep(SETTLING)

    def stop_agent(self) -> None:
        """End it; its rules stay."""
        self.agent.stop()
        self._agent = None

    def _kill_agent(self) -> None:
        if self._agent is not None:
            self._agent.kill()

    def forget_rules(self) -> None:
        """Remove all rules and conntrack entries."""
        self.node.forget()

    def fresh_pod(self) -> Pod:
        """A pod that nobody has had yet."""
        return Pod(next(self._fresh))

    def listener(self) -> Listener:
        """One who hears the commits on the node."""
        return Listener(self.node)

    def write(self, method: str, path: str, body: cluster.Object | None = None) -> float:
        """Write to the API; when it had answered, by the monotonic clock."""
        return self._writer.write(method, path, body)

    def revision(self) -> str:
        """The API's present resourceVersion."""
        return str(json.loads(self._writer.read(f"{cluster.SLICES}?limit=1"))["metadata"]["resourceVersion"])

    def api_requests(self, verb: str) -> int:
        """How many requests the API server has had of a verb, such as LIST."""
        text = self._writer.read("/metrics").decode()
        requests = (line.rpartition(" ") for line in text.splitlines() if line.startswith("apiserver_request_total{"))
        return sum(int(value) for name, _, value in requests if f'verb="{verb}"' in name)


class _Connection:
    """A connection to a server in the node's namespace, kept open."""

    def __init__(self, node: Namespace, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port)
        self._http.sock = node.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._http.sock.connect(("127.0.0.1", port))
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self, method: str, path: str, body: Any = None) -> float:
        """Write; when there was an answer."""
        data = b"" if body is None else json.dumps(body).encode()
        self._http.request(method, path, data, {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        answered = time.monotonic()
        text = answer.read()
        assert answer.status < 300, text
        return answered

    def read(self, path: str) -> bytes:
        """What is there."""
        self._http.request("GET", path)
        answer = self._http.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return text

    def close(self) -> None:
        """Close it."""
        self._http.close()
