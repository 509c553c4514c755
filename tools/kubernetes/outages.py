"""Programs that restart, an etcd restored from a backup, and pods that are evicted, all under traffic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from tests.support.waiting import wait_until
from tools.kubernetes.cluster import Manifest, RealCluster
from tools.kubernetes.control_plane import PATIENCE
from tools.kubernetes.deployment import KUBE_SYSTEM, ROLLOUT, agent_of, await_agent
from tools.kubernetes.workload import ALL_FAILOVER, Workload, answer, deployment
from tools.migration.switch import Account

AWAY = 12.0
"""Seconds that the API server is away."""
STORAGE = 5
"""MiB that a pod may write before its kubelet evicts it."""
STORAGE_LIMIT = {"ephemeral-storage": f"{STORAGE}Mi"}
SLEEP = 8
"""Seconds of the preStop pause of pods that are drained."""

Steps = Iterator[tuple[str, Callable[[], object]]]


def api_outage(cluster: RealCluster) -> Iterator[Account]:
    """Stop the API server for a while, then make a Service, and wait until it is served."""
    workload = Workload(cluster, "outage", 3)

    def away() -> None:
        cluster.control.stop("kube-apiserver")
        time.sleep(AWAY)

    steps = [
        ("the API server is away", away),
        ("it is back", cluster.control.start_api_server),
        ("a new Service is served", lambda: Workload(cluster, "after-outage", 4).await_service()),
    ]
    yield workload.follow("API outage", steps)


def restored_etcd(cluster: RealCluster) -> Iterator[Account]:
    """Restore etcd from a backup that lacks a Service, and wait until that Service is no longer served.

    The new Service has pods that are there: kubelets follow no older etcd until they are restarted.
    """
    workload = Workload(cluster, "restore", 5)
    copy = cluster.directory / "backup"
    cluster.control.back_up(copy)
    lost = Workload(cluster, "not-in-the-backup", 6)

    def steps() -> Steps:
        yield "all Services", lost.await_service
        yield "etcd is restored", partial(cluster.control.restore, copy)
        yield "the lost Service is gone", partial(_await_end, lost)
        yield "a new Service is served", lambda: Workload(cluster, "after-restore", 7, pods="restore").await_service()

    yield workload.follow("restored etcd", steps())


def _await_end(workload: Workload) -> None:
    """Wait until nobody is served at a Service's addresses."""
    wait_until(lambda: not any(map(answer, workload.fronts())), partial(str, workload.name), patience=PATIENCE)


def restarts(cluster: RealCluster) -> Iterator[Account]:
    """Restart each node's kubelet, and its agent in two ways: by SIGKILL, and by a new pod."""
    workload = Workload(cluster, "restarts", 30)

    def steps() -> Steps:
        for node in cluster.nodes:
            yield f"{node.place.name}: the kubelet is killed", node.restart_kubelet
            yield f"{node.place.name}: the agent is killed", partial(_kill_agent, cluster, node.place.name)
            yield f"{node.place.name}: the agent's pod is deleted", partial(_replace_agent, cluster, node.place.name)
        yield "a new Service is served", lambda: Workload(cluster, "after-restarts", 31).await_service()

    yield workload.follow("restarts", steps())


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


def eviction(cluster: RealCluster) -> Iterator[Account]:
    """Let a kubelet evict a pod that writes too much.

    The API learns of it once the pod has ended, a second after SIGTERM.  So connections that the pod has accepted are
    reset, with any proxy.
    """
    workload = _deployed(cluster, 32, deployment("evicted", len(cluster.nodes), STORAGE_LIMIT, linger=1), ALL_FAILOVER)
    yield workload.follow("a kubelet's eviction", [("a pod is evicted", partial(_overfill, cluster))], kept=0)


def drains(cluster: RealCluster) -> Iterator[Account]:
    """Drain each node through the eviction API.  Pods have a preStop pause, and their Service has no annotation."""
    workload = _deployed(cluster, 33, deployment("drained", len(cluster.nodes), sleep=SLEEP), {})
    yield workload.follow("the eviction API", _drains(cluster), kept=0)


def _deployed(cluster: RealCluster, number: int, made: Manifest, annotations: dict[str, str]) -> Workload:
    name = made["metadata"]["name"]
    cluster.apply(made)
    cluster.kubectl("rollout", "status", f"deployment/{name}", ROLLOUT)
    return Workload(cluster, name, number, annotations, pods=name)


def _overfill(cluster: RealCluster) -> None:
    """Let a pod of the last node write more than its limit, and wait until it is evicted and replaced."""
    node = cluster.nodes[-1].place.name
    query = ("get", "pods", "--selector=app=evicted", f"--field-selector=spec.nodeName={node}", "--output=name")
    pod, *_ = cluster.kubectl(*query).split()
    cluster.kubectl("exec", pod, "--", "dd", "if=/dev/zero", "of=/big", "bs=1M", f"count={4 * STORAGE}")
    told = f"--field-selector=reason=Evicted,involvedObject.name={pod.removeprefix('pod/')}"
    events = partial(cluster.kubectl, "get", "events", told, "--output=name")
    wait_until(lambda: events() != "", partial(cluster.kubectl, "describe", pod), patience=PATIENCE)
    cluster.kubectl("wait", "--for=jsonpath={.status.containerStatuses[0].state.terminated}", pod, ROLLOUT)
    cluster.kubectl("rollout", "status", "deployment/evicted", ROLLOUT)


def _drains(cluster: RealCluster) -> Steps:
    """Drain one node after the other, and let pods return."""
    for node in (each.place.name for each in cluster.nodes):
        yield f"{node} is drained", partial(_drain, cluster, node)
        yield f"{node} is back", partial(cluster.kubectl, "uncordon", node)


def _drain(cluster: RealCluster, node: str) -> None:
    cluster.kubectl("drain", node, "--pod-selector=app=drained", ROLLOUT)
    cluster.kubectl("rollout", "status", "deployment/drained", ROLLOUT)


class Outage(NamedTuple):
    """An outage of the cluster."""

    title: str
    run: Callable[[RealCluster], Iterator[Account]]
    annotated: str = ""
    """The annotation of nftproxy that the clients' Service has, in words."""
    excused: frozenset[str] = frozenset()
    """Faults of connections that no proxy can avoid."""

    def column(self, *, is_kube_proxy: bool) -> str:
        """The outage with the proxy's circumstances, in words, as a row of results names it."""
        return ", ".join(filter(None, [self.title, "under kube-proxy" if is_kube_proxy else self.annotated]))


OF_AGENTS = "restarts"
"""The outage of nftproxy's own agents."""


OUTAGES = {
    "api": Outage("an outage of the API server", api_outage),
    "etcd": Outage("a restored etcd", restored_etcd),
    OF_AGENTS: Outage("restarts of each kubelet and agent", restarts),
    "eviction": Outage("a pod that its kubelet evicts", eviction, "with failover", frozenset({"ECONNRESET"})),
    "drains": Outage("a drain of each node", drains),
}
