"""Services, EndpointSlices and Nodes of the tests' cluster, from short notations.

service(ports=["http:80:30080/TCP"], type="NodePort")                  name:port:nodePort/protocol
slice_of("10.1.0.4@node-a", "10.1.1.4@node-b draining zone=a,b", ports=["http:8080"])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.support import objects
from tests.support.cluster import IP, IP6
from tests.support.objects import Object, node

__all__ = ["Object", "external_name", "node", "service", "service_cidr", "slice_of"]

VIPS = {"web": (IP.vip, IP6.vip), "other": (IP.vip2, IP6.vip2)}


def service(
    name: str = "web",
    *,
    ports: Iterable[str] = ("80",),
    vips: Iterable[str] | None = None,
    labels: Mapping[str, str] = {},
    balanced: Iterable[str] = (),
    **spec: Any,
) -> Object:
    """A dual-stack Service.  `balanced` are its load balancer's addresses, and `spec` are fields of its spec."""
    addresses = VIPS[name] if vips is None else vips
    given = {"type": "ClusterIP", **spec}
    status = objects.balancer(*balanced)
    return objects.service(name, given, vips=addresses, ports=ports, labels=labels, status=status)


def external_name(name: str = "web") -> Object:
    """A Service of type ExternalName."""
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
    kind = family or ("IPv6" if endpoints and ":" in endpoints[0] else "IPv4")
    slice_name = f"{name}-{kind.lower()}-{suffix}"
    return objects.endpoint_slice(slice_name, *endpoints, service=name, family=kind, ports=ports, labels=labels)


def service_cidr(name: str, *cidrs: str) -> Object:
    """A ServiceCIDR."""
    return objects.service_cidr(*cidrs, name=name)
