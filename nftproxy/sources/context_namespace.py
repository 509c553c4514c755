"""The namespace of a kubeconfig's context, which kubectl takes for a name without one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nftproxy.sources.reading import LARGEST_CONFIG, read_bounded

DEFAULT_NAMESPACE = "default"
"""The namespace without a context, as in kubectl."""
DEFAULT_KUBECONFIG = "~/.kube/config"
"""kubectl's kubeconfig (client-go, tools/clientcmd, RecommendedHomeFile)."""


def context_namespace(kubeconfig: Path | None = None, context: str = "") -> str:
    """Return the namespace of a context, by default of the current one of kubectl's kubeconfig.

    Only a convenience: a kubeconfig that can't be read is as none.
    """
    places = [str(kubeconfig)] if kubeconfig else os.environ.get("KUBECONFIG", DEFAULT_KUBECONFIG).split(":")
    found = list(_documents(places))
    current = context or next((each["current-context"] for each in found if each.get("current-context")), "")
    contexts = (entry for each in found for entry in each.get("contexts") or () if isinstance(entry, Mapping))
    chosen = next((entry.get("context") for entry in contexts if entry.get("name") == current), None)
    namespace = chosen.get("namespace") if isinstance(chosen, Mapping) else None
    return namespace if isinstance(namespace, str) and namespace else DEFAULT_NAMESPACE


def _documents(places: list[str]) -> Iterator[Mapping[str, Any]]:
    for place in places:
        try:
            text = read_bounded(Path(place).expanduser(), LARGEST_CONFIG).decode()
        except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home
            continue
        from nftproxy.sources.documents import yaml_documents  # with YAML, which a node without kubeconfig never needs

        yield from (each.value for each in yaml_documents(text) if isinstance(each.value, Mapping))
