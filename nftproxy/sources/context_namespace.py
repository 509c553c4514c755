"""The namespace of a kubeconfig's context, which kubectl takes for a name without one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nftproxy.sources.reading import LARGEST_CONFIG, read_bounded

if TYPE_CHECKING:
    from nftproxy.sources.kubeconfig import Kubeconfig

DEFAULT_NAMESPACE = "default"
"""The namespace without a context, as in kubectl."""
DEFAULT_KUBECONFIG = "~/.kube/config"
"""kubectl's kubeconfig (client-go, tools/clientcmd, RecommendedHomeFile)."""


def context_namespace(kubeconfig: Path | None = None, context: str = "") -> str:
    """Return the namespace of a context, by default of the current one of kubectl's kubeconfig.

    Only a convenience: a kubeconfig that can't be read is as none.  Unlike in kubectl, a pod's own namespace isn't the
    default (POD_NAMESPACE, or the file `namespace` of its service account): the pods in which people run commands are
    the agents', and their namespace is seldom that of the Service.
    """
    places = [str(kubeconfig)] if kubeconfig else (os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG).split(":")
    found = list(_kubeconfigs(places))
    current = context or next((each.current_context for each in found if each.current_context), "")
    contexts = (part for each in found for part in each.contexts if part)
    chosen = next((part.context for part in contexts if part.name == current), None)
    namespace = chosen.get("namespace") if isinstance(chosen, Mapping) else None
    return namespace if isinstance(namespace, str) and namespace else DEFAULT_NAMESPACE


def _kubeconfigs(places: list[str]) -> Iterator[Kubeconfig]:
    for place in places:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # RuntimeError: there is no home
            data = read_bounded(Path(place).expanduser(), LARGEST_CONFIG)
            from nftproxy.sources.kubeconfig import parse_kubeconfig  # with YAML, which a node without file never needs

            yield parse_kubeconfig(data)
