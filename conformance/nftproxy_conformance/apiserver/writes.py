"""Writes over HTTP: create, update, patch and delete, with the API's checks.

`ApiServer.put` stores objects unchanged.  A write over HTTP follows the API's rules.  An object gets defaults, is
validated, and gets its addresses and ports.  An outdated resourceVersion is a conflict.  `/status` writes the status,
and nothing else does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from nftproxy_conformance.apiserver import events, namespaces, services, slices, versions
from nftproxy_conformance.apiserver.managed_fields import note_writer
from nftproxy_conformance.apiserver.resources import Object, Target
from nftproxy_conformance.apiserver.settings import Settings
from nftproxy_conformance.apiserver.status import (
    ApiError,
    already_exists,
    conflict,
    invalid_object,
    not_found,
    success,
)
from nftproxy_conformance.apiserver.store import Store, Stored, copied, timestamp
from nftproxy_conformance.apiserver.validation import Cause, required, subdomain

MERGE_PATCH = "application/merge-patch+json"

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""The letters of generated names (k8s.io/apimachinery, util/rand)."""

RULES: dict[str, ModuleType] = {"Service": services, "EndpointSlice": slices, "Event": events, "Namespace": namespaces}
"""The modules with defaults and validation of a kind.  For any other kind only the name is checked."""


class Write(NamedTuple):
    """The write of a client."""

    store: Store
    settings: Settings
    target: Target
    manager: str
    content_type: str
    body: bytes


class WriteResult(NamedTuple):
    """The answer to a write.  A warning goes into a header."""

    code: int
    body: bytes
    warning: str = ""


def create(write: Write) -> WriteResult:
    """POST: a new object, as it is stored."""
    namespaces.check_open(write.store, write.target)
    document = _document(write)
    given, metadata = copied(document), document["metadata"]
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + "".join(random.choices(SUFFIX_LETTERS, k=5))
    if not metadata.get("name"):
        raise invalid_object(write.target, "", [required("metadata.name")])
    if metadata.get("resourceVersion"):
        raise ApiError(400, "resourceVersion should not be set on objects to be created")
    if write.target.resource.kind == "Service":
        document.pop("status", None)  # unlike the other kinds, it is created without a status
    target = write.target._replace(name=metadata["name"])
    _complete(write, document)
    _check(write, target, document, None)
    if _found(write.store, target) is not None:
        raise already_exists(target)
    for name in ("uid", "creationTimestamp", "generation", "managedFields"):
        metadata.pop(name, None)
    _note_writer(write, document, given)
    body = write.store.put(target.resource, document).whole
    return WriteResult(201, body, services.warning(document) if target.resource.kind == "Service" else "")


def update(write: Write) -> WriteResult:
    """PUT: all of the object, or its status."""
    document = _document(write)
    if document["metadata"].setdefault("name", write.target.name) != write.target.name:
        raise ApiError(400, "the name of the object does not match the name on the URL")
    return WriteResult(200, _write(write, document, document))


def patch(write: Write) -> WriteResult:
    """PATCH: a JSON merge patch (RFC 7386) of the object or its status.  Other kinds of patch are refused."""
    if write.content_type != MERGE_PATCH:
        raise ApiError(415, f"the body of the request was in an unknown format - accepted media types: {MERGE_PATCH}")
    old, change = _existing(write.store, write.target), decoded(write.body)
    return WriteResult(200, _write(write, _merged(old.decoded(), change), change))


def delete(write: Write) -> WriteResult:
    """DELETE: removes the object at once, without finalizers and grace periods.  A Namespace becomes Terminating."""
    store, target = write.store, write.target
    old = _existing(store, target)
    document = old.decoded()
    if target.resource.kind == "Namespace":
        namespaces.terminate(document)
        return WriteResult(200, store.put(target.resource, document).whole)
    store.delete(target.resource, old.key)
    return WriteResult(200, success(target, document["metadata"]["uid"]))


WRITES: dict[str, Callable[[Write], WriteResult]] = {
    "create": create,
    "update": update,
    "patch": patch,
    "delete": delete,
}


def read(store: Store, target: Target) -> bytes:
    """GET of an object.

    Raises:
        ApiError: 404, it doesn't exist.
    """
    return _existing(store, target).whole


def _write(write: Write, document: Object, given: Object) -> bytes:
    target, old = write.target, _existing(write.store, write.target)
    version = document["metadata"].get("resourceVersion")
    if version and version != str(old.revision):
        raise conflict(target)
    before, given = old.decoded(), copied(given)
    if target.subresource:
        document = before | {"status": document.get("status", {})}
        versions.drop_unknown_fields(document, write.settings.version)
    else:
        if target.resource.has_status:
            document.pop("status", None)
            document |= {"status": before["status"]} if "status" in before else {}
        if target.resource.kind == "Service":
            services.keep_allocated(document, before)
        _complete(write, document)
        _check(write, target, document, before)
    for name in ("uid", "creationTimestamp", "managedFields"):
        if name in before["metadata"]:
            document["metadata"][name] = before["metadata"][name]
    if not target.subresource and _without_version(document) != _without_version(before):
        _note_writer(write, document, given)
    return write.store.put(target.resource, document).whole


def _complete(write: Write, document: Object) -> None:
    """Drop the fields that the server's version lacks, and fill in defaults."""
    versions.drop_unknown_fields(document, write.settings.version)
    rules = RULES.get(write.target.resource.kind)
    if rules is not None:
        rules.complete(document)


def _check(write: Write, target: Target, document: Object, before: Object | None) -> None:
    """Validate an object, and allocate its addresses and ports.

    Raises:
        ApiError: 422, with all causes.
    """
    rules = RULES.get(target.resource.kind)
    name = document["metadata"]["name"]
    found: list[Cause] = list(rules.causes(document, before) if rules else subdomain("metadata.name", name))
    found += versions.causes(document, write.settings.version)
    if not found and target.resource.kind == "Service":
        allocator = services.Allocator(write.settings, lambda: _others(write.store, target))
        found = list(allocator.allocate(document["spec"], (before or {}).get("spec", {})))
    if found:
        raise invalid_object(target, name, found)


def _others(store: Store, target: Target) -> Iterator[Object]:
    for stored in store.at(target.resource, store.revision):
        if stored.key != (target.namespace, target.name):
            yield stored.decoded().get("spec", {})


def _note_writer(write: Write, document: Object, given: Object) -> None:
    api_version = write.target.resource.api_version
    note_writer(document["metadata"], given, api_version, write.manager, timestamp())


def _without_version(document: Object) -> Object:
    metadata = {name: value for name, value in document["metadata"].items() if name != "resourceVersion"}
    return document | {"metadata": metadata}


def _found(store: Store, target: Target) -> Stored | None:
    return store.get(target.resource, (target.namespace, target.name))


def _existing(store: Store, target: Target) -> Stored:
    found = _found(store, target)
    if found is None:
        raise not_found(target)
    return found


def decoded(body: bytes) -> Object:
    """Parse the JSON object in a body.

    Raises:
        ApiError: 400, it isn't valid JSON.
    """
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the object provided is unrecognized: {error}") from error


def _document(write: Write) -> Object:
    """The object in a body, of the right kind and namespace."""
    if write.content_type not in {"application/json", ""}:
        raise ApiError(415, f"the body of the request was in an unknown format: {write.content_type}")
    document, resource = decoded(write.body), write.target.resource
    if document.get("kind", resource.kind) != resource.kind or document.get("apiVersion") not in {
        None,
        resource.api_version,
    }:
        raise ApiError(400, f"the object provided is no {resource.kind} of {resource.api_version}")
    metadata = document.setdefault("metadata", {})
    namespace = write.target.namespace
    if resource.namespaced and metadata.setdefault("namespace", namespace) != namespace:
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
