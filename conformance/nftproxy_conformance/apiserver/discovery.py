"""Discovery: the server's version, its groups and its resources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from nftproxy_conformance.apiserver.resources import RESOURCES, Resource
from nftproxy_conformance.apiserver.versions import resources

NOT_FOUND = b"404 page not found\n"
"""The plain text at a path of no group."""

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def discovery_body(path: str, version: str) -> bytes | None:
    """The JSON at a path of discovery or health, or None.

    Args:
        path: without a slash at its end.
        version: the server's, such as v1.35.0.
    """
    if path in {"/healthz", "/livez", "/readyz"}:
        return b"ok"
    if path == "/version":
        return msgspec.json.encode(_version(version))
    document = _documents(version).get(path)
    return None if document is None else msgspec.json.encode(document)


def is_of_known_group(path: str) -> bool:
    """True if a path is below an API group of the server, in any version."""
    first, group = [*path.split("/"), "", ""][1:3]
    return first == "api" or (first == "apis" and group in {resource.group for resource in RESOURCES})


def _version(version: str) -> dict[str, str]:
    major, minor, *_ = version.removeprefix("v").split(".")
    return {"major": major, "minor": minor, "gitVersion": version, "platform": "linux/amd64"}


def _documents(version: str) -> dict[str, dict[str, Any]]:
    served = resources(version)
    groups = list(dict.fromkeys(resource.group for resource in RESOURCES if resource.group))
    entries = {f"/apis/{name}": _group(name) for name in groups}
    documents: dict[str, dict[str, Any]] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(entries.values())},
        "/api/v1": _resource_list("v1", "", served),
    }
    documents |= {path: {"kind": "APIGroup", "apiVersion": "v1"} | entry for path, entry in entries.items()}
    return documents | {f"/apis/{name}/v1": _resource_list(f"{name}/v1", name, served) for name in groups}


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resource_list(api_version: str, group: str, served: Sequence[Resource]) -> dict[str, Any]:
    resources = [entry for resource in served if resource.group == group for entry in _entries(resource)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}


def _entries(resource: Resource) -> list[dict[str, Any]]:
    own = {"name": resource.plural, "singularName": resource.kind.lower(), "namespaced": resource.namespaced}
    entry = own | {"kind": resource.kind, "verbs": VERBS}
    if resource.short_name:
        entry["shortNames"] = [resource.short_name]
    below = [(f"{resource.plural}/{name}", "PodExecOptions", ["create", "get"]) for name in resource.connects]
    if resource.has_status:
        below.append((f"{resource.plural}/status", resource.kind, ["get", "patch", "update"]))
    return [
        entry,
        *(own | {"name": name, "singularName": "", "kind": kind, "verbs": verbs} for name, kind, verbs in below),
    ]
