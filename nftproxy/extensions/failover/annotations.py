"""The annotation `nftproxy.dev/failover`, and the text that explains it."""

from __future__ import annotations

from enum import Enum

from nftproxy.model.annotations import Option, Word


class Failover(Enum):
    """The failures of an endpoint after which its connections go to other endpoints."""

    SILENT = "silent"
    REFUSED = "refused"
    GONE = "gone"


FAILOVER: Option[frozenset[Failover]] = Option(
    "failover",
    Word(Failover, is_list=True),
    frozenset(),
    "says after which [failures of an endpoint](#failover) its connections go to other endpoints",
    ("watched", "retried"),
)
