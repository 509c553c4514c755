"""The schedulers of IPVS that algorithms here take the place of.

Extensions with further algorithms declare the rest of the schedulers.
"""

from __future__ import annotations

from collections.abc import Mapping

from nftproxy.extensions.algorithms.annotations import Algorithm
from nftproxy.model.config_fields import Replacement

_ONE_ENDPOINT = Replacement(Algorithm.RANDOM, "connections to an address don't all go to the same endpoint")

SCHEDULERS: Mapping[str, Replacement] = {
    "rr": Replacement(Algorithm.ROUND_ROBIN),
    "wrr": Replacement(Algorithm.ROUND_ROBIN),
    "sh": Replacement(Algorithm.SOURCE_HASH),
    "mh": Replacement(
        Algorithm.SOURCE_HASH_WITH_PORT,
        "most connections would hash to other endpoints when an endpoint goes, which consistent-hash-with-port avoids",
    ),
    **dict.fromkeys(("dh", "fo", "ovf"), _ONE_ENDPOINT),
}
"""By the names of Linux' modules (net/netfilter/ipvs).

kube-proxy gives each endpoint the weight 1, so that `wrr` is `rr`, and lets `mh` hash the port too (syncProxyRules,
pkg/proxy/ipvs).  Maglev's tables would take 4,093 elements for each address and port of every Service, so that only
annotations and nftproxy.algorithm ask for them."""
