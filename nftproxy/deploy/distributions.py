"""The differences between distributions: the API server's address, the pods' range, and how kube-proxy is turned off.

Each value has its source.  `Setting`s go into the distribution's own configuration, and docs/install.md shows them
to the letter.

A node must reach the API server without a Service, since ClusterIPs lead nowhere until this very agent has written its
rules.  Some distributions have a load balancer for that on each node, so the address is known.  For the rest an option
gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TAINT = "nftproxy.dev/not-ready"
"""The key of the startup taint in these settings.  Any key works."""

AVOIDED: Mapping[str, tuple[str, ...]] = {
    "eks.amazonaws.com/compute-type": ("fargate", "auto"),
    "liqo.io/type": ("virtual-node",),
    "type": ("virtual-kubelet",),
}
"""Values by label of nodes that can't run the agent, of any distribution.

Fargate's nodes take no DaemonSet (EKS' own kube-proxy avoids them).  Auto Mode's nodes have kube-proxy in their image,
beside the kubelet.  Nodes of virtual-kubelet have no kernel that could take rules.  Those of Liqo, which has a
virtual-kubelet of its own, have another label (TypeLabel and TypeNode in liqotech/liqo, pkg/consts), and a taint that
our pods tolerate.  A DaemonSet's pods stay in OffloadingBackOff there (liqotech/liqo#1398)."""


class Setting(NamedTuple):
    """A text, as YAML or shell, and the file or object that it goes into."""

    where: str
    text: str


class Distribution(NamedTuple):
    """A Kubernetes distribution: how kube-proxy is turned off there, and the values that its nodes have in common."""

    title: str
    off: Setting
    """Turns kube-proxy off for good."""
    then: str
    """The next step, as shell or in words."""
    taint: Setting
    """Sets the startup taint."""
    api_server: str = ""
    """A URL that reaches the API on every node, "" if an option has to give it."""
    ask_for_api: str = ""
    """Where an administrator finds that URL."""
    cluster_cidrs: str = ""
    """The pods' range by default, "" if an option has to give it."""
    cni: str = ""
    """The network plugin that it comes with, if that has no range of pods (model/pod_interfaces.py)."""


_DELETE = "kubectl --namespace kube-system delete daemonset,configmap kube-proxy"

KUBEADM = Distribution(
    title="kubeadm",
    ask_for_api="or both with kube-proxy's ConfigMap: kubectl --namespace kube-system get configmap kube-proxy -o yaml",
    # kubeadm-config.v1beta4 (Kubernetes 1.31): "Proxy.Disabled ... can be used to disable the ... kube-proxy addons".
    off=Setting(
        "the configuration of kubeadm init and upgrade, and kubeadm's ConfigMap kubeadm-config",
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nproxy:\n  disabled: true\n",
    ),
    then=_DELETE,
    taint=Setting(
        "the configuration of kubeadm join; for a control plane node beside its own taint",
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration:\n  taints:\n"
        f"  - key: {TAINT}\n    effect: NoSchedule\n",
    ),
)

# Its load balancer for clients is at this port of every node, server or agent (--lb-server-port, cilium#19038).  The
# proxy is part of the k3s process, and the option is the servers' (k3s server --help).
K3S = Distribution(
    title="k3s",
    api_server="https://127.0.0.1:6444",
    cluster_cidrs="10.42.0.0/16",
    off=Setting("/etc/rancher/k3s/config.yaml of every server", "disable-kube-proxy: true\n"),
    then="systemctl restart k3s on every server, and systemctl restart k3s-agent on every other node",
    taint=Setting("/etc/rancher/k3s/config.yaml of every node", f"node-taint:\n- {TAINT}=true:NoSchedule\n"),
)

# The API server, or on agents its load balancer, is at this port of every node (docs.rke2.io, Cilium without
# kube-proxy).  The proxy is a static pod, whose file stays when the option comes later (rancher/rancher#33785).
RKE2 = Distribution(
    title="RKE2",
    api_server="https://127.0.0.1:6443",
    cluster_cidrs="10.42.0.0/16",
    off=Setting("/etc/rancher/rke2/config.yaml of every server", "disable-kube-proxy: true\n"),
    then="systemctl restart rke2-server on every server, and "
    "rm /var/lib/rancher/rke2/agent/pod-manifests/kube-proxy.yaml on every node",
    taint=Setting("/etc/rancher/rke2/config.yaml of every node", f"node-taint:\n- {TAINT}=true:NoSchedule\n"),
)

# KubePrism, on by default since Talos 1.6 (docs.siderolabs.com, "Deploy Cilium CNI" and "KubePrism").  A worker may not
# change its own taints (NodeRestriction), so machine.nodeTaints won't do: the kubelet sets them when it registers.
TALOS = Distribution(
    title="Talos",
    api_server="https://localhost:7445",
    cluster_cidrs="10.244.0.0/16",
    off=Setting("the machine configuration of the control plane", "cluster:\n  proxy:\n    disabled: true\n"),
    then="kubectl --namespace kube-system delete daemonset kube-proxy",
    taint=Setting(
        "the machine configuration of every node",
        "machine:\n  kubelet:\n    extraConfig:\n      registerWithTaints:\n"
        f'      - key: {TAINT}\n        value: "true"\n        effect: NoSchedule\n',
    ),
)

# The proxy is a static pod with flags, so there is no ConfigMap (kops, docs/networking/cilium.md: kubeProxy.enabled).
KOPS = Distribution(
    title="kOps",
    ask_for_api="https://api.internal.CLUSTER, as in /var/lib/kube-proxy/kubeconfig of a node",
    off=Setting("the cluster's spec (kops edit cluster)", "spec:\n  kubeProxy:\n    enabled: false\n"),
    then="kops update cluster --yes && kops rolling-update cluster --yes",
    taint=Setting(
        "the spec of every instance group (kops edit instancegroup)",
        f'spec:\n  taints:\n  - "{TAINT}=true:NoSchedule"\n',
    ),
)

# For eksctl: addonsConfig.  For nodes of Amazon Linux 2023: nodeadm's NodeConfig.  EKS' own kube-proxy has no
# clusterCIDR, so that it drops packets of pods to load balancer addresses with externalTrafficPolicy Local on nodes
# without an endpoint (k/k#131765).  The pods' interfaces have a prefix of their own.
EKS = Distribution(
    title="EKS",
    ask_for_api="aws eks describe-cluster --name CLUSTER --query cluster.endpoint",
    cni="aws-vpc",
    off=Setting(
        "the configuration of eksctl for a new cluster",
        "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\naddonsConfig:\n  disableDefaultAddons: true\naddons:\n"
        "- name: vpc-cni\n- name: coredns\n",
    ),
    then="aws eks delete-addon --cluster-name CLUSTER --addon-name kube-proxy",
    taint=Setting(
        "the user data of nodes with Amazon Linux 2023 (NodeConfig)",
        "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n"
        "spec:\n  kubelet:\n    config:\n      registerWithTaints:\n"
        f"      - key: {TAINT}\n        effect: NoSchedule\n",
    ),
)

# The load balancer is at this port of each worker, once it is enabled (docs.k0sproject.io, "Node-local load
# balancing").  kubeProxy and podCIDR: docs.k0sproject.io, "Configuration options".  --taints: "Worker node config".
K0S = Distribution(
    title="k0s",
    ask_for_api="https://localhost:7443 with node-local load balancing, else the control plane's address",
    cluster_cidrs="10.244.0.0/16",
    off=Setting(
        "the ClusterConfig of every controller",
        "apiVersion: k0s.k0sproject.io/v1beta1\nkind: ClusterConfig\nspec:\n  network:\n    kubeProxy:\n"
        "      disabled: true\n    nodeLocalLoadBalancing:\n      enabled: true\n",
    ),
    then="k0s stop && k0s start on every controller",
    taint=Setting(
        "the configuration of k0sctl; without k0sctl the option --taints of k0s install worker",
        "apiVersion: k0sctl.k0sproject.io/v1beta1\nkind: Cluster\nspec:\n  hosts:\n  - role: worker\n"
        f"    installFlags:\n    - --taints={TAINT}=true:NoSchedule\n",
    ),
)

# kube-proxy can be configured, a preview, and turned off where the cluster has a network plugin of its own
# (learn.microsoft.com, "Configure kube-proxy").  AKS sets nodeTaints again, and these not ("Use node taints").
AKS = Distribution(
    title="AKS",
    ask_for_api="https://FQDN, as az aks show --resource-group GROUP --name CLUSTER --query fqdn prints",
    off=Setting("kube-proxy.json", '{"enabled": false}\n'),
    then="az aks update --resource-group GROUP --name CLUSTER --kube-proxy-config kube-proxy.json",
    taint=Setting(
        "the properties of every agent pool in the cluster's template",
        f'nodeInitializationTaints:\n- "{TAINT}=true:NoSchedule"\n',
    ),
)

DISTRIBUTIONS = {
    "kubeadm": KUBEADM,
    "k3s": K3S,
    "rke2": RKE2,
    "talos": TALOS,
    "kops": KOPS,
    "eks": EKS,
    "k0s": K0S,
    "aks": AKS,
}
"""By the value of `--for`."""


class Impossible(NamedTuple):
    """A distribution that doesn't let its service proxy be turned off."""

    title: str
    why: str


# GKE: each node's image starts kube-proxy as a static pod, or Dataplane V2 is there (cloud.google.com, "GKE Dataplane
# V2").  OpenShift: docs.redhat.com, "Cluster Network Operator", also for ROSA and ARO.  MicroK8s: the snap's process
# kubelite has the kubelet and kube-proxy (run-kubelite-with-args).  DOKS: docs.digitalocean.com, "The Managed Elements
# of DigitalOcean Kubernetes".
IMPOSSIBLE = {
    "gke": Impossible("GKE", "no documented way turns off kube-proxy or Dataplane V2"),
    "openshift": Impossible("OpenShift", "OVN-Kubernetes serves Services"),
    "microk8s": Impossible("MicroK8s", "kube-proxy is part of kubelite"),
    "doks": Impossible("DOKS", "its managed Cilium may not be changed"),
}
"""By the value of `--for` that is an error."""
