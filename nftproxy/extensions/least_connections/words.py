"""The words of least connections, in `explain`."""

from __future__ import annotations

from nftproxy.explanation.question import ToAddress
from nftproxy.explanation.words import Chosen, Words
from nftproxy.extensions.least_connections.annotations import WORD, is_asked_of
from nftproxy.extensions.least_connections.balanced_rows import is_balanced
from nftproxy.model.objects import Service
from nftproxy.pipeline import Pipeline
from nftproxy.policy.drawing import is_hashed


def _how_chosen(pipeline: Pipeline, spot: ToAddress, service: Service, endpoints: int) -> Chosen | None:
    is_asked = is_asked_of(service, spot.protocol) and not is_hashed(spot.family, service, pipeline.settings)
    if not (is_asked and is_balanced(endpoints)):
        return None
    return Chosen(WORD.value, f"drawn at random, rather with fewer connections ({WORD.value})")


WORDS = Words(how_chosen=_how_chosen)
