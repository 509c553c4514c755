"""Whether the node has routes to endpoints within clusterCIDR.

Rules lead packets to endpoints, and the network plugin's routes lead them on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from nftproxy.model.addresses import Address, Family, Network, family_of, is_within
from nftproxy.model.objects import EndpointSlice
from nftproxy.sources.routes import route_to

MOST_SLICES = 100
"""EndpointSlices among which a look chooses.  1,000 held up the loop for 15 ms of every 30 s."""
MOST_TRIED = 64
"""Endpoints that a look tries, each of another node as far as their addresses show it."""
MOST_OF_A_SLICE = 10
"""Endpoints of a slice among which a look chooses."""


def sample(slices: Iterable[EndpointSlice], ranges: Sequence[Network], left_out: str = "") -> list[Address]:
    """Return endpoints within these ranges, one of each node's range, at most `MOST_TRIED`.

    The endpoints of the node `left_out` are left out.
    """
    chosen: dict[str, Address] = {}
    for part in itertools.islice(slices, MOST_SLICES):
        for endpoint in itertools.islice(part.endpoints, MOST_OF_A_SLICE):
            key = _node_range(endpoint.address)
            is_elsewhere = not left_out or endpoint.node_name != left_out
            if key not in chosen and endpoint.ready and is_elsewhere and is_within(endpoint.address, ranges):
                chosen[key] = endpoint.address
    return sorted(chosen.values())[:MOST_TRIED]


def unrouted(addresses: Iterable[Address]) -> dict[Address, str]:
    """Return the addresses that the kernel has no route to, each with the system's reason."""
    return {address: reason for address in addresses if (reason := _why_unrouted(address))}


def _why_unrouted(address: Address) -> str:
    try:
        return route_to(address).why_not
    except OSError:
        return ""


def _node_range(address: Address) -> str:
    """Return all but the last part of an address: a node's pods have the rest in common."""
    return address.rpartition("." if family_of(address) is Family.IPV4 else ":")[0]
