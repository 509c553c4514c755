"""The shapes of the API objects that a service proxy reads, as they are on the wire.

Only fields that nftproxy acts upon are here, and decoding skips all other fields.  A Raw shape has a value of the same
name in the model.  Types are the API's.  `object` stands where services.py, slices.py and nodes.py judge each element
themselves, so that no element is lost silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from nftproxy.api.decode import Shape


class TypeMeta(Shape):
    """The fields that name the type of any object."""

    api_version: str | None = None
    kind: str | None = None


class RawKey(Shape):
    """The fields of metadata that identify an object among the objects of its kind."""

    name: str | None = None
    namespace: str | None = None

    essential: ClassVar = frozenset({"name", "namespace"})


class ObjectMeta(RawKey):
    """metadata (meta/v1 ObjectMeta)."""

    labels: dict[str, object] | None = None
    annotations: dict[str, object] | None = None
    creation_timestamp: object = None
    deletion_timestamp: object = None

    essential: ClassVar = RawKey.essential | {"labels"}


class ApiObject(Shape):
    """The fields that every object below has."""

    metadata: ObjectMeta | None = None

    essential: ClassVar = frozenset({"metadata"})

    @property
    def labels(self) -> Mapping[str, object]:
        """metadata.labels, empty for null.  The values may be of any type."""
        return (self.metadata or ObjectMeta()).labels or {}


class RawServicePort(Shape):
    """spec.ports[] of a Service."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    node_port: int | None = None

    essential: ClassVar = frozenset({"name", "protocol", "port"})


class ClientIPConfig(Shape):
    """spec.sessionAffinityConfig.clientIP."""

    timeout_seconds: int | None = None


class SessionAffinityConfig(Shape):
    """spec.sessionAffinityConfig."""

    client_ip: ClientIPConfig | None = None


class ServiceSpec(Shape):
    """spec of a Service."""

    type: str | None = None
    cluster_ip: str | None = None
    cluster_ips: list[object] | None = None
    external_ips: list[object] | None = None
    load_balancer_source_ranges: object = None
    ports: list[RawServicePort] | None = None
    internal_traffic_policy: str | None = None
    external_traffic_policy: str | None = None
    session_affinity: str | None = None
    session_affinity_config: SessionAffinityConfig | None = None
    health_check_node_port: int | None = None
    traffic_distribution: str | None = None


class Ingress(Shape):
    """status.loadBalancer.ingress[] of a Service."""

    ip: str | None = None
    ip_mode: str | None = None

    essential: ClassVar = frozenset({"ip", "ipMode"})


class LoadBalancerStatus(Shape):
    """status.loadBalancer of a Service."""

    ingress: list[Ingress] | None = None


class ServiceStatus(Shape):
    """status of a Service."""

    load_balancer: LoadBalancerStatus | None = None


class RawService(ApiObject):
    """v1 Service."""

    spec: ServiceSpec | None = None
    status: ServiceStatus | None = None


class EndpointConditions(Shape, frozen=True):  # type: ignore[misc]  # msgspec allows it: these are a key of a cache
    """endpoints[].conditions of an EndpointSlice."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None

    essential: ClassVar = frozenset({"ready", "serving", "terminating"})


class Hint(Shape):
    """endpoints[].hints.forZones[] and forNodes[] of an EndpointSlice."""

    name: str | None = None

    essential: ClassVar = frozenset({"name"})


class EndpointHints(Shape):
    """endpoints[].hints of an EndpointSlice (KEP-2433, KEP-3015)."""

    for_zones: list[Hint] | None = None
    for_nodes: list[Hint] | None = None


class TargetRef(Shape):
    """endpoints[].targetRef of an EndpointSlice.  Only names in messages depend on it."""

    kind: str | None = None
    namespace: str | None = None
    name: str | None = None


class RawEndpoint(Shape):
    """endpoints[] of an EndpointSlice."""

    addresses: list[object] | None = None
    conditions: EndpointConditions | None = None
    node_name: str | None = None
    zone: str | None = None
    hints: EndpointHints | None = None
    target_ref: TargetRef | None = None

    essential: ClassVar = frozenset({"addresses", "conditions", "nodeName"})


class RawEndpointPort(Shape):
    """ports[] of an EndpointSlice."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None

    essential: ClassVar = frozenset({"name", "protocol", "port"})


class RawEndpointSlice(ApiObject):
    """discovery.k8s.io/v1 EndpointSlice."""

    address_type: str | None = None
    endpoints: list[RawEndpoint] | None = None
    ports: list[RawEndpointPort] | None = None

    essential: ClassVar = ApiObject.essential | {"addressType"}


class Taint(Shape):
    """spec.taints[] of a Node."""

    key: str | None = None

    essential: ClassVar = frozenset({"key"})


class NodeSpec(Shape):
    """spec of a Node."""

    pod_cidr: str | None = None
    pod_cidrs: list[object] | None = None
    taints: list[Taint] | None = None


class NodeAddress(Shape):
    """status.addresses[] of a Node."""

    type: str | None = None
    address: str | None = None

    essential: ClassVar = frozenset({"type", "address"})


class NodeStatus(Shape):
    """status of a Node."""

    addresses: list[NodeAddress] | None = None


class RawNode(ApiObject):
    """v1 Node."""

    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class ServiceCIDRSpec(Shape):
    """spec of a ServiceCIDR."""

    cidrs: list[object] | None = None


class RawServiceCIDR(ApiObject):
    """networking.k8s.io/v1 ServiceCIDR (KEP-1880)."""

    spec: ServiceCIDRSpec | None = None
