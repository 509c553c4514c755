"""Puts nftproxy on the cluster, by the commands of examples/deploy/kubeadm.md."""

from __future__ import annotations

import subprocess
import sys

from tests.support.processes import CHECKOUT
from tests.support.waiting import wait_until
from tools.image.build import NAME
from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.control_plane import PATIENCE
from tools.kubernetes.layout import PODS, PODS6

CONFIG_MAP = CHECKOUT / "examples" / "deploy" / "kube-proxy.yaml"
KUBE_SYSTEM = "--namespace=kube-system"
AGENTS = "--selector=app.kubernetes.io/name=nftproxy"
ROLLOUT = f"--timeout={PATIENCE:.0f}s"


def config_map(url: str) -> str:
    """kube-proxy's ConfigMap as kubeadm makes it, for this cluster and nftables mode.

    The kernel lets only its first network namespace change nf_conntrack_max, so nobody is asked to.
    """
    changes = {
        "https://control-plane.example.com:6443": url,
        'mode: ""': "mode: nftables",
        "clusterCIDR: 10.244.0.0/16": f"clusterCIDR: {PODS},{PODS6}",
        "maxPerCore: null": "maxPerCore: 0",
        "min: null": "min: 0",
    }
    text = CONFIG_MAP.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, f"{CONFIG_MAP} has {old} {text.count(old)} times"
        text = text.replace(old, new)
    return text


def use_nftproxy(cluster: RealCluster) -> None:
    """Apply what `nftproxy manifests` prints for kube-proxy's ConfigMap, and wait until each node's agent is ready."""
    cluster.kubectl("apply", "--filename=-", text=config_map(cluster.control.url))
    found = cluster.kubectl(KUBE_SYSTEM, "get", "configmap", "kube-proxy", "--output=yaml")
    command = [sys.executable, "-m", "nftproxy", "manifests", "--image", NAME, "-"]
    done = subprocess.run(command, input=found, check=True, capture_output=True, text=True, cwd=CHECKOUT)
    cluster.kubectl("apply", "--filename=-", text=done.stdout)
    for node in cluster.nodes:
        await_agent(cluster, node.place.name)


def agent_of(cluster: RealCluster, node: str) -> str:
    """The pod of a node's only agent, with its kind."""
    query = (KUBE_SYSTEM, "get", "pods", AGENTS, f"--field-selector=spec.nodeName={node}", "--output=name")
    (pod,) = cluster.kubectl(*query).split()
    return pod


def await_agent(cluster: RealCluster, node: str) -> None:
    """Wait until a node's only agent is ready."""
    ready = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
    query = (KUBE_SYSTEM, "get", "pods", f"--field-selector=spec.nodeName={node}", f"--output=jsonpath={ready}")

    def is_ready() -> bool:
        return cluster.kubectl(*query, AGENTS) == "True"

    wait_until(is_ready, lambda: cluster.kubectl(KUBE_SYSTEM, "get", "pods", "--output=wide"), patience=PATIENCE)
