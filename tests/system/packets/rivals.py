"""Two Services that may claim the same address."""

from __future__ import annotations

from typing import Any

from nftproxy.model.objects import EndpointSlice, Service
from tests.support.cluster import Ip, pods
from tests.support.factories import service


def one(ip: Ip, name: str = "shop/one", /, **claim: Any) -> Service:
    """The older Service, whose endpoint is `here`."""
    fields: dict[str, Any] = {"type": "LoadBalancer", "cluster_ips": [ip.vip], "created": 100}
    return service(name, **fields | claim)


def two(ip: Ip, name: str = "shop/two", /, **claim: Any) -> Service:
    """The younger Service, whose endpoint is `away`."""
    fields: dict[str, Any] = {"type": "LoadBalancer", "cluster_ips": [ip.vip2], "created": 200}
    return service(name, **fields | claim)


def slices(ip: Ip, first: str = "shop/one", second: str = "shop/two") -> tuple[EndpointSlice, EndpointSlice]:
    """An EndpointSlice with an endpoint for each Service."""
    return pods(ip, "here", name=first), pods(ip, "away", name=second)
