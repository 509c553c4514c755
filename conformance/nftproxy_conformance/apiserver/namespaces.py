"""Namespaces: defaults, deletion, and the check that an object's Namespace exists.

There are no controllers, so a deleted Namespace stays `Terminating` and keeps its objects.
"""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy_conformance.apiserver.resources import Object, Target, resource_named
from nftproxy_conformance.apiserver.status import is_terminating, not_found
from nftproxy_conformance.apiserver.store import Store, timestamp
from nftproxy_conformance.apiserver.validation import Cause, label


def complete(document: Object) -> None:
    """Fill in the fields that every Namespace has."""
    document["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = document["metadata"]["name"]
    document.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    document.setdefault("status", {"phase": "Active"})


def causes(document: Object, old: Object | None) -> Iterator[Cause]:
    """Yield why a Namespace is denied."""
    del old
    yield from label("metadata.name", document["metadata"]["name"])


def terminate(document: Object) -> None:
    """Mark a Namespace as Terminating.  It stays so, as there is no controller that would finish the deletion."""
    document["metadata"].setdefault("deletionTimestamp", timestamp())
    document["status"] = {"phase": "Terminating"}


def check_open(store: Store, target: Target) -> None:
    """Check that an object may be created in its Namespace.

    Raises:
        ApiError: 404, the Namespace doesn't exist, or 403, it is being deleted.
    """
    if not target.resource.namespaced:
        return
    namespaces = resource_named("Namespace")
    found = store.get(namespaces, ("", target.namespace))
    if found is None:
        raise not_found(Target(namespaces, name=target.namespace))
    if "deletionTimestamp" in found.decoded()["metadata"]:
        raise is_terminating(target)
