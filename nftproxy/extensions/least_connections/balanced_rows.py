"""The endpoint in each row of a list that is shifted to endpoints with fewer connections.

The rows of a random draw are repeated, so that there is room for shifts.  The number of rows depends on the endpoints
and weights alone, so that a shift replaces some rows and nothing else.  Without a shift each share is that of a random
draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nftproxy.extensions.least_connections.factors import NEUTRAL, Factors
from nftproxy.model.objects import Place
from nftproxy.policy.choosing.verdicts import Candidate
from nftproxy.policy.choosing.weights import apportioned, rows_of
from nftproxy.policy.drawing import in_slots

BALANCED_ROWS = 8
"""Rows that a list with least connections has for each endpoint at least, in the mean.  An endpoint keeps a row, so it
gets an eighth of its share at least."""
MOST_BALANCED = 128
"""The most endpoints of such a list.  Longer lists are drawn at random."""

NO_FACTORS: Factors = {}


def is_balanced(endpoints: int) -> bool:
    """Whether a list of so many endpoints can be shifted to endpoints with fewer connections."""
    return 1 < endpoints <= MOST_BALANCED


def base_rows(candidates: Sequence[Candidate]) -> Mapping[Place, int]:
    """The rows of each endpoint by its weight alone, as for a random draw."""
    counts = rows_of([candidate.weight for candidate in candidates])
    return {candidate.place: count for candidate, count in zip(candidates, counts, strict=True)}


def balanced_rows(base: Mapping[Place, int], factors: Factors) -> Mapping[Place, int]:
    """The rows of each endpoint of a list with least connections: shifted by the factors, the same number in all."""
    weights = [rows * factors.get(place, NEUTRAL) for place, rows in base.items()]
    return dict(zip(base, apportioned(weights, _copies(base) * sum(base.values())), strict=True))


def balanced(candidates: Sequence[Candidate], factors: Factors) -> Sequence[Place]:
    """The endpoint in each row of a list that is balanced.

    Endpoints give up their last rows, and others take these, so that a shift replaces no other row.
    """
    base = base_rows(candidates)
    copies = _copies(base)
    rows = list(in_slots([place for place, count in base.items() for _ in range(copies * count)]))
    left = dict(balanced_rows(base, factors))
    given_up = []
    for number, place in enumerate(rows):
        if left[place]:
            left[place] -= 1
        else:
            given_up.append(number)
    takers = (place for place, count in left.items() for _ in range(count))
    for number, place in zip(given_up, takers, strict=True):
        rows[number] = place
    return rows


def _copies(base: Mapping[Place, int]) -> int:
    """How often the rows of a random draw are repeated, so that there are `BALANCED_ROWS` for each endpoint."""
    return -(-BALANCED_ROWS * len(base) // sum(base.values()))


def most_balanced(endpoints: int, rows: int) -> int:
    """The most rows of a list with least connections, if a random draw of that list has `rows`.

    A node may have a shorter list than the others, as by policy Local.
    """
    balanced = BALANCED_ROWS * min(endpoints, MOST_BALANCED)
    return max(rows, balanced if rows == endpoints else balanced + min(rows, balanced) - 1)
