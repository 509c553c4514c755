"""The configuration of least connections."""

from __future__ import annotations

from collections.abc import Mapping

from nftproxy.extensions.least_connections.annotations import WORD, Balancing
from nftproxy.model.annotations import Word
from nftproxy.model.codes import Code
from nftproxy.model.config_fields import ConfigField, InsteadOf, Replacement

_BY_CONNECTIONS = Replacement(WORD, "shares follow their connections every few seconds")
_BY_LOCALITY = Replacement(WORD, "connections to an address don't all go to the same endpoint until it has too many")

SCHEDULERS: Mapping[str, Replacement] = {
    **dict.fromkeys(("lc", "wlc", "sed", "nq", "twos"), _BY_CONNECTIONS),
    **dict.fromkeys(("lblc", "lblcr"), _BY_LOCALITY),
}
"""The schedulers of IPVS that least connections takes the place of, by the names of Linux' modules
(net/netfilter/ipvs)."""

DEFAULT_BALANCING = ConfigField(
    "algorithm",
    Word(Balancing),
    Balancing.RANDOM,
    "How endpoints are chosen for new connections.",
    instead_of=InsteadOf("ipvs.scheduler", Code.IPVS_SCHEDULER, SCHEDULERS),
)
"""Of Services without the annotation."""
