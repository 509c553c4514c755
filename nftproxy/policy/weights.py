"""How many rows each endpoint has on a list, so that a draw among rows that are all alike follows the weights.

An endpoint's weight is its EndpointSlice's (annotation nftproxy.dev/weight) times its zone's (nftproxy.dev/weights on
the Service).  The rows are the weights divided by what divides them all: the smallest number of rows that gives exactly
these shares.  Where that is more than `most_rows`, they are the best of the largest numbers of rows that fit:

* every endpoint has a row: only weight 0, which takes it off the list before it comes here, gives it no connections;
* endpoints of the same weight have the same number of rows, and a larger weight never has fewer.

The same weights give the same rows, whatever they were before and in whatever order they come.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections import Counter
from collections.abc import Sequence

EXACT_ROWS = 1_000
"""So many rows any list may have: 1 % beside 99 %, or 1 beside 999, take no rounding."""
ROWS_OF_EACH = 4
"""Where endpoints are many, so many rows for each of them.  What a list of N takes stays within 4 N."""

TRIED = 64
"""How many approximations are compared: those with the most rows that fit, of which one is near its best."""


def most_rows(endpoints: int) -> int:
    """How many rows the weights of so many endpoints may come to."""
    return max(EXACT_ROWS, ROWS_OF_EACH * endpoints)


def rows_of(weights: Sequence[int]) -> tuple[int, ...]:
    """The rows of each endpoint.

    Args:
        weights: that of each, 1 or more, in any unit.
    """
    by_weight = dict(_rows(tuple(sorted(Counter(weights).items()))))
    return tuple(by_weight[weight] for weight in weights)


@functools.lru_cache(maxsize=1024)
def _rows(counted: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The rows of each weight; `counted` has each weight once, with how many endpoints have it."""
    weights = [weight for weight, _ in counted]
    counts = [count for _, count in counted]
    most = most_rows(sum(counts))
    exact = [weight // math.gcd(*weights) for weight in weights]
    if _total(exact, counts) <= most:
        return tuple(zip(weights, exact, strict=True))
    beyond = bisect.bisect(range(most), most, key=lambda highest: _total(_scaled(weights, highest), counts))
    fitting = [_scaled(weights, highest) for highest in range(beyond)[-TRIED:]]
    best = min(fitting, key=lambda rows: _error(weights, rows, counts))
    return tuple(zip(weights, best, strict=True))


def _scaled(weights: Sequence[int], highest: int) -> list[int]:
    """Rows in proportion to the weights, where the largest weight has `highest`; halves are rounded up."""
    return [max(1, (2 * weight * highest + weights[-1]) // (2 * weights[-1])) for weight in weights]


def _error(weights: Sequence[int], rows: Sequence[int], counts: Sequence[int]) -> float:
    """By how much the share of all endpoints of one weight differs from what it should be, at most."""
    should, have = _total(weights, counts), _total(rows, counts)
    shares = zip(weights, rows, counts, strict=True)
    return max(count * abs(weight / should - row / have) for weight, row, count in shares)


def _total(each: Sequence[int], counts: Sequence[int]) -> int:
    return sum(map(int.__mul__, each, counts))
