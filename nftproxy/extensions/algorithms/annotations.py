"""The annotation `algorithm`, which other extensions declare too, with further words."""

from __future__ import annotations

from nftproxy.model.annotations import Option, Word
from nftproxy.model.keys import KeyEnum


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


ALGORITHM: Option[Algorithm] = Option(
    "algorithm",
    Word(Algorithm),
    Algorithm.RANDOM,
    "says how an endpoint is [chosen](#algorithms) for a new connection",
    ("services",),
)
