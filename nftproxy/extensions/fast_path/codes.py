"""The codes of warnings about the fast path.  articles.toml has their articles."""

from __future__ import annotations

from nftproxy.model.codes import AnyCode


class FastPathCode(AnyCode):
    """The codes of warnings about the fast path."""

    FAST_PATH_INCOMPLETE = "NFT421", "The fast path of established connections isn't there, or lacks interfaces"
    FAST_PATH_PASSES_BY = "NFT640", "Packets on the fast path pass other programs' chains by"
