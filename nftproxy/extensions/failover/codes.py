"""The codes of warnings about failover.  articles.toml has their articles."""

from __future__ import annotations

from nftproxy.model.codes import AnyCode


class FailoverCode(AnyCode):
    """The codes of warnings about failover."""

    ENDPOINT_SILENT = "NFT311", "An endpoint doesn't answer this node, and its Service leaves such endpoints out"
    SILENCE_UNREADABLE = "NFT418", "Connections without an answer can't be read from the kernel"
    SILENCE_CROWDED = "NFT419", "More connections of a namespace have no answer than are noted"
