"""Objects as the API has them: the only place where tests and tools write Services and EndpointSlices down.

service("web", {"type": "NodePort"}, vips=["10.96.0.10"], ports=["http:80:30080/TCP"])     name:port:nodePort/protocol
endpoint_slice("web-1", "10.1.0.4@node-a", "10.1.1.4@node-b draining zone=a,b", service="web", ports=["http:8080"])

No defaults are filled in: the parser decides the meaning of an absent field.  A port or an endpoint may be given in
full, as a dict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Object = dict[str, Any]

NAMESPACE = "shop"
API_VERSIONS = {
    "Service": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "Node": "v1",
    "Namespace": "v1",
    "Pod": "v1",
    "DaemonSet": "apps/v1",
    "ServiceCIDR": "networking.k8s.io/v1",
}
SERVICE_NAME = "kubernetes.io/service-name"
ZONE = "topology.kubernetes.io/zone"

CONDITIONS: Mapping[str, Mapping[str, bool]] = {
    "ready": {"ready": True, "serving": True, "terminating": False},
    "unready": {"ready": False, "serving": False, "terminating": False},
    "draining": {"ready": False, "serving": True, "terminating": True},
    "stopped": {"ready": False, "serving": False, "terminating": True},
    # as the controller writes an unready and a terminating pod with publishNotReadyAddresses
    "published": {"ready": True, "serving": False, "terminating": False},
    "published-draining": {"ready": True, "serving": True, "terminating": True},
}
"""The conditions of an endpoint, by the state of its pod."""

_PORT = re.compile(r"(?:(?P<name>[a-z][a-z0-9-]*):)?(?P<port>\d+)(?::(?P<node_port>\d+))?(?:/(?P<protocol>\w+))?")


def api_object(
    kind: str, name: str, namespace: str = "", labels: Mapping[str, str] | None = None, **metadata: Any
) -> Object:
    """An object with only its metadata, without labels if these are None."""
    own: Object = {"name": name} | ({"namespace": namespace} if namespace else {})
    own |= {} if labels is None else {"labels": dict(labels)}
    return {"apiVersion": API_VERSIONS[kind], "kind": kind, "metadata": own | metadata}


def service(
    name: str = "web",
    spec: Mapping[str, Any] = {},
    *,
    namespace: str = NAMESPACE,
    vips: Iterable[str] = (),
    ports: Iterable[str | Object] = ("80",),
    labels: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] = {},
) -> Object:
    """A Service at these ClusterIPs with these ports.  `spec` overrides both."""
    addresses = list(vips)
    plain: Object = {"clusterIP": addresses[0], "clusterIPs": addresses} if addresses else {}
    plain["ports"] = [_port(each) for each in ports]
    made = api_object("Service", name, namespace, labels, **metadata) | {"spec": plain | dict(spec)}
    return made if status is None else made | {"status": dict(status)}


def too_large(name: str, *vips: str) -> Object:
    """A Service with 101 external addresses times 100 ports: 100 fronts more than it may have."""
    addresses = [f"203.0.113.{each}" for each in range(100, 201)]
    return service(name, {"externalIPs": addresses}, vips=vips, ports=[f"p{each}:{each}" for each in range(1, 101)])


def balancer(*addresses: str) -> Object:
    """The status of a Service whose load balancer has these addresses."""
    return {"loadBalancer": {"ingress": [{"ip": each, "ipMode": "VIP"} for each in addresses]}}


def endpoint_slice(
    name: str = "web-1",
    *endpoints: str | Object,
    service: str = "web",
    namespace: str = NAMESPACE,
    family: str = "IPv4",
    ports: Iterable[str | Object] = ("8080",),
    labels: Mapping[str, str] = {},
    metadata: Mapping[str, Any] = {},
) -> Object:
    """An EndpointSlice of a Service: its endpoints as "address@node", a condition, and hints: zone=a,b node=node-a."""
    own = api_object("EndpointSlice", name, namespace, {SERVICE_NAME: service, **labels}, **metadata)
    return own | {
        "addressType": family,
        "ports": [_port(each) for each in ports],
        "endpoints": [_endpoint(each) for each in endpoints],
    }


def endpoint(address: str, node: str = "", condition: str = "", **more: Any) -> Object:
    """An endpoint with an address.  Without words it has no conditions."""
    made: Object = {"addresses": [address]} | ({"conditions": dict(CONDITIONS[condition])} if condition else {})
    return made | ({"nodeName": node} if node else {}) | more


def node(name: str, *addresses: str, zone: str = "", **fields: Any) -> Object:
    """A Node with its InternalIPs.  `fields` are further fields."""
    own = api_object("Node", name, labels={ZONE: zone} if zone else None)
    listed = [{"type": "InternalIP", "address": address} for address in addresses]
    return own | fields | ({"status": {"addresses": listed}} if listed else {})


def service_cidr(*cidrs: str, name: str = "kubernetes") -> Object:
    """A ServiceCIDR."""
    return api_object("ServiceCIDR", name) | {"spec": {"cidrs": list(cidrs)}}


def _port(given: str | Object) -> Object:
    if not isinstance(given, str):
        return given
    match = _PORT.fullmatch(given)
    if match is None:
        raise ValueError(f"{given!r} is not written as name:port:nodePort/protocol")
    port: Object = {"name": match["name"] or "", "port": int(match["port"]), "protocol": match["protocol"] or "TCP"}
    return port | ({"nodePort": int(match["node_port"])} if match["node_port"] else {})


def _endpoint(given: str | Object) -> Object:
    if not isinstance(given, str):
        return given
    where, *words = given.split()
    address, _, node = where.partition("@")
    hints: Object = {}
    condition = "ready"
    for word in words:
        key, is_hint, values = word.partition("=")
        if is_hint:
            hints[f"for{key.title()}s"] = [{"name": value} for value in values.split(",")]
        else:
            condition = key
    return endpoint(address, node, condition, **({"hints": hints} if hints else {}))
