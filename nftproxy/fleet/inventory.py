"""The nodes of a cluster and the pods of the agent on them, from the API's lists of Nodes and Pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nftproxy.api.decode import is_subdomain

AGENT_LABEL = "app.kubernetes.io/name=nftproxy"
"""The label of agents' pods (deploy/agent.yaml.j2)."""
AGENT_CONTAINER = "nftproxy"
"""The agent's container in such a pod."""
WITH_NET_ADMIN = ("/venv/bin/python-net-admin", "-m", "nftproxy")
"""The command line with CAP_NET_ADMIN in this container, which an exec doesn't have (examples/deploy/Containerfile)."""
KUBE_PROXY_LABEL, KUBE_PROXY_NAMESPACE = "k8s-app=kube-proxy", "kube-system"
"""The label and the namespace of kube-proxy's pods (kubernetes, cmd/kubeadm/app/phases/addons/proxy/manifests.go)."""


class ClusterNode(msgspec.Struct, frozen=True, order=True):
    """A node with Linux, and the name of its agent's pod, "" for none.

    `is_ready` is true if the pod is ready, and `has_kube_proxy` if a pod of kube-proxy is on the node.  `waiting` is
    the reason why the agent's container doesn't run, such as CrashLoopBackOff, "" if it does.
    """

    name: str
    pod: str = ""
    is_ready: bool = False
    has_kube_proxy: bool = False
    waiting: str = ""


class _ListedMetadata(msgspec.Struct):
    name: str
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = msgspec.field(name="deletionTimestamp", default=None)
    continue_token: str | None = msgspec.field(name="continue", default=None)


class _ListedSpec(msgspec.Struct):
    node: str | None = msgspec.field(name="nodeName", default=None)


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Waiting(msgspec.Struct):
    reason: str = ""


class _ContainerState(msgspec.Struct):
    waiting: _Waiting | None = None


class _ContainerStatus(msgspec.Struct):
    name: str
    state: _ContainerState = msgspec.field(default_factory=_ContainerState)


class _ListedStatus(msgspec.Struct):
    phase: str | None = None
    conditions: list[_Condition] | None = None
    containers: list[_ContainerStatus] | None = msgspec.field(name="containerStatuses", default=None)


class ListedObject(msgspec.Struct):
    """A Node or a Pod, as far as an inventory needs it."""

    metadata: _ListedMetadata
    spec: _ListedSpec = msgspec.field(default_factory=_ListedSpec)
    status: _ListedStatus = msgspec.field(default_factory=_ListedStatus)

    @property
    def is_ready(self) -> bool:
        """True if the condition Ready holds."""
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions or ())

    @property
    def waiting(self) -> str:
        """The reason why the agent's container doesn't run, "" if it does."""
        states = (each.state for each in self.status.containers or () if each.name == AGENT_CONTAINER)
        return next((state.waiting.reason for state in states if state.waiting), "")


class _PageMetadata(msgspec.Struct):
    continue_token: str | None = msgspec.field(name="continue", default=None)


class ListPage(msgspec.Struct):
    """A page of the API's list of Nodes or Pods."""

    items: list[ListedObject] | None = None
    metadata: _PageMetadata = msgspec.field(default_factory=_PageMetadata)


def inventory(
    nodes: Iterable[ListedObject], agents: Iterable[ListedObject], kube_proxies: Iterable[ListedObject]
) -> list[ClusterNode]:
    """Return the nodes with Linux, by name, each with the agent's pod on it.

    A node may have two such pods while one replaces the other.  Then the ready pod counts, else the running pod.
    """
    pods: dict[str, ListedObject] = {}
    for pod in sorted(agents, key=_rank):
        if pod.spec.node and is_subdomain(pod.metadata.name):
            pods[pod.spec.node] = pod
    proxied = {pod.spec.node for pod in kube_proxies}
    names = sorted(node.metadata.name for node in nodes if _has_linux(node.metadata.labels or {}))
    return [
        ClusterNode(
            name,
            pods[name].metadata.name if name in pods else "",
            is_ready=name in pods and pods[name].is_ready,
            has_kube_proxy=name in proxied,
            waiting=pods[name].waiting if name in pods else "",
        )
        for name in names
    ]


def _rank(pod: ListedObject) -> tuple[bool, bool, bool, str]:
    """Sort key: the last of a node's pods is its agent."""
    is_staying = pod.metadata.deletion_timestamp is None
    return pod.is_ready, is_staying, pod.status.phase == "Running", pod.metadata.name


def _has_linux(labels: Mapping[str, str]) -> bool:
    return labels.get("kubernetes.io/os", "linux") == "linux"
