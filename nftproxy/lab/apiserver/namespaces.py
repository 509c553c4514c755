"""Namespaces: what one begins with, how it goes, and that nothing is written into one that isn't there.

There are no controllers, so what is in a Namespace that is deleted stays, and the Namespace stays `Terminating`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from nftproxy.lab.apiserver.resources import Target, resource_named
from nftproxy.lab.apiserver.status import is_terminating, not_found
from nftproxy.lab.apiserver.store import Store
from nftproxy.lab.apiserver.validation import Cause, label

Object = dict[str, Any]


def complete(document: Object) -> None:
    """Fill in what every Namespace has."""
    document["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = document["metadata"]["name"]
    document.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    document.setdefault("status", {"phase": "Active"})


def causes(document: Object, old: Object | None) -> Iterator[Cause]:
    """Yield why a Namespace is denied."""
    del old
    yield from label("metadata.name", document["metadata"]["name"])


def terminate(document: Object) -> None:
    """Have it deleted, as far as that goes without controllers."""
    document["metadata"].setdefault("deletionTimestamp", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    document["status"] = {"phase": "Terminating"}


def check_open(store: Store, target: Target) -> None:
    """Let pass what may be created where it is to be.

    Raises:
        ApiError: 404, the Namespace isn't there; 403, it is being deleted.
    """
    if not target.resource.namespaced:
        return
    namespaces = resource_named("Namespace")
    found = store.get(namespaces, ("", target.namespace))
    if found is None:
        raise not_found(Target(namespaces, name=target.namespace))
    if "deletionTimestamp" in found.decoded()["metadata"]:
        raise is_terminating(target)
