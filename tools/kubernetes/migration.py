"""From kube-proxy to nftproxy, node by node and under traffic, by the commands of examples/deploy/kubeadm.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.deployment import clean_up, deploy_kube_proxy, deploy_nftproxy, switch
from tools.kubernetes.workload import Workload
from tools.migration.switch import Account


def migrate(cluster: RealCluster) -> Account:
    """Run kube-proxy on all nodes, then replace it node by node."""
    deploy_kube_proxy(cluster)
    deploy_nftproxy(cluster)
    workload = Workload(cluster, "migration", 0)
    return workload.follow("nftables", _steps(cluster))


def _steps(cluster: RealCluster) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "kube-proxy on all nodes", lambda: None
    for name in (node.place.name for node in cluster.nodes):
        yield f"{name}: nftproxy", partial(switch, cluster, name)
        yield f"{name}: cleanup", partial(clean_up, cluster, name)
