"""The source of masqueraded connections (`nftproxy.masqueradeAddress`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.extensions.masquerade_address.codes import MasqueradeAddressCode
from nftproxy.extensions.masquerade_address.rules import TABLE, table
from nftproxy.extensions.masquerade_address.sources import InterfaceAddresses

if TYPE_CHECKING:
    from nftproxy.explanation.words import Words


def _words() -> Words:
    from nftproxy.extensions.masquerade_address.words import WORDS

    return WORDS


MASQUERADE_ADDRESS = ExplainedExtension(
    name="masquerade_address",
    codes=tuple(MasqueradeAddressCode),
    templates=(TABLE,),
    table=table,
    of_table=(InterfaceAddresses,),
    words=_words,
)
