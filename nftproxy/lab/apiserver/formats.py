"""How an answer is written down: which form the Accept header asks for, and tables.

JSON, YAML and tables are there, protobuf isn't.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec
import yaml

from nftproxy.lab.apiserver.resources import Resource
from nftproxy.lab.apiserver.status import ApiError

Object = dict[str, Any]


class Format(Enum):
    """A form, by the media type that an answer in it has."""

    JSON = "application/json"
    YAML = "application/yaml"
    TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def negotiated(accept: str) -> Format:
    """The form that a client likes best, of those that there are.

    Raises:
        ApiError: 406, there is none.
    """
    clauses = [_clause(text) for text in (accept or "*/*").split(",")]
    for _, media, parameters in sorted(clauses, key=lambda clause: -clause[0]):
        if parameters.get("as") == "Table" and media == "application/json":
            return Format.TABLE
        if media in {"*/*", "application/*", "application/json"} and "as" not in parameters:
            return Format.JSON
        if media == "application/yaml":
            return Format.YAML
    raise ApiError(406, "only the following media types are accepted: application/json, application/yaml")


def _clause(text: str) -> tuple[float, str, dict[str, str]]:
    media, *rest = (part.strip() for part in text.split(";"))
    parameters = dict(part.split("=", 1) for part in rest if "=" in part)
    return float(parameters.pop("q", "1")), media, parameters


def formatted(body: bytes, form: Format, resource: Resource) -> bytes:
    """An object or a list, as JSON, in another form."""
    if form is Format.JSON:
        return body
    document = msgspec.json.decode(body)
    if form is Format.YAML:
        return yaml.safe_dump(document).encode()
    return msgspec.json.encode(_table(document, resource)) + b"\n"


def _table(document: Object, resource: Resource) -> Object:
    """A table as kubectl asks for it: with cells for a person, and of each object its metadata."""
    items = document.get("items", [document])
    metadata = document["metadata"] if "items" in document else {}
    cells = _SERVICE if resource.kind == "Service" else {"Name": _name, "Created At": _created}
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": "",
                "priority": int(name == "Selector"),
            }
            for name in cells
        ],
        "rows": [
            {
                "cells": [cell(item) for cell in cells.values()],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": item["metadata"],
                },
            }
            for item in items
        ],
    }


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])


def _created(item: Object) -> str:
    return str(item["metadata"]["creationTimestamp"])


def _external(item: Object) -> str:
    spec = item.get("spec", {})
    ingress = item.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    given = [each.get("ip") or each.get("hostname") for each in ingress] + (spec.get("externalIPs") or [])
    if spec.get("type") == "ExternalName":
        given = [spec.get("externalName")]
    return ",".join(given) or ("<pending>" if spec.get("type") == "LoadBalancer" else "<none>")


def _ports(item: Object) -> str:
    given = item.get("spec", {}).get("ports") or ()
    texts = (f"{p['port']}{':' + str(p['nodePort']) if p.get('nodePort') else ''}/{p['protocol']}" for p in given)
    return ",".join(texts) or "<none>"


def _selector(item: Object) -> str:
    selector = item.get("spec", {}).get("selector") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or "<none>"


_SERVICE = {
    "Name": _name,
    "Type": lambda item: str(item.get("spec", {}).get("type", "")),
    "Cluster-IP": lambda item: str(item.get("spec", {}).get("clusterIP") or "<none>"),
    "External-IP": _external,
    "Port(s)": _ports,
    "Age": _created,
    "Selector": _selector,
}
"""The columns of Services (pkg/printers/internalversion); the age is the time of creation."""
