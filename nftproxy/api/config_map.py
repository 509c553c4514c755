"""A ConfigMap that holds a KubeProxyConfiguration, as kubeadm and others give it to kube-proxy."""

from __future__ import annotations

from collections.abc import Mapping

from nftproxy.api.config import KIND


def text_in_config_map(document: object) -> str | None:
    """The configuration in a ConfigMap, whatever its key (`config.conf` of kubeadm, `config` of EKS).

    None if the document is no ConfigMap, or has none.
    """
    data = document.get("data") if isinstance(document, Mapping) and document.get("kind") == "ConfigMap" else None
    texts = data.values() if isinstance(data, Mapping) else ()
    return next((text for text in texts if isinstance(text, str) and KIND in text), None)
