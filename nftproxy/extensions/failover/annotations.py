"""The annotation `nftproxy.dev/failover`, and the text that explains it."""

from __future__ import annotations

from nftproxy.model.annotations import Failover, Option, Word

FAILOVER: Option[frozenset[Failover]] = Option(
    "failover",
    Word(Failover, is_list=True),
    frozenset(),
    "says after which [failures of an endpoint](#failover) its connections go to other endpoints",
    ("watched", "retried"),
)
