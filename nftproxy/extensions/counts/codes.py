"""The codes of warnings about the counts of Services.  articles.toml has their articles."""

from __future__ import annotations

from nftproxy.model.codes import AnyCode


class CountsCode(AnyCode):
    """The codes of warnings about the counts of Services."""

    COUNTS_UNREADABLE = "NFT416", "The kernel's counts for Services can't be read"
