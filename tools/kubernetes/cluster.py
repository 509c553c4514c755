"""The cluster: a control plane and its nodes on one network, in namespaces of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from nftproxy_conformance.lab import Namespace

from nftproxy.api.nodes import ZONE
from nftproxy.model.errors import Unavailable
from nftproxy.sources.documents import to_yaml
from nftproxy.trace.links import add_addresses
from tests.support import objects
from tests.support.waiting import wait_until
from tools.kubernetes.binaries import Binaries
from tools.kubernetes.control_plane import PATIENCE, RealControlPlane
from tools.kubernetes.images import build_images
from tools.kubernetes.layout import NODES, NODES6, NodePlace, places
from tools.kubernetes.node import ClusterNode

COREDNS = Path(__file__).with_name("coredns.yaml")
Manifest = dict[str, Any]


class RealCluster:
    """A cluster without a service proxy, for the block of a `with` statement.

    Args:
        binaries: Kubernetes' programs.
        directory: all files go there.  It must not exist yet.
        nodes: how many nodes.
        zones: how many zones.
        say: reports progress.

    Attributes:
        fabric: the control plane's namespace, outside of all nodes, with routes to nodes and pods.
    """

    def __init__(
        self, binaries: Binaries, directory: Path, nodes: int, zones: int, say: Callable[[str], object]
    ) -> None:
        self.binaries = binaries
        self.directory = directory
        self._places = places(nodes, zones)
        self._say = say

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._bring_up(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as the administrator, and return its output.

        Args:
            arguments: its command line.
            text: its standard input.

        Raises:
            Unavailable: its exit status isn't 0.  The message has its standard error.
        """
        command = [self.binaries.path("kubectl"), f"--kubeconfig={self.control.kubeconfig}", *arguments]
        process = self.fabric.popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, error = process.communicate(text)
        if process.returncode:
            raise Unavailable(f"kubectl {' '.join(arguments)}: status {process.returncode}: {error}")
        return str(out)

    def apply(self, *objects: Manifest) -> None:
        """Create or change objects."""
        self.kubectl("apply", "--filename=-", text=to_yaml(objects))

    def kill(self, pod: str, namespace: str = "default") -> None:
        """Kill the processes of a pod's container, as the kernel does when memory is short."""
        for process in self.processes(pod, namespace):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)

    def processes(self, pod: str, namespace: str = "default") -> list[int]:
        """The processes of a pod's container."""
        query = "--output=jsonpath={.status.containerStatuses[0].containerID}"
        container = self.kubectl("get", pod, query, f"--namespace={namespace}").rpartition("/")[2]
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if container in (process / "cgroup").read_text():
                    found.append(int(process.name))
        return found

    def node(self, name: str) -> ClusterNode:
        """The node with this name."""
        return next(node for node in self.nodes if node.place.name == name)

    def _bring_up(self, stack: ExitStack) -> None:
        self.directory.mkdir(parents=True)
        images = self.directory / "images"
        images.mkdir()
        self._say("building images")
        build_images(self.binaries, images)
        self.fabric = stack.enter_context(Namespace("fabric"))
        self._make_network()
        users = {f"system:node:{place.name}": "system:nodes" for place in self._places}
        self.control = RealControlPlane(self.binaries, self.directory / "control-plane", users, self.fabric.popen)
        stack.callback(self.control.close)
        self._say("starting the control plane")
        self.control.start()
        self.control.start_controllers()
        self._say(f"starting {len(self._places)} nodes")
        self.nodes = [self._start_node(place, stack) for place in self._places]
        self._route()
        wait_until(self._is_ready, self._why_not_ready, patience=PATIENCE, pause=1.0)
        if self.binaries.has("coredns"):
            self.kubectl("apply", "--filename=-", text=COREDNS.read_text())

    def _make_network(self) -> None:
        self.fabric.ip("link set lo up", "link add nodes type bridge", "link set dev nodes up")
        self.fabric.sysctl({"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"})
        add_addresses(self.fabric, "nodes", NODES, NODES6)

    def _start_node(self, place: NodePlace, stack: ExitStack) -> ClusterNode:
        self.apply(node_object(place))
        node = ClusterNode(place, self.directory / place.name, self.fabric)
        stack.callback(node.close)
        node.start(self.binaries, self.control.kubeconfig_of(f"system:node:{place.name}"))
        return node

    def _route(self) -> None:
        """Let everybody reach every node's pods."""
        for place in self._places:
            everybody = [self.fabric, *(node.namespace for node in self.nodes if node.place is not place)]
            for pods, address in zip(place.pods, (place.address, place.address6), strict=True):
                for namespace in everybody:
                    namespace.ip(f"route add {pods} via {address}")

    def _is_ready(self) -> bool:
        condition = '{range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}'
        return self.kubectl("get", "nodes", f"--output=jsonpath={condition}").split() == ["True"] * len(self.nodes)

    def _why_not_ready(self) -> str:
        return self.kubectl("get", "nodes") + "".join(node.log() for node in self.nodes)


def node_object(place: NodePlace) -> Manifest:
    """A Node, as a cloud's controllers would complete it."""
    labels = {"kubernetes.io/hostname": place.name, "kubernetes.io/os": "linux", ZONE: place.zone}
    spec = {"podCIDR": place.pods[0], "podCIDRs": list(place.pods)}
    return objects.api_object("Node", place.name, labels=labels) | {"spec": spec}
