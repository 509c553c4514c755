"""The codes of warnings about node ports at localhost.  articles.toml has their articles."""

from __future__ import annotations

from nftproxy.model.codes import AnyCode


class LocalhostCode(AnyCode):
    """The codes of warnings about node ports at localhost."""

    LOCALHOST_PORT_TAKEN = "NFT011", "A node port can't be served at localhost"
    LOCALHOST_FULL = "NFT012", "New connections at localhost are reset, as there are too many"
    LOCALHOST_ACCEPT_FAILED = "NFT013", "Connections at localhost can't be accepted"
    LOCALHOST_TCP_ONLY = "NFT309", "A node port of UDP or SCTP isn't served at localhost"
