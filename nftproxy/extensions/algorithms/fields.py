"""The configuration of algorithms."""

from __future__ import annotations

from nftproxy.extensions.algorithms.annotations import Algorithm
from nftproxy.extensions.algorithms.schedulers import SCHEDULERS
from nftproxy.model.annotations import Word
from nftproxy.model.codes import Code
from nftproxy.model.config_fields import ConfigField, InsteadOf

DEFAULT_ALGORITHM = ConfigField(
    "algorithm",
    Word(Algorithm),
    Algorithm.RANDOM,
    "How endpoints are chosen for new connections.",
    instead_of=InsteadOf("ipvs.scheduler", Code.IPVS_SCHEDULER, SCHEDULERS),
)
"""Of Services without the annotation."""
