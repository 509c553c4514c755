"""The schedulers of IPVS, and the algorithms that take their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nftproxy.model.annotations import Algorithm


class Replacement(NamedTuple):
    """The algorithm for a scheduler.  `difference` says in words what the algorithm does otherwise, "" if nothing."""

    algorithm: Algorithm
    difference: str = ""


_BY_CONNECTIONS = Replacement(Algorithm.LEAST_CONNECTIONS, "shares follow their connections every few seconds")
_BY_LOCALITY = Replacement(
    Algorithm.LEAST_CONNECTIONS,
    "connections to an address don't all go to the same endpoint until it has too many",
)
_ONE_ENDPOINT = Replacement(Algorithm.RANDOM, "connections to an address don't all go to the same endpoint")

SCHEDULERS: Mapping[str, Replacement] = {
    "rr": Replacement(Algorithm.ROUND_ROBIN),
    "wrr": Replacement(Algorithm.ROUND_ROBIN),
    "sh": Replacement(Algorithm.SOURCE_HASH),
    "mh": Replacement(
        Algorithm.SOURCE_HASH_WITH_PORT,
        "most connections would hash to other endpoints when an endpoint goes, which consistent-hash-with-port avoids",
    ),
    **dict.fromkeys(("lc", "wlc", "sed", "nq", "twos"), _BY_CONNECTIONS),
    **dict.fromkeys(("lblc", "lblcr"), _BY_LOCALITY),
    **dict.fromkeys(("dh", "fo", "ovf"), _ONE_ENDPOINT),
}
"""By the names of Linux' modules (net/netfilter/ipvs).

kube-proxy gives each endpoint the weight 1, so that `wrr` is `rr`, and lets `mh` hash the port too (syncProxyRules,
pkg/proxy/ipvs).  Maglev's tables would take 4,093 elements for each address and port of every Service, so that only
annotations and nftproxy.algorithm ask for them."""


def replacement(scheduler: str) -> Replacement:
    """Return the algorithm for a scheduler, which may be unknown."""
    return SCHEDULERS.get(scheduler) or Replacement(Algorithm.RANDOM, "nftproxy doesn't know this scheduler")
