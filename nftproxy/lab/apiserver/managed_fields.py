"""metadata.managedFields: who has written which fields, as every object that came over HTTP carries it.

It is as long as the rest of a small object, and clients have to read past it.
"""

from __future__ import annotations

from typing import Any

import msgspec

Object = dict[str, Any]

_BY_SERVER = {"uid", "creationTimestamp", "generation", "resourceVersion", "managedFields", "name", "namespace"}


def note_writer(metadata: Object, given: Object, api_version: str, manager: str, time: str) -> None:
    """Put an entry into an object's metadata.

    Args:
        metadata: of the object; who wrote before stays.
        given: what was written.
        api_version: in which form.
        manager: who wrote it: the product in the User-Agent.
        time: when.
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
