"""The objects of `nftproxy manifests --reader`, for agents in any namespace."""

from __future__ import annotations

from nftproxy.deploy.daemonset import NAMESPACE

BESIDE_KUBE_PROXY = """\
---
# To see where kube-proxy is beside the agents.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: nftproxy-reader-of-kube-proxy
  namespace: {of_kube_proxy}
rules:
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: nftproxy-reader-of-kube-proxy
  namespace: {of_kube_proxy}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: nftproxy-reader-of-kube-proxy
subjects:
- kind: ServiceAccount
  name: nftproxy-reader
  namespace: {namespace}
- kind: Group
  name: nftproxy-readers
  apiGroup: rbac.authorization.k8s.io
"""
"""The right that is part of the agents' own namespace where that is kube-proxy's, too."""


def reader_objects(text: str, namespace: str) -> str:
    """Return the objects of a reader of the agents in a namespace, from those for `NAMESPACE`."""
    if namespace == NAMESPACE:
        return text
    further = BESIDE_KUBE_PROXY.format(of_kube_proxy=NAMESPACE, namespace=namespace)
    return text.replace(f": {NAMESPACE}\n", f": {namespace}\n").replace(f":{NAMESPACE}:", f":{namespace}:") + further
