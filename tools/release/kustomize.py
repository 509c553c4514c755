"""A kustomize base with the objects of `nftproxy manifests`, and an overlay that shows what a cluster must set."""

from __future__ import annotations

from ipaddress import ip_network

from nftproxy.deploy.daemonset import DaemonSetOptions, configuration, deployed
from nftproxy.deploy.distributions import KUBEADM
from nftproxy.model.settings import Config
from nftproxy.sources.documents import to_yaml
from tools.release.chart import rendered_manifests

BASE = "resources: [agent.yaml]\n"
OVERLAY = """\
# Copy this file, and set the image, the API server as every node reaches it, and the configuration.
resources: [../base]
images:
- name: nftproxy
  newName: registry.example.com/nftproxy
  newTag: {version}
patches:
- patch: |
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {{name: nftproxy, namespace: kube-system}}
    spec:
      template:
        spec:
          containers:
          - name: nftproxy
            env:
            - {{name: KUBERNETES_SERVICE_HOST, value: api.example.com}}
            - {{name: KUBERNETES_SERVICE_PORT, value: "6443"}}
- patch: |
    apiVersion: v1
    kind: ConfigMap
    metadata: {{name: nftproxy, namespace: kube-system}}
    data:
      config.yaml: |
        apiVersion: kubeproxy.config.k8s.io/v1alpha1
        kind: KubeProxyConfiguration
        mode: nftables
        clusterCIDR: 10.244.0.0/16
        oomScoreAdj: -997
"""


def kustomize(version: str) -> dict[str, str]:
    """Return the files by their paths."""
    asked = DaemonSetOptions(
        KUBEADM,
        Config(cluster_cidrs=(ip_network("192.0.2.0/24"),)),
        api_server="https://set-me.invalid:6443",
        image=f"nftproxy:{version}",
    )
    return {
        "base/kustomization.yaml": BASE,
        "base/agent.yaml": rendered_manifests(asked, to_yaml([configuration(deployed(asked))])),
        "overlay/kustomization.yaml": OVERLAY.format(version=version),
    }
