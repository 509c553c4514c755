"""Restarts of kubelets and agents, all under traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.support.waiting import wait_until
from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.control_plane import PATIENCE
from tools.kubernetes.deployment import KUBE_SYSTEM, agent_of, await_agent
from tools.kubernetes.workload import Workload
from tools.migration.switch import Account


def restart_all(cluster: RealCluster) -> Account:
    """Restart each node's kubelet, and its agent in two ways: by SIGKILL, and by a new pod."""
    return Workload(cluster, "restarts", 30).follow("restarts", _steps(cluster))


def _steps(cluster: RealCluster) -> Iterator[tuple[str, Callable[[], object]]]:
    for node in cluster.nodes:
        yield f"{node.place.name}: the kubelet is killed", node.restart_kubelet
        yield f"{node.place.name}: the agent is killed", partial(_kill_agent, cluster, node.place.name)
        yield f"{node.place.name}: the agent's pod is deleted", partial(_replace_agent, cluster, node.place.name)
    yield "a new Service is served", lambda: Workload(cluster, "after-restarts", 31).await_service()


def _kill_agent(cluster: RealCluster, node: str) -> None:
    """Kill a node's agent, and wait until its kubelet has started it again."""
    pod = agent_of(cluster, node)
    query = (KUBE_SYSTEM, "get", pod, "--output=jsonpath={.status.containerStatuses[0].restartCount}")
    before = cluster.kubectl(*query)
    cluster.kill(pod, "kube-system")
    wait_until(lambda: cluster.kubectl(*query) != before, partial(str, pod), patience=PATIENCE)
    await_agent(cluster, node)


def _replace_agent(cluster: RealCluster, node: str) -> None:
    cluster.kubectl(KUBE_SYSTEM, "delete", agent_of(cluster, node))
    await_agent(cluster, node)
