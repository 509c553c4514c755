"""The formats of answers, by the Accept header: JSON, YAML and tables, without protobuf."""

from __future__ import annotations

from enum import Enum

import msgspec
import yaml

from nftproxy_conformance.apiserver.resources import Object, Resource
from nftproxy_conformance.apiserver.status import ApiError


class Format(Enum):
    """A format of answers, with its media type as value."""

    JSON = "application/json"
    YAML = "application/yaml"
    TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def negotiated(accept: str) -> Format:
    """The format that a client prefers among the supported formats.

    Raises:
        ApiError: 406, the client accepts none of them.
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
    """Convert an object or a list from JSON to another format."""
    if form is Format.JSON:
        return body
    document = msgspec.json.decode(body)
    if form is Format.YAML:
        return yaml.safe_dump(document).encode()
    return msgspec.json.encode(_table(document, resource)) + b"\n"


def _table(document: Object, resource: Resource) -> Object:
    """A table as kubectl requests it: cells for people, and the metadata of each object."""
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
"""The columns of Services (pkg/printers/internalversion).  The age is the time of creation."""
