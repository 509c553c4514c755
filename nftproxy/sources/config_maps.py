"""kube-proxy's configuration where a cluster has it: in ConfigMaps.

kubeadm has one with the keys config.conf and kubeconfig.conf, EKS two (kube-proxy-config and kube-proxy) with the keys
config and kubeconfig.  So names don't count: each value is taken for what it says it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from nftproxy.api.config import KIND
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.sources.documents import yaml_documents

Object = Mapping[object, object]


def unfolded(documents: Iterable[object], source: str) -> Iterator[Object]:
    """What these documents are, or what is in the ConfigMaps that they are, lists of such included.

    `source` is the file that they are from.

    Raises:
        BadInput: a KubeProxyConfiguration in a ConfigMap can't be read.
    """
    for document in documents:
        if isinstance(document, Mapping):
            items = document.get("items")
            for each in items if isinstance(items, list) else [document]:
                if isinstance(each, Mapping):
                    yield from _inside(each, source)


def configurations(objects: Iterable[Object]) -> list[Object]:
    """The KubeProxyConfigurations among them."""
    return [each for each in objects if each.get("kind") == KIND]


def servers(objects: Iterable[Object]) -> Iterator[str]:
    """The API servers' URLs in the kubeconfigs among them."""
    for kubeconfig in objects:
        clusters = kubeconfig.get("clusters") if kubeconfig.get("kind") == "Config" else None
        for each in clusters if isinstance(clusters, list) else []:
            cluster = each.get("cluster") if isinstance(each, Mapping) else None
            server = cluster.get("server") if isinstance(cluster, Mapping) else None
            if isinstance(server, str):
                yield server


def _inside(given: Object, source: str) -> Iterator[Object]:
    if given.get("kind") != "ConfigMap":
        yield given
        return
    data = given.get("data")
    for key, text in data.items() if isinstance(data, Mapping) else ():
        for document in yaml_documents(text) if isinstance(text, str) else ():
            if document.fault and KIND in text:
                field = f"data[{key}]"
                raise BadInput([Problem(source, "ConfigMap", field, document.fault, Code.CONFIGURATION_UNREADABLE)])
            if isinstance(document.value, Mapping):
                yield document.value
