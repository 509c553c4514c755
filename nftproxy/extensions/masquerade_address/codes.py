"""The codes of warnings about the address of masquerading.  articles.toml has their articles."""

from __future__ import annotations

from nftproxy.model.codes import AnyCode


class MasqueradeAddressCode(AnyCode):
    """The codes of warnings about the address of masquerading."""

    MASQUERADE_ADDRESS_ABSENT = "NFT114", "The node lacks the address that masquerading is configured with"
