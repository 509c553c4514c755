"""An API server that is away, and an etcd restored from a backup."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from tests.support.waiting import wait_until
from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.control_plane import PATIENCE
from tools.kubernetes.workload import Workload, answer
from tools.migration.switch import Account

AWAY = 12.0
"""Seconds that the API server is away."""


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

    def steps() -> Iterator[tuple[str, Callable[[], object]]]:
        yield "all Services", lost.await_service
        yield "etcd is restored", partial(cluster.control.restore, copy)
        yield "the lost Service is gone", partial(_await_end, lost)
        yield "a new Service is served", lambda: Workload(cluster, "after-restore", 7, pods="restore").await_service()

    yield workload.follow("restored etcd", steps())


def _await_end(workload: Workload) -> None:
    """Wait until nobody is served at a Service's addresses."""
    wait_until(lambda: not any(map(answer, workload.fronts())), partial(str, workload.name), patience=PATIENCE)


OUTAGES = {"api": api_outage, "etcd": restored_etcd}
