"""The annotation `algorithm`, which other extensions declare too, with further words."""

from __future__ import annotations

from nftproxy.model.annotations import Option, Word
from nftproxy.model.keys import KeyEnum
from nftproxy.model.objects import Service


class Algorithm(KeyEnum):
    """How an endpoint is chosen for a new connection.

    Hashes are of the client's address, and `_WITH_PORT` of its address and port.
    """

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    SOURCE_HASH = "source-hash"
    SOURCE_HASH_WITH_PORT = "source-hash-with-port"
    CONSISTENT_HASH = "consistent-hash"
    CONSISTENT_HASH_WITH_PORT = "consistent-hash-with-port"


DRAWN_BY = frozenset(Algorithm) - {Algorithm.RANDOM}
"""The algorithms by which this extension draws: at random the proxy draws itself."""
CONSISTENT = frozenset({Algorithm.CONSISTENT_HASH, Algorithm.CONSISTENT_HASH_WITH_PORT})
"""The algorithms that move few clients when endpoints change."""

ALGORITHM: Option[Algorithm] = Option(
    "algorithm",
    Word(Algorithm),
    Algorithm.RANDOM,
    "says how an endpoint is [chosen](#algorithms) for a new connection",
    ("services",),
)


def algorithm_of(service: Service, *, is_hashed: bool) -> Algorithm | None:
    """The algorithm of a Service, None to leave the draw to the proxy.

    Where nft can't remember clients, a hash of the client's address must bring them back.
    """
    algorithm = service.options[ALGORITHM]
    if not is_hashed:
        return algorithm
    return Algorithm.CONSISTENT_HASH if algorithm in CONSISTENT else None
