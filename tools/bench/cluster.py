"""The objects of a cluster of any size, as an API server has them: with the metadata that real objects carry.

Service `s7` is at the eighth address of 10.96.0.0/13, its pods are at addresses of 10.0.0.0/10, and its
EndpointSlice is `s7-1`.  The pods are on a thousand nodes in turn.  The measured node is the first.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nftproxy_conformance.apiserver.managed_fields import note_writer

from nftproxy.installed import INSTALLED
from nftproxy.kernel.capabilities import probe
from nftproxy.model.settings import Config
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from tests.support import objects as api
from tests.support.factories import renderer

Object = dict[str, Any]

NAMESPACE = "crowd"
CREATED = "2026-01-01T00:00:00Z"
NODE, NODE_IP = "node-0", "192.168.0.2"
CLUSTER_CIDR, SERVICE_CIDR = "10.0.0.0/10", "10.96.0.0/13"
NODES = 1000
ADDRESSES = 4194023  # a prime just below the number of addresses from 10.0.1.0 to 10.63.255.255
STEP = 2654435761  # from a pod's address to the next pod's
SPARE = 1 << 21  # the number of the first pod that no Service has at the beginning

SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


class Size(NamedTuple):
    """How many Services a cluster has, and how many endpoints each of them."""

    services: int
    endpoints: int

    def __str__(self) -> str:
        return f"{self.services:,} x {self.endpoints:,}"


HUNDRED, THOUSAND, TEN_THOUSAND, FORTY_THOUSAND = Size(100, 10), Size(1_000, 10), Size(10_000, 10), Size(40_000, 5)
HUNDRED_THOUSAND = Size(100_000, 2)
"""A look ahead: there is no target for it."""
ALL_SIZES = (HUNDRED, THOUSAND, TEN_THOUSAND, FORTY_THOUSAND, HUNDRED_THOUSAND)


class Pod(NamedTuple):
    """An endpoint: the number determines address and node."""

    number: int
    is_ready: bool = True

    @property
    def address(self) -> str:
        """Its IPv4 address.  The addresses of a Service have no order, as pods of all nodes have none."""
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
    yield api.service_cidr(SERVICE_CIDR)
    yield api.node(NODE, NODE_IP, zone="a")
    for number in range(size.services):
        yield service(number)
        yield slice_of(number, pods(size, number))


def write(size: Size, path: Path) -> Path:
    """Write a cluster to a file of JSON, a List.  Returns its path."""
    with path.open("w") as file:
        file.write('{"apiVersion": "v1", "kind": "List", "items": [\n')
        for number, each in enumerate(objects(size)):
            file.write(",\n" * bool(number) + json.dumps(each))
        file.write("\n]}\n")
    return path


def new_pipeline() -> Pipeline:
    """The pipeline of the node that is measured, before any event."""
    return Pipeline(NODE, Settings(Config(), probe().capabilities, INSTALLED), renderer())


def service(number: int) -> Object:
    """A Service."""
    name = f"s{number}"
    spec = {
        "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "selector": {"app": name},
        "sessionAffinity": "None",
        "type": "ClusterIP",
    }
    made = api.service(
        name,
        spec,
        namespace=NAMESPACE,
        vips=[vip(number)],
        ports=[{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}],
        labels={"app": name},
        status={"loadBalancer": {}},
        metadata=_metadata("Service", name),
    )
    return _written(made, "kubectl-create")


def slice_of(number: int, endpoints: Sequence[Pod], part: int = 1) -> Object:
    """An EndpointSlice of a Service.  The API allows up to 1,000 endpoints (discovery.k8s.io/v1, maxEndpoints)."""
    name = f"s{number}"
    slice_name = f"{name}-{part}"
    owner = {"apiVersion": "v1", "blockOwnerDeletion": True, "controller": True, "kind": "Service", "name": name}
    metadata = _metadata("EndpointSlice", slice_name)
    metadata["ownerReferences"] = [owner | {"uid": _uid("Service", name)}]
    labels = {"app": name, "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
    made = api.endpoint_slice(
        slice_name,
        *(_endpoint(name, pod) for pod in endpoints),
        service=name,
        namespace=NAMESPACE,
        ports=["http:8080"],
        labels=labels,
        metadata=metadata,
    )
    return _written(made, "kube-controller-manager")


def _endpoint(service_name: str, pod: Pod) -> Object:
    name = f"{service_name}-{pod.number:x}"
    return api.endpoint(
        pod.address,
        f"node-{pod.number % NODES}",
        "ready" if pod.is_ready else "unready",
        targetRef={"kind": "Pod", "name": name, "namespace": NAMESPACE, "uid": _uid("Pod", name)},
        zone="abc"[pod.number % 3],
    )


def _metadata(kind: str, name: str) -> Object:
    return {"creationTimestamp": CREATED, "uid": _uid(kind, name)}


def _uid(kind: str, name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{kind}/{name}"))


def _written(made: Object, manager: str) -> Object:
    """An object with the fields that API servers send with every object, and a proxy skips."""
    note_writer(made["metadata"], made, made["apiVersion"], manager, CREATED)
    return made
