"""Algorithms (`nftproxy.dev/algorithm`) by which an endpoint is drawn, by a hash of the client or in turn, and weights.

The proxy itself draws by weight.  The annotations of weights (`nftproxy.dev/weights`, `nftproxy.dev/weight`) are
declared here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.extensions.algorithms import maglev
from nftproxy.extensions.algorithms.annotations import ALGORITHM, CONSISTENT, DRAWN_BY, Algorithm, algorithm_of
from nftproxy.extensions.algorithms.fields import DEFAULT_ALGORITHM
from nftproxy.extensions.algorithms.placement import hashed, in_turn, lane, most_in_turn
from nftproxy.model.addresses import Protocol
from nftproxy.model.annotations import PLAIN, WEIGHT, WEIGHTS, Options
from nftproxy.model.objects import Service
from nftproxy.model.settings import Config
from nftproxy.policy.extension import Drawn, DrawnPort
from nftproxy.policy.numbers import Draw

if TYPE_CHECKING:
    from nftproxy.explanation.words import Words

_HASHES = {
    Algorithm.SOURCE_HASH: Draw.BY_CLIENT,
    Algorithm.SOURCE_HASH_WITH_PORT: Draw.BY_CLIENT_AND_PORT,
    Algorithm.CONSISTENT_HASH: Draw.CONSISTENT,
    Algorithm.CONSISTENT_HASH_WITH_PORT: Draw.CONSISTENT_WITH_PORT,
}


def _defaults(config: Config) -> Options:
    algorithm = config[DEFAULT_ALGORITHM]
    return Options.of({ALGORITHM: algorithm}) if algorithm in DRAWN_BY else PLAIN


def _uses(service: Service) -> Collection[Algorithm]:
    algorithm = service.options[ALGORITHM]
    return (algorithm,) if algorithm in DRAWN_BY else ()


def _drawn(port: DrawnPort) -> Drawn | None:
    algorithm = algorithm_of(port.service, is_hashed=port.is_hashed)
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
    return maglev.table_size(endpoints) if algorithm in CONSISTENT else rows


def _words() -> Words:
    from nftproxy.extensions.algorithms.words import WORDS

    return WORDS


ALGORITHMS = ExplainedExtension(
    name="algorithms",
    options=(ALGORITHM, WEIGHTS, WEIGHT),
    defaults=_defaults,
    uses=_uses,
    drawn=_drawn,
    most_rows=_most_rows,
    words=_words,
)
