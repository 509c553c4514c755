"""The objects of a cluster of any size, as an API server has them: with the metadata that real ones carry.

Service `s7` is at the eighth address of 10.96.0.0/13, its pods are at addresses of 10.0.0.0/10, and its one
EndpointSlice is `s7-1`.  The pods are on a thousand nodes in turn, and the one that is measured is the first.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Object = dict[str, Any]

NAMESPACE = "crowd"
NODE = "node-0"
CLUSTER_CIDR, SERVICE_CIDR = "10.0.0.0/10", "10.96.0.0/13"
NODES = 1000
ADDRESSES, STEP = (
    4194023,
    2654435761,
)  # a prime just below what 10.0.1.0 to 10.63.255.255 has, and where the next pod is
SPARE = 1 << 21  # the number of the first pod that no Service has at the beginning

SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


class Size(NamedTuple):
    """How many Services a cluster has, and how many endpoints each of them."""

    services: int
    endpoints: int

    def __str__(self) -> str:
        return f"{self.services:,} x {self.endpoints:,}"


class Pod(NamedTuple):
    """An endpoint: the number determines address and node."""

    number: int
    is_ready: bool = True

    @property
    def address(self) -> str:
        """Its IPv4 address; those of a Service have no order, as pods of all nodes have none."""
        return _address(0, self.number * STEP % ADDRESSES + 256)


def vip(service: int) -> str:
    """The ClusterIP of a Service."""
    return _address(96, service + 1)


def _address(first: int, number: int) -> str:
    return f"10.{first + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def pods(size: Size, service: int) -> list[Pod]:
    """The endpoints that a Service has at the beginning."""
    return [Pod(service * size.endpoints + each) for each in range(size.endpoints)]


def objects(size: Size) -> Iterator[Object]:
    """All objects of a cluster."""
    yield {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": [SERVICE_CIDR]},
    }
    yield {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": "a"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.2"}]},
    }
    for number in range(size.services):
        yield service(number)
        yield slice_of(number, pods(size, number))


def write(size: Size, path: Path) -> Path:
    """Write a cluster to a file of JSON, a List; returns its path."""
    with path.open("w") as file:
        file.write('{"apiVersion": "v1", "kind": "List", "items": [\n')
        for number, each in enumerate(objects(size)):
            file.write(",\n" * bool(number) + json.dumps(each))
        file.write("\n]}\n")
    return path


def service(number: int) -> Object:
    """A Service."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata("Service", f"s{number}", {"app": f"s{number}"}, _SERVICE_FIELDS),
        "spec": {
            "clusterIP": vip(number),
            "clusterIPs": [vip(number)],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}],
            "selector": {"app": f"s{number}"},
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    }


def slice_of(number: int, endpoints: Sequence[Pod], part: int = 1) -> Object:
    """An EndpointSlice of a Service; the API allows 1,000 endpoints in one (discovery.k8s.io/v1, maxEndpoints)."""
    name = f"s{number}"
    labels = {
        "app": name,
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        "kubernetes.io/service-name": name,
    }
    metadata = _metadata("EndpointSlice", f"{name}-{part}", labels, _SLICE_FIELDS)
    owner = {"apiVersion": "v1", "blockOwnerDeletion": True, "controller": True, "kind": "Service", "name": name}
    metadata["ownerReferences"] = [owner | {"uid": _uid("Service", name)}]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [_endpoint(name, pod) for pod in endpoints],
    }


def _endpoint(service_name: str, pod: Pod) -> Object:
    name = f"{service_name}-{pod.number:x}"
    return {
        "addresses": [pod.address],
        "conditions": {"ready": pod.is_ready, "serving": pod.is_ready, "terminating": False},
        "nodeName": f"node-{pod.number % NODES}",
        "targetRef": {"kind": "Pod", "name": name, "namespace": NAMESPACE, "uid": _uid("Pod", name)},
        "zone": "abc"[pod.number % 3],
    }


def _metadata(kind: str, name: str, labels: dict[str, str], fields: Object) -> Object:
    return {
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": labels,
        "managedFields": [fields],
        "name": name,
        "namespace": NAMESPACE,
        "uid": _uid(kind, name),
    }


def _uid(kind: str, name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{kind}/{name}"))


def _managed(manager: str, api_version: str, fields: Object) -> Object:
    return {
        "apiVersion": api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
        "manager": manager,
        "operation": "Update",
        "time": "2026-01-01T00:00:00Z",
    }


# What API servers of today send with every object, and a proxy has to read past.
_SERVICE_FIELDS = _managed(
    "kubectl-create",
    "v1",
    {
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {
            "f:internalTrafficPolicy": {},
            "f:ports": {
                ".": {},
                'k:{"port":80,"protocol":"TCP"}': {
                    ".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {},
                },
            },
            "f:selector": {},
            "f:sessionAffinity": {},
            "f:type": {},
        },
    },
)  # fmt: skip
_SLICE_FIELDS = _managed(
    "kube-controller-manager",
    "discovery.k8s.io/v1",
    {
        "f:addressType": {},
        "f:endpoints": {},
        "f:metadata": {
            "f:generateName": {},
            "f:labels": {
                ".": {},
                "f:app": {},
                "f:endpointslice.kubernetes.io/managed-by": {},
                "f:kubernetes.io/service-name": {},
            },
            "f:ownerReferences": {".": {}, 'k:{"uid":"0"}': {}},
        },
        "f:ports": {},
    },
)  # fmt: skip
