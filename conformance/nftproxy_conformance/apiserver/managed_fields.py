"""metadata.managedFields: the writers of fields, as in every object written over HTTP.

It is as long as the rest of a small object, and clients must skip it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nftproxy_conformance.apiserver.resources import Object

_BY_SERVER = {"uid", "creationTimestamp", "generation", "resourceVersion", "managedFields", "name", "namespace"}


def note_writer(metadata: Object, given: Object, api_version: str, manager: str, time: str) -> None:
    """Add a writer to an object's metadata.

    Args:
        metadata: of the object, with earlier writers.
        given: the written object.
        api_version: its version.
        manager: the writer: the product in the User-Agent.
        time: of the write.
    """
    own = {name: value for name, value in given.get("metadata", {}).items() if name not in _BY_SERVER}
    written = {name: value for name, value in given.items() if name not in {"kind", "apiVersion", "metadata", "status"}}
    entry = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": _fields(written | ({"metadata": own} if own else {})),
    }
    others = [each for each in metadata.get("managedFields") or () if each["manager"] != manager]
    metadata["managedFields"] = [*others, entry]


def _fields(value: Any) -> Object:
    if isinstance(value, dict):
        return {f"f:{name}": _fields(inner) for name, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, dict) and "port" in item for item in value):
        keys = [{name: item[name] for name in ("port", "protocol") if name in item} for item in value]
        return {f"k:{msgspec.json.encode(key).decode()}": _fields(item) for key, item in zip(keys, value, strict=True)}
    return {}
