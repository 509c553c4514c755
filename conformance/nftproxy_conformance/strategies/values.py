"""The few names, addresses and ports from which strategies draw, so that rare conflicts become common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from hypothesis import strategies as st

from nftproxy.model.addresses import Family, Protocol
from nftproxy_conformance.strategies.notation import addresses, key, networks

R = TypeVar("R")
IPV4, IPV6 = Family.IPV4, Family.IPV6

SERVICES = tuple(map(key, ("blog/api", "shop/cart", "shop/web")))
SLICES = tuple(map(key, ("blog/api-1", "blog/api-2", "shop/cart-1", "shop/cart-2", "shop/web-1", "shop/web-2")))
CLUSTER_IPS = {IPV4: addresses(["10.96.0.10", "10.96.0.20"]), IPV6: addresses(["fd00:96::10", "fd00:96::20"])}
NODE_IPS = addresses(["192.168.0.2", "fd00:c0a8::2"])
OUTSIDE_IPS = addresses(["203.0.113.7", "203.0.113.8", "2001:db8::7"])
POD_IPS = {
    IPV4: addresses(["10.1.0.4", "10.1.0.5", "10.1.1.4", "192.168.0.2"]),
    IPV6: addresses(["fd00:1::4", "fd00:1::5", "fd00:1:0:1::4", "fd00:c0a8::2"]),
}
SOURCES = networks(
    ["198.51.100.0/24", "198.51.100.128/25", "198.51.101.0/24", "192.168.0.0/24", "0.0.0.0/0", "2001:db8::/33"]
)
SERVICE_CIDRS = networks(["10.96.0.0/16", "10.96.0.0/17", "10.97.0.0/16", "fd00:96::/112", "fd00:97::/112"])
PORTS = (
    ("", Protocol.TCP, 80),
    ("", Protocol.UDP, 80),
    ("web", Protocol.TCP, 80),
    ("web", Protocol.SCTP, 80),
    ("dns", Protocol.UDP, 53),
    ("dns-tcp", Protocol.TCP, 53),
    ("ssh", Protocol.TCP, 22),
    ("alt", Protocol.TCP, 30080),
)
NODE_NAMES = ("node-a", "node-b")
ZONES = ("a", "b")


def some(values: Iterable[R], *, least: int = 0, most: int = 2) -> st.SearchStrategy[tuple[R, ...]]:
    """A few of the values, each at most once, in any order."""
    return st.lists(st.sampled_from(list(values)), unique=True, min_size=least, max_size=most).map(tuple)
