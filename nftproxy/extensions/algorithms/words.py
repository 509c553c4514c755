"""The words of algorithms, in `explain`."""

from __future__ import annotations

from nftproxy.explanation.question import ToAddress
from nftproxy.explanation.words import Chosen, Words
from nftproxy.extensions.algorithms.annotations import Algorithm, algorithm_of
from nftproxy.model.objects import Service
from nftproxy.pipeline import Pipeline
from nftproxy.policy.drawing import is_hashed

_WORDS = {
    Algorithm.ROUND_ROBIN: "one after the other (round-robin)",
    Algorithm.SOURCE_HASH: "by a hash of the client's address (source-hash)",
    Algorithm.SOURCE_HASH_WITH_PORT: "by a hash of the client's address and port (source-hash-with-port)",
    Algorithm.CONSISTENT_HASH: "by a hash of the client's address that moves few clients (consistent-hash)",
    Algorithm.CONSISTENT_HASH_WITH_PORT: (
        "by a hash of the client's address and port that moves few clients (consistent-hash-with-port)"
    ),
}


def _how_chosen(pipeline: Pipeline, spot: ToAddress, service: Service, _: int) -> Chosen | None:
    algorithm = algorithm_of(service, is_hashed=is_hashed(spot.family, service, pipeline.settings))
    return Chosen(algorithm.value, _WORDS[algorithm]) if algorithm in _WORDS else None


WORDS = Words(how_chosen=_how_chosen)
