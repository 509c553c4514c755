"""Puts a service proxy on the cluster, by the commands of examples/deploy/kubeadm.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from nftproxy import __version__
from tests.support.processes import CHECKOUT
from tests.support.waiting import wait_until
from tools.image.build import NAME
from tools.kubernetes.cluster import RealCluster
from tools.kubernetes.control_plane import PATIENCE
from tools.kubernetes.layout import PODS, PODS6

KUBE_PROXY = Path(__file__).with_name("kube-proxy.yaml")
CONFIG_MAP = CHECKOUT / "examples" / "deploy" / "kube-proxy.yaml"
KUBE_SYSTEM = "--namespace=kube-system"
AGENTS = "--selector=app.kubernetes.io/name=nftproxy"
ROLLOUT = f"--timeout={PATIENCE:.0f}s"
NOT_NFTPROXY = {"matchExpressions": [{"key": "proxy", "operator": "NotIn", "values": ["nftproxy"]}]}


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


def deploy_kube_proxy(cluster: RealCluster) -> None:
    """Run kube-proxy on all nodes that have no label for nftproxy."""
    cluster.kubectl("apply", "--filename=-", text=config_map(cluster.control.url))
    cluster.kubectl("apply", "--filename=-", text=KUBE_PROXY.read_text())
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [NOT_NFTPROXY]}}
    change = {"spec": {"template": {"spec": {"affinity": {"nodeAffinity": required}}}}}
    cluster.kubectl(KUBE_SYSTEM, "patch", "daemonset", "kube-proxy", "--patch", json.dumps(change))
    cluster.kubectl(KUBE_SYSTEM, "rollout", "status", "daemonset/kube-proxy", ROLLOUT)


def deploy_nftproxy(cluster: RealCluster) -> None:
    """Apply what `nftproxy manifests` prints for kube-proxy's ConfigMap, for nodes with the label proxy=nftproxy."""
    cluster.kubectl("apply", "--filename=-", text=config_map(cluster.control.url))
    found = cluster.kubectl(KUBE_SYSTEM, "get", "configmap", "kube-proxy", "--output=yaml")
    command = [sys.executable, "-m", "nftproxy", "manifests", "--image", NAME, "--node-selector", "proxy=nftproxy", "-"]
    done = subprocess.run(command, input=found, check=True, capture_output=True, text=True, cwd=CHECKOUT)
    cluster.kubectl("apply", "--filename=-", text=done.stdout)


def switch(cluster: RealCluster, node: str) -> None:
    """Give a node the label, and wait until nftproxy is ready there."""
    cluster.kubectl("label", "node", node, "proxy=nftproxy")
    await_agent(cluster, node)


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


def use_nftproxy(cluster: RealCluster) -> None:
    """Run nftproxy on all nodes."""
    deploy_nftproxy(cluster)
    for node in cluster.nodes:
        switch(cluster, node.place.name)


def clean_up(cluster: RealCluster, node: str) -> str:
    """Remove kube-proxy's rules from a node by the pod of kubeadm.md, and return its log."""
    (text,) = [block for block in _blocks() if "name: nftproxy-cleanup" in block]
    pod = (
        text.replace("NODE", node)
        .replace(f"nftproxy:{__version__}", NAME)
        .replace("--kube-proxy, iptables", "--kube-proxy, nftables")
    )
    cluster.kubectl("apply", "--filename=-", text=pod)
    finished = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl(KUBE_SYSTEM, "wait", finished, "pod/nftproxy-cleanup", ROLLOUT)
    log = cluster.kubectl(KUBE_SYSTEM, "logs", "nftproxy-cleanup")
    cluster.kubectl(KUBE_SYSTEM, "delete", "pod", "nftproxy-cleanup")
    return log


def _blocks() -> list[str]:
    """The YAML of kubeadm.md."""
    parts = (CONFIG_MAP.with_name("kubeadm.md")).read_text().split("```yaml\n")[1:]
    return [part.partition("```")[0] for part in parts]
