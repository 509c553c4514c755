"""Writes over HTTP: create, update, patch and delete, with the checks that make a client try again.

What `ApiServer.put` writes is what it is given; these are the API's rules instead: a resourceVersion that has passed is
a conflict, the status is written through `/status` only, and nothing else is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from tests.support.apiserver.resources import Target
from tests.support.apiserver.status import ApiError, already_exists, conflict, not_found, success
from tests.support.apiserver.store import Object, Store, Stored

MERGE_PATCH = "application/merge-patch+json"

_suffixes = itertools.count(1)


def create(store: Store, target: Target, content_type: str, body: bytes) -> tuple[int, bytes]:
    """POST: a new object; returns the status and the object as it is stored."""
    document = _document(target, content_type, body)
    metadata = document["metadata"]
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = f"{metadata['generateName']}{next(_suffixes):05}"
    if not metadata.get("name"):
        raise ApiError(422, f"{target.resource.kind} is invalid: metadata.name: Required value: name is required")
    if metadata.get("resourceVersion"):
        raise ApiError(400, "resourceVersion should not be set on objects to be created")
    if target.resource.kind == "Service":
        document.pop("status", None)  # of these here, the only one that is created without
    target = target._replace(name=metadata["name"])
    if _found(store, target) is not None:
        raise already_exists(target)
    for name in ("uid", "creationTimestamp", "generation"):
        metadata.pop(name, None)
    return 201, store.put(target.resource, document).whole


def update(store: Store, target: Target, content_type: str, body: bytes) -> tuple[int, bytes]:
    """PUT: all of the object, or its status."""
    document = _document(target, content_type, body)
    if document["metadata"].setdefault("name", target.name) != target.name:
        raise ApiError(400, "the name of the object does not match the name on the URL")
    return 200, _write(store, target, document)


def patch(store: Store, target: Target, content_type: str, body: bytes) -> tuple[int, bytes]:
    """PATCH: a JSON merge patch (RFC 7386) of the object, or of its status; no other kind is known."""
    if content_type != MERGE_PATCH:
        raise ApiError(415, f"the body of the request was in an unknown format - accepted media types: {MERGE_PATCH}")
    old = _existing(store, target)
    return 200, _write(store, target, _merged(old.decoded(), _decoded(body)))


def delete(store: Store, target: Target, content_type: str, body: bytes) -> tuple[int, bytes]:
    """DELETE: the object, at once, whatever finalizers and grace periods say."""
    del content_type, body
    old = _existing(store, target)
    store.delete(target.resource, old.key)
    return 200, success(target, old.decoded()["metadata"]["uid"])


WRITES: dict[str, Callable[[Store, Target, str, bytes], tuple[int, bytes]]] = {
    "create": create,
    "update": update,
    "patch": patch,
    "delete": delete,
}


def read(store: Store, target: Target) -> bytes:
    """GET of one object.

    Raises:
        ApiError: 404, it isn't there.
    """
    return _existing(store, target).whole


def _write(store: Store, target: Target, document: Object) -> bytes:
    old = _existing(store, target)
    given = document["metadata"].get("resourceVersion")
    if given and given != str(old.revision):
        raise conflict(target)
    before = old.decoded()
    if target.subresource:
        document = before | {"status": document.get("status", {})}
    elif target.resource.has_status:
        document.pop("status", None)
        document |= {"status": before["status"]} if "status" in before else {}
    for name in ("uid", "creationTimestamp"):
        document["metadata"][name] = before["metadata"][name]
    return store.put(target.resource, document).whole


def _found(store: Store, target: Target) -> Stored | None:
    return store.get(target.resource, (target.namespace, target.name))


def _existing(store: Store, target: Target) -> Stored:
    found = _found(store, target)
    if found is None:
        raise not_found(target)
    return found


def _decoded(body: bytes) -> Object:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the object provided is unrecognized: {error}") from error


def _document(target: Target, content_type: str, body: bytes) -> Object:
    """The object in a body, of the right kind and namespace."""
    if content_type not in {"application/json", ""}:
        raise ApiError(415, f"the body of the request was in an unknown format: {content_type}")
    document = _decoded(body)
    resource = target.resource
    if document.get("kind", resource.kind) != resource.kind or document.get("apiVersion") not in {
        None,
        resource.api_version,
    }:
        raise ApiError(400, f"the object provided is no {resource.kind} of {resource.api_version}")
    metadata = document.setdefault("metadata", {})
    if resource.namespaced and metadata.setdefault("namespace", target.namespace) != target.namespace:
        raise ApiError(400, "the namespace of the provided object does not match the namespace sent on the request")
    return document


def _merged(old: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
