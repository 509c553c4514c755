"""The configuration of failover."""

from __future__ import annotations

from nftproxy.extensions.failover.annotations import Failover
from nftproxy.model.annotations import Word
from nftproxy.model.config_fields import ConfigField

DEFAULT_FAILOVER: ConfigField[frozenset[Failover]] = ConfigField(
    "failover",
    Word(Failover, is_list=True),
    frozenset(),
    "Failures after which connections go to other endpoints.",
)
"""Of Services without the annotation."""
