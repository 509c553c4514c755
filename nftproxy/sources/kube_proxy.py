"""What a cluster's own kube-proxy is configured with, from its ConfigMaps.

    kubectl --namespace kube-system get configmap kube-proxy --output yaml

kubeadm has one ConfigMap with the keys config.conf and kubeconfig.conf, EKS two (kube-proxy-config and kube-proxy) with
the keys config and kubeconfig.  So names don't count: each value is taken for what it says it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from nftproxy.api.config import KIND
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.sources.documents import yaml_documents
from nftproxy.sources.files import read_documents


class KubeProxy(NamedTuple):
    """A KubeProxyConfiguration as decoded, and the API server's URL in the kubeconfig; "" if there is none."""

    config: object
    server: str


def read_kube_proxy(path: Path) -> KubeProxy:
    """What the ConfigMaps in a file say; "-" is standard input.

    Raises:
        BadInput: the file or a ConfigMap can't be read, or there is not one KubeProxyConfiguration among them.
    """
    configs: list[object] = []
    servers: list[str] = []
    for value in _values(path):
        if value.get("kind") == KIND:
            configs.append(value)
        elif value.get("kind") == "Config":
            servers += _servers(value)
    if len(configs) != 1:
        raise _unusable(path, "", f"has {len(configs)} {KIND}s in ConfigMaps where one is needed")
    return KubeProxy(configs[0], servers[0] if servers else "")


def _unusable(path: Path, field: str, why: str) -> BadInput:
    return BadInput([Problem(str(path), "ConfigMap" if field else "", field, why, Code.MANIFESTS_INCOMPLETE)])


def _values(path: Path) -> Iterator[Mapping[object, object]]:
    """Everything that is YAML in the ConfigMaps, and a document that is itself a KubeProxyConfiguration."""
    for document in read_documents(path):
        if not isinstance(document, Mapping):
            continue
        items = document.get("items")
        for each in items if isinstance(items, list) else [document]:
            if isinstance(each, Mapping):
                yield from _of_object(path, each)


def _of_object(path: Path, given: Mapping[object, object]) -> Iterator[Mapping[object, object]]:
    if given.get("kind") == KIND:
        yield given
    data = given.get("data")
    if given.get("kind") != "ConfigMap" or not isinstance(data, Mapping):
        return
    for key, text in data.items():
        for document in yaml_documents(text) if isinstance(text, str) else ():
            if document.fault:
                raise _unusable(path, f"data[{key}]", document.fault)
            if isinstance(document.value, Mapping):
                yield document.value


def _servers(kubeconfig: Mapping[object, object]) -> Iterator[str]:
    """The URLs of a kubeconfig's clusters."""
    clusters = kubeconfig.get("clusters")
    for each in clusters if isinstance(clusters, list) else []:
        cluster = each.get("cluster") if isinstance(each, Mapping) else None
        server = cluster.get("server") if isinstance(cluster, Mapping) else None
        if isinstance(server, str):
            yield server
