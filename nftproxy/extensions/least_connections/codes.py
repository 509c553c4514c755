"""The codes of warnings about least connections.  articles.toml has their articles."""

from __future__ import annotations

from nftproxy.model.codes import AnyCode


class LeastConnectionsCode(AnyCode):
    """The codes of warnings about least connections."""

    LEAST_CONNECTIONS_OVERSIZED = "NFT314", "A Service has too many endpoints or addresses for least connections"
    LOADS_UNREADABLE = "NFT422", "Connections of endpoints can't be counted"
