"""Closed ports and answered pings at addresses of Services (`nftproxy.externalAddresses`, `nftproxy.ping`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.extensions.external_addresses.fields import is_asked_for
from nftproxy.extensions.external_addresses.rules import PORT, TABLE, elements, ports, table

if TYPE_CHECKING:
    from nftproxy.explanation.words import Words


def _words() -> Words:
    from nftproxy.extensions.external_addresses.words import WORDS

    return WORDS


EXTERNAL_ADDRESSES = ExplainedExtension(
    name="external_addresses",
    templates=(TABLE, PORT),
    is_everywhere=is_asked_for,
    elements=elements,
    table=table,
    ports=ports,
    words=_words,
)
