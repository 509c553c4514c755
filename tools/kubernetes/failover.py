"""Connections of an application without a preStop pause: while it is rolled, killed, and cut off.

First with kube-proxy on all nodes, then with nftproxy, without failover and with all of it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial

from tests.support.background import repeating
from tests.system.e2e.silent_town import Connections
from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.deployment import ROLLOUT, clean_up, deploy_kube_proxy, deploy_nftproxy, switch
from tools.kubernetes.workload import ALL_FAILOVER, PORT, Workload, deployment

RATE, BATCH = 330, 0.02
"""New connections a second, and the seconds between the moments at which they begin."""
BURST = 50
"""At most so many begin at the same moment, after the machine was too busy for a while."""
LATE, PATIENCE = 0.5, 20.0
"""Seconds until a connection is late, and until it counts as failed."""
DEAD = 15.0
"""Seconds that a node is cut off: kube-controller-manager notices after 50."""
KEPT, KNOWN = 200, 30.0
"""Long connections, and the seconds that their clients are watched after a pod's end."""
EVERY = 1.0
"""Seconds between the requests of a long connection."""
REQUEST = b"GET /hostname HTTP/1.1\r\nHost: failover\r\n\r\n"
HEADER = ("proxy, failover", "of the application", "connections", "failed", "late", "longest wait, s")
KUBE_PROXY = "kube-proxy"
VARIANTS = {"none": {}, "all": ALL_FAILOVER}
"""Annotations of the Service with nftproxy."""


def failovers(cluster: RealCluster, rollouts: int, variants: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table with `HEADER` for each variant, and each way in which its pods end.

    Args:
        cluster: without a service proxy.
        rollouts: how many times the application is rolled.
        variants: `KUBE_PROXY`, and names of `VARIANTS`.
    """
    deploy_kube_proxy(cluster)
    if KUBE_PROXY in variants:
        yield from _variant(cluster, KUBE_PROXY, 10, {}, rollouts)
    deploy_nftproxy(cluster)
    for node in cluster.nodes:
        switch(cluster, node.place.name)
        clean_up(cluster, node.place.name)
    for number, (name, chosen) in enumerate(VARIANTS.items(), 11):
        if name in variants:
            yield from _variant(cluster, f"nftproxy, {name}", number, chosen, rollouts)


def _variant(
    cluster: RealCluster, title: str, number: int, annotations: dict[str, str], rollouts: int
) -> Iterator[tuple[str, ...]]:
    lasting = Workload(cluster, f"lasting-{number}", number + 10, annotations)
    name = f"rolled-{number}"
    cluster.apply(deployment(name, len(cluster.nodes)))
    cluster.kubectl("rollout", "status", f"deployment/{name}", ROLLOUT)
    rolled = Workload(cluster, name, number, annotations, pods=name)
    rolled.await_service()
    yield title, f"rolled {rollouts} times", *_connecting(cluster, rolled, partial(_roll, cluster, name, rollouts))
    cluster.kubectl("delete", "deployment", name)
    lasting.await_service()
    yield title, "a node cut off", *_connecting(cluster, lasting, partial(_stay_cut, cluster))
    cluster.nodes[-1].mend()
    lasting.await_service()
    yield title, "a pod killed by SIGKILL", *_long(cluster, lasting, cluster.kill)
    lasting.await_service()
    yield title, "a node cut off, its pod deleted", *_long(cluster, lasting, partial(_cut, cluster))
    cluster.nodes[-1].mend()
    cluster.kubectl("delete", "daemonset", lasting.name)


def _connecting(cluster: RealCluster, workload: Workload, action: Callable[[], object]) -> tuple[str, ...]:
    """Begin new connections all the time, from a pod of the first node, until an action is done."""
    guest = cluster.nodes[0].guest
    with contextlib.closing(Connections(guest, workload.cluster_ip, may_fail=True)) as connections:
        began, done = time.monotonic(), 0

        def connect() -> None:
            nonlocal done
            now = time.monotonic()
            due = min(int((now - began) * RATE) - done, BURST)
            connections.begin(due)
            done += due
            connections.wait_until(now + BATCH)

        with repeating(connect):
            action()
        connections.wait(PATIENCE)
        late = sum(took > LATE for took in connections.took)
        return f"{done:,}", connections.failures(), f"{late}", f"{max(connections.took):.2f}"


def _roll(cluster: RealCluster, name: str, rollouts: int) -> None:
    for _ in range(rollouts):
        cluster.kubectl("rollout", "restart", f"deployment/{name}")
        cluster.kubectl("rollout", "status", f"deployment/{name}", ROLLOUT)


def _stay_cut(cluster: RealCluster) -> None:
    cluster.nodes[-1].cut()
    time.sleep(DEAD)


def _long(cluster: RealCluster, workload: Workload, end: Callable[[str], object]) -> tuple[str, ...]:
    """End the last node's pod under long connections, and wait until the clients of that pod know."""
    (pod,) = cluster.kubectl(
        "get", "pods", f"--selector=app={workload.name}", "--output=name",
        f"--field-selector=spec.nodeName={cluster.nodes[-1].place.name}",
    ).split()  # fmt: skip
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(KEPT):
            client = stack.enter_context(cluster.nodes[0].guest.socket(socket.AF_INET, socket.SOCK_STREAM))
            client.settimeout(PATIENCE)
            client.connect((workload.cluster_ip, PORT))
            client.send(REQUEST)
            if pod.rpartition("/")[2].encode() in client.recv(4096):
                clients.append(client)
        end(pod)
        took = _until_known(clients)
    longest = f"{max(took):.2f}" if len(took) == len(clients) else f"more than {KNOWN:.0f}"
    return f"{len(clients)} long", f"{len(took)} ended", f"{sum(each > LATE for each in took)}", longest


def _until_known(clients: list[socket.socket]) -> list[float]:
    """The seconds until each client knows that its connection is over, while all send requests."""
    began, asked, took, left = time.monotonic(), 0.0, list[float](), list(clients)
    for client in left:
        client.setblocking(False)
    while left and time.monotonic() - began < KNOWN:
        is_due = time.monotonic() - asked > EVERY
        asked = time.monotonic() if is_due else asked
        over = [client for client in left if _is_over(client, REQUEST if is_due else b"")]
        took += [time.monotonic() - began] * len(over)
        left = [client for client in left if client not in over]
        time.sleep(0.01)
    return took


def _is_over(client: socket.socket, request: bytes) -> bool:
    try:
        client.send(request)
        return not client.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _cut(cluster: RealCluster, pod: str) -> None:
    """Cut the last node off, and delete its pod, as an administrator does who knows that the node is dead."""
    cluster.nodes[-1].cut()
    cluster.kubectl("delete", pod, "--force", "--grace-period=0", "--wait=false")
