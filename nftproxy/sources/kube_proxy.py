"""What a cluster's own kube-proxy is configured with.

kubectl --namespace kube-system get configmap kube-proxy --output yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from nftproxy.api.config import KIND
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.sources.config_maps import configurations, servers, unfolded
from nftproxy.sources.files import read_documents


class KubeProxy(NamedTuple):
    """A KubeProxyConfiguration as decoded, and the API server's URL in the kubeconfig; "" if there is none."""

    config: object
    server: str


def read_kube_proxy(path: Path) -> KubeProxy:
    """What the ConfigMaps in a file say, or a KubeProxyConfiguration that it is; "-" is standard input.

    Raises:
        BadInput: the file or a ConfigMap can't be read, or there is not one KubeProxyConfiguration among them.
    """
    objects = list(unfolded(read_documents(path), str(path)))
    configs = configurations(objects)
    if len(configs) != 1:
        why = f"has {len(configs)} {KIND}s where one is needed"
        raise BadInput([Problem(str(path), "", "", why, Code.MANIFESTS_INCOMPLETE)])
    return KubeProxy(configs[0], next(servers(objects), ""))
