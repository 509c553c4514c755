"""The configuration of algorithms."""

from __future__ import annotations

from nftproxy.model.annotations import Algorithm, Word
from nftproxy.model.codes import Code
from nftproxy.model.config_fields import ConfigField, InsteadOf
from nftproxy.model.schedulers import replacement

DEFAULT_ALGORITHM = ConfigField(
    "algorithm",
    Word(Algorithm),
    Algorithm.RANDOM,
    "How endpoints are chosen for new connections.",
    instead_of=InsteadOf("ipvs.scheduler", Code.IPVS_SCHEDULER, replacement),
)
"""Of Services without the annotation."""
