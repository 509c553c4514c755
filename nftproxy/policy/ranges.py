"""Ranges of sources, as elements of sets without intervals.

The kernel walks a set of concatenated intervals for each element that is deleted.  To delete 1,000 of 100,000 ranges
took 24 s (6.18), and the kernel made no other change meanwhile.  So the rules have plain sets, with an element for each
range: the list, the network and the length of its prefix.  The rules look up each length, with the packet's source cut
to that length.

Few lengths are few lookups, so the length of a prefix is a multiple of `STRIDE`.  A range of another length becomes
up to 8 networks of the next such length.  Most ranges in use (/8, /16, /24, /32, /48, /64) stay a single network.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from ipaddress import collapse_addresses, ip_network

from nftproxy.model.addresses import Address, Family, Network

STRIDE = 4
"""Bits from one length of a prefix to the next: 9 lengths for IPv4, 33 for IPv6."""

WIDTH = {Family.IPV4: 32, Family.IPV6: 128}
"""Bits of an address."""

NO_LIST = {Family.IPV4: Address("0.0.0.0"), Family.IPV6: Address("::")}
"""The name of a list of ranges that admits nobody, and denies everybody: no Service has this address."""

_BETWEEN = " . "
EVERY_SOURCE = {Family.IPV4: "0.0.0.0 . 0", Family.IPV6: ":: . 0"}
"""The key of the range with all sources."""
INSIDE = 256
"""Added to the length in a key: the range is for local sources and the node itself only.  No length is as large."""


def range_keys(networks: Iterable[Network]) -> tuple[str, ...]:
    """The networks of one family as the keys of elements: address and length.  Overlaps are merged."""
    return tuple(
        f"{part.network_address}{_BETWEEN}{part.prefixlen}"
        for network in merged(networks)
        for part in network.subnets(new_prefix=-(-network.prefixlen // STRIDE) * STRIDE)
    )


def merged(networks: Iterable[Network]) -> list[Network]:
    """Networks of one family with overlaps and neighbours merged, in order."""
    return list(collapse_addresses(networks))  # type: ignore[type-var]


def keys_at_most(networks: Iterable[Network]) -> int:
    """An upper bound of the number of keys of networks: there are fewer if some overlap."""
    return sum(1 << -network.prefixlen % STRIDE for network in networks)


def networks_of(keys: Iterable[str]) -> list[Network]:
    """The networks that keys of `range_keys` stand for, neighbours merged."""
    return merged(ip_network(key.replace(_BETWEEN, "/")) for key in keys)


@functools.cache
def source_lengths(family: Family) -> tuple[tuple[str, int], ...]:
    """Each length of a prefix, with the nft expression for a packet's source of this length.  Longest first."""
    return tuple((_cut(family, length), length) for length in range(WIDTH[family], -1, -STRIDE))


def _cut(family: Family, length: int) -> str:
    source = f"{family.value} saddr"
    if length == WIDTH[family]:
        return source
    everything = "0.0.0.0" if family is Family.IPV4 else "::"
    return f"{source} & {ip_network(f'{everything}/{length}').netmask}"
