"""Two Services that may claim the same."""

from __future__ import annotations

from typing import Any

from nftproxy.model.objects import EndpointSlice, Service
from tests.support.factories import service, slice_of
from tests.system.packets.cluster import Ip


def one(ip: Ip, name: str = "shop/one", /, **claim: Any) -> Service:
    """A Service whose endpoint is `here`."""
    fields: dict[str, Any] = {"type": "LoadBalancer", "cluster_ips": [ip.vip], "created": 100}
    return service(name, **(fields | claim))


def two(ip: Ip, name: str = "shop/two", /, **claim: Any) -> Service:
    """A Service whose endpoint is `away`."""
    fields: dict[str, Any] = {"type": "LoadBalancer", "cluster_ips": [ip.vip2], "created": 200}
    return service(name, **(fields | claim))


def slices(ip: Ip, first: str = "shop/one", second: str = "shop/two") -> tuple[EndpointSlice, EndpointSlice]:
    """An endpoint for each of them."""
    return slice_of(first, [f"{ip.here}@node-a"]), slice_of(second, [f"{ip.away}@node-b"])
