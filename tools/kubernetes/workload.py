"""A Service with a pod on each node, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from ipaddress import IPv4Address

from tests.support import objects
from tests.support.waiting import wait_until
from tools.kubernetes.cluster import Manifest, RealCluster
from tools.kubernetes.control_plane import PATIENCE
from tools.kubernetes.deployment import ROLLOUT
from tools.kubernetes.images import AGNHOST_IMAGE
from tools.kubernetes.layout import FIRST_SERVICE
from tools.kubernetes.traffic import HttpFront
from tools.migration.switch import Account, account, followed
from tools.migration.traffic import asking

PORT, TARGET = 80, 8080
TRIES = 200
"""Questions of each client after each step, at the least."""
KEPT = 10
"""Connections that each client keeps."""


class Workload:
    """A Service `name` with a pod on each node, and what its clients connect to.

    Args:
        cluster: with a service proxy.
        number: from 0 on, of its ClusterIP and node port.
    """

    def __init__(self, cluster: RealCluster, name: str, number: int) -> None:
        self.name = name
        self.cluster_ip = str(IPv4Address(FIRST_SERVICE) + 1000 + number)
        self.node_port = 30080 + number
        self._cluster = cluster
        cluster.apply(daemon_set(name), service(name, self.cluster_ip, self.node_port))
        cluster.kubectl("rollout", "status", f"daemonset/{name}", ROLLOUT)

    def fronts(self) -> list[HttpFront]:
        """A client among the pods of the first node, a client on that node's network, and clients outside.

        Each node has a client of its node port.
        """
        node, outside = self._cluster.nodes[0], self._cluster.fabric
        places = [each.place for each in self._cluster.nodes]
        return [
            HttpFront("pod to ClusterIP", node.guest, self.cluster_ip, PORT),
            HttpFront("node to ClusterIP", node.namespace, self.cluster_ip, PORT),
            *(HttpFront(f"node port of {each.name}", outside, each.address, self.node_port) for each in places),
        ]

    def await_service(self) -> None:
        """Wait until each front has been served by the pod of each node."""
        for front in self.fronts():
            met: set[str] = set()
            wait_until(partial(self._has_met_all, front, met), partial(str, (front.name, met)), patience=PATIENCE)

    def _has_met_all(self, front: HttpFront, met: set[str]) -> bool:
        met.add(answer(front))
        return len(met - {""}) == len(self._cluster.nodes)

    def follow(self, name: str, steps: Iterable[tuple[str, Callable[[], object]]]) -> Account:
        """Take steps while clients connect all the time, and return the fate of their connections.

        Args:
            name: of the account.
            steps: names, and actions.
        """
        self.await_service()
        with asking(self.fronts(), KEPT) as clients:
            done = followed(steps, clients, TRIES)
        return account(name, done, clients)


def answer(front: HttpFront) -> str:
    """The name of the pod that answers at a front, "" if none does."""
    try:
        with closing(front.talk()) as conversation:
            return conversation.ask()
    except OSError:
        return ""


def service(name: str, cluster_ip: str, node_port: int) -> Manifest:
    """A Service of type NodePort with the pods of a workload."""
    port = {"port": PORT, "targetPort": TARGET, "nodePort": node_port}
    spec = {"type": "NodePort", "clusterIP": cluster_ip, "selector": {"app": name}}
    return objects.service(name, spec, namespace="default", ports=[port])


def daemon_set(name: str) -> Manifest:
    """A pod with agnhost's web server on each node."""
    container = {
        "name": "web",
        "image": AGNHOST_IMAGE,
        "args": ["netexec", f"--http-port={TARGET}"],
        "readinessProbe": {"httpGet": {"path": "/hostname", "port": TARGET}},
    }
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return objects.api_object("DaemonSet", name, "default") | {"spec": spec}
