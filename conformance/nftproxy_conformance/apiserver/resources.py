"""The resources of the server, a row each, and their paths.

A new resource is a new row.  No other module knows resources by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Object = dict[str, Any]
"""An object of the API as decoded JSON."""

_VERSION = "v1"  # of every group; older versions aren't served


@dataclass(frozen=True, eq=False)
class Resource:
    """A kind of object, and its URLs.

    Args:
        group: the API group, "" for core.
        plural: its name in URLs, RBAC and errors.
        kind: the kind of its objects.
        namespaced: whether its objects are in namespaces.
        has_generation: whether metadata.generation counts changes of the desired state.
        has_status: whether it has a `/status` subresource.
        fields: the fields for field selectors, besides metadata.name and metadata.namespace.
        empty: the fields of an empty object as JSON, as in a bookmark.
        short_name: kubectl's short name.
        connects: the subresources that clients open a connection to.
    """

    group: str
    plural: str
    kind: str
    namespaced: bool
    has_status: bool = False
    has_generation: bool = False
    fields: tuple[str, ...] = ()
    empty: str = ""
    short_name: str = ""
    connects: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """The apiVersion of objects of this kind."""
        return f"{self.group}/{_VERSION}" if self.group else _VERSION

    @property
    def opening(self) -> bytes:
        """The start of an object's JSON.  Items of lists are sent without it."""
        return f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'.encode()

    def bookmark(self, revision: int, annotations: Mapping[str, str] | None = None) -> bytes:
        """The line of a BOOKMARK event."""
        note = f',"annotations":{json.dumps(annotations, separators=(",", ":"))}' if annotations else ""
        rest = f'"metadata":{{"resourceVersion":"{revision}"{note}}}{self.empty}}}'
        return b'{"type":"BOOKMARK","object":' + self.opening + rest.encode() + b"}\n"


RESOURCES = (
    Resource(
        "", "namespaces", "Namespace", namespaced=False, has_status=True, short_name="ns",
        fields=("status.phase",), empty=',"spec":{},"status":{}',
    ),
    Resource(
        "", "services", "Service", namespaced=True, has_status=True, short_name="svc",
        fields=("spec.clusterIP", "spec.type"), empty=',"spec":{},"status":{"loadBalancer":{}}',
    ),
    Resource(
        "", "nodes", "Node", namespaced=False, has_status=True, short_name="no",
        fields=("spec.unschedulable",),
        empty=',"spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"machineID":""}}',
    ),
    Resource(
        "", "pods", "Pod", namespaced=True, has_status=True, short_name="po", connects=("exec",),
        fields=("spec.nodeName", "status.phase"), empty=',"spec":{"containers":null},"status":{}',
    ),
    Resource(
        "discovery.k8s.io", "endpointslices", "EndpointSlice", namespaced=True, has_generation=True,
        empty=',"addressType":"","endpoints":null,"ports":null',
    ),
    Resource(
        "networking.k8s.io", "servicecidrs", "ServiceCIDR", namespaced=False, has_status=True,
        empty=',"spec":{},"status":{}',
    ),
    Resource(
        "events.k8s.io", "events", "Event", namespaced=True, short_name="ev",
        fields=("reason", "type", "regarding.kind", "regarding.name", "regarding.namespace"),
        empty=',"eventTime":null,"regarding":{},"deprecatedSource":{}',
    ),
)  # fmt: skip

_BY_NAME = {name: resource for resource in RESOURCES for name in (resource.kind, resource.plural)}
_BY_PATH = {(resource.group, resource.plural): resource for resource in RESOURCES}
_PATH = re.compile(
    r"(?:/api|/apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?"
)


class Target(NamedTuple):
    """The target of a path: the objects of a resource, or a single object.

    The namespace is "" for all of them, the name "" for all objects, and the subresource "" for the object itself.
    """

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def rbac_resource(self) -> str:
        """The name of the resource in a Role: `services`, `services/status`."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


def resource_named(name: str) -> Resource:
    """A resource by its kind or plural.

    Raises:
        KeyError: the server lacks it.
    """
    return _BY_NAME[name]


def resource_of(document: Mapping[str, Any]) -> Resource:
    """The resource of an object that names its kind.

    Raises:
        KeyError: the server lacks it.
    """
    return _BY_NAME[document["kind"]]


def target_of(path: str) -> Target | None:
    """The target of a path, or None if the path isn't a resource's."""
    match = _PATH.fullmatch(path)
    if match is None or match["version"] != _VERSION:
        return None
    resource = _BY_PATH.get((match["group"] or "", match["plural"]))
    if resource is None or (match["namespace"] and not resource.namespaced):
        return None
    if match["name"] and resource.namespaced and not match["namespace"]:
        return None
    has_status = match["subresource"] == "status" and resource.has_status
    if match["subresource"] and not (has_status or match["subresource"] in resource.connects):
        return None
    return Target(resource, match["namespace"] or "", match["name"] or "", match["subresource"] or "")
