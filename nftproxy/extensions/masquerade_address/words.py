"""The words of the source of masqueraded connections, in `explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nftproxy.explanation.question import ToAddress
from nftproxy.explanation.words import Words
from nftproxy.extensions.masquerade_address.codes import MasqueradeAddressCode
from nftproxy.extensions.masquerade_address.sources import node_source, words
from nftproxy.model.addresses import FAMILY_NAMES, family_of
from nftproxy.pipeline import Pipeline


def _remarks_on_question(pipeline: Pipeline, spots: Sequence[ToAddress]) -> Iterator[str]:
    """The source of masqueraded connections in each family of these places, as far as it is configured."""
    for family in dict.fromkeys(family_of(spot.address) for spot in spots):
        source = node_source(pipeline.state, pipeline.settings.config, family)
        if source.fault:
            yield f"{MasqueradeAddressCode.MASQUERADE_ADDRESS_ABSENT}: {words(family, source.fault)}"
        elif source.addresses:
            yield f"masqueraded {FAMILY_NAMES[family]} connections come from {source.addresses}"


WORDS = Words(remarks_on_question=_remarks_on_question)
