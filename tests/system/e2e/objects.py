"""Services, EndpointSlices and Nodes as the API has them, from short notations.

service(ports=["http:80:30080/TCP"], type="NodePort")                  name:port:nodePort/protocol
slice_of("10.1.0.4@node-a", "10.1.1.4@node-b draining zone=a,b", ports=["http:8080"])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.system.packets.cluster import IP, IP6

Object = dict[str, Any]

NAMESPACE = "shop"
VIPS = {"web": (IP.vip, IP6.vip), "other": (IP.vip2, IP6.vip2)}

_PORT = re.compile(r"(?:(?P<name>[a-z][a-z0-9-]*):)?(?P<port>\d+)(?::(?P<node_port>\d+))?(?:/(?P<protocol>\w+))?")

CONDITIONS: Mapping[str, Mapping[str, bool]] = {
    "ready": {"ready": True, "serving": True, "terminating": False},
    "unready": {"ready": False, "serving": False, "terminating": False},
    "draining": {"ready": False, "serving": True, "terminating": True},
    "stopped": {"ready": False, "serving": False, "terminating": True},
    # what the controller makes of an unready and of a terminating pod with publishNotReadyAddresses
    "published": {"ready": True, "serving": False, "terminating": False},
    "published-draining": {"ready": True, "serving": True, "terminating": True},
}


def _port(text: str) -> Object:
    match = _PORT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not written as name:port:nodePort/protocol")
    port: Object = {"name": match["name"] or "", "port": int(match["port"]), "protocol": match["protocol"] or "TCP"}
    return port | ({"nodePort": int(match["node_port"])} if match["node_port"] else {})


def service(
    name: str = "web",
    *,
    ports: Iterable[str] = ("80",),
    vips: Iterable[str] | None = None,
    labels: Mapping[str, str] = {},
    balanced: Iterable[str] = (),
    **spec: Any,
) -> Object:
    """A dual-stack Service; `balanced` are its load balancer's addresses, `spec` is what else it says."""
    addresses = list(VIPS[name] if vips is None else vips)
    plain = {"type": "ClusterIP", "clusterIPs": addresses, "ports": list(map(_port, ports))}
    if addresses:
        plain["clusterIP"] = addresses[0]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": dict(labels)},
        "spec": plain | spec,
        "status": {"loadBalancer": {"ingress": [{"ip": each, "ipMode": "VIP"} for each in balanced]}},
    }


def external_name(name: str = "web") -> Object:
    """A Service that is nothing but another name."""
    return service(name, vips=(), ports=(), type="ExternalName", externalName="example.org")


def slice_of(
    *endpoints: str,
    name: str = "web",
    suffix: str = "1",
    ports: Iterable[str] = ("8080",),
    labels: Mapping[str, str] = {},
    family: str = "",
) -> Object:
    """An EndpointSlice from endpoints as "address@node", a condition, and hints: zone=a,b node=node-a."""
    address_type = family or ("IPv6" if endpoints and ":" in endpoints[0] else "IPv4")
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": NAMESPACE,
            "name": f"{name}-{address_type.lower()}-{suffix}",
            "labels": {"kubernetes.io/service-name": name, **labels},
        },
        "addressType": address_type,
        "endpoints": [_endpoint(each) for each in endpoints],
        "ports": list(map(_port, ports)),
    }


def _endpoint(text: str) -> Object:
    where, *words = text.split()
    address, _, node = where.partition("@")
    hints: Object = {}
    condition = "ready"
    for word in words:
        key, is_hint, values = word.partition("=")
        if is_hint:
            hints[f"for{key.title()}s"] = [{"name": value} for value in values.split(",")]
        else:
            condition = key
    endpoint: Object = {"addresses": [address], "conditions": dict(CONDITIONS[condition])}
    return endpoint | ({"nodeName": node} if node else {}) | ({"hints": hints} if hints else {})


def node(name: str, *addresses: str, zone: str = "") -> Object:
    """A Node with its InternalIPs."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone} if zone else {}},
        "spec": {},
        "status": {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]},
    }


def service_cidr(name: str, *cidrs: str) -> Object:
    """A ServiceCIDR."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": name},
        "spec": {"cidrs": list(cidrs)},
    }
