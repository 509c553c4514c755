"""Algorithms (`nftproxy.dev/algorithm`) by which an endpoint is drawn, by a hash of the client or in turn, and weights.

The proxy itself draws by weight.  The annotations of weights (`nftproxy.dev/weights`, `nftproxy.dev/weight`) are
declared here.
"""

from __future__ import annotations

from collections.abc import Collection

from nftproxy.explanation.explained_extension import Chosen, ExplainedExtension
from nftproxy.explanation.question import ToAddress
from nftproxy.extensions.algorithms import maglev
from nftproxy.extensions.algorithms.annotations import ALGORITHM, Algorithm
from nftproxy.extensions.algorithms.fields import DEFAULT_ALGORITHM
from nftproxy.extensions.algorithms.placement import hashed, in_turn, lane, most_in_turn
from nftproxy.model.addresses import Protocol
from nftproxy.model.annotations import PLAIN, WEIGHT, WEIGHTS, Options
from nftproxy.model.objects import Service
from nftproxy.model.settings import Config
from nftproxy.pipeline import Pipeline
from nftproxy.policy.drawing import is_hashed
from nftproxy.policy.extension import Drawn, DrawnPort
from nftproxy.policy.numbers import Draw

_HASHES = {
    Algorithm.SOURCE_HASH: Draw.BY_CLIENT,
    Algorithm.SOURCE_HASH_WITH_PORT: Draw.BY_CLIENT_AND_PORT,
    Algorithm.CONSISTENT_HASH: Draw.CONSISTENT,
    Algorithm.CONSISTENT_HASH_WITH_PORT: Draw.CONSISTENT_WITH_PORT,
}
_WORDS = {
    Algorithm.ROUND_ROBIN: "one after the other (round-robin)",
    Algorithm.SOURCE_HASH: "by a hash of the client's address (source-hash)",
    Algorithm.SOURCE_HASH_WITH_PORT: "by a hash of the client's address and port (source-hash-with-port)",
    Algorithm.CONSISTENT_HASH: "by a hash of the client's address that moves few clients (consistent-hash)",
    Algorithm.CONSISTENT_HASH_WITH_PORT: (
        "by a hash of the client's address and port that moves few clients (consistent-hash-with-port)"
    ),
}
"""The algorithms of this extension, in words."""


def _defaults(config: Config) -> Options:
    algorithm = config[DEFAULT_ALGORITHM]
    return Options.of({ALGORITHM: algorithm}) if algorithm in _WORDS else PLAIN


def _uses(service: Service) -> Collection[Algorithm]:
    algorithm = service.options[ALGORITHM]
    return (algorithm,) if algorithm in _WORDS else ()


def _algorithm(service: Service, *, is_hashed: bool) -> Algorithm | None:
    """The algorithm, None to leave the draw to the proxy.

    Where nft can't remember clients, a hash of the client's address must bring them back.
    """
    algorithm = service.options[ALGORITHM]
    if not is_hashed:
        return algorithm
    return Algorithm.CONSISTENT_HASH if _is_consistent(algorithm) else None


def _is_consistent(algorithm: Algorithm) -> bool:
    return algorithm in _HASHES and _HASHES[algorithm].is_consistent


def _drawn(port: DrawnPort) -> Drawn | None:
    algorithm = _algorithm(port.service, is_hashed=port.is_hashed)
    if algorithm is Algorithm.ROUND_ROBIN:
        turn = f"{port.node_name} {port.service.key}"
        counter = Draw(Draw.IN_TURN_0.value + lane(str(port.service.key)))
        return Drawn(counter, lambda candidates, _: in_turn(candidates, turn))
    draw = _HASHES.get(algorithm) if algorithm else None
    if draw is None:
        return None
    return Drawn(draw, (lambda candidates, _: hashed(candidates)) if draw.is_consistent else None)


def _most_rows(service: Service, _: Protocol, endpoints: int, rows: int) -> int:
    algorithm = service.options[ALGORITHM]
    if algorithm is Algorithm.ROUND_ROBIN:
        return most_in_turn(rows)
    return maglev.table_size(endpoints) if _is_consistent(algorithm) else rows


def _how_chosen(pipeline: Pipeline, spot: ToAddress, service: Service, _: int) -> Chosen | None:
    algorithm = _algorithm(service, is_hashed=is_hashed(spot.family, service, pipeline.settings))
    return Chosen(algorithm.value, _WORDS[algorithm]) if algorithm in _WORDS else None


ALGORITHMS = ExplainedExtension(
    name="algorithms",
    options=(ALGORITHM, WEIGHTS, WEIGHT),
    defaults=_defaults,
    uses=_uses,
    drawn=_drawn,
    most_rows=_most_rows,
    how_chosen=_how_chosen,
)
