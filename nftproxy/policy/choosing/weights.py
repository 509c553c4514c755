"""The number of rows of each endpoint on a list, so that a uniform draw of a row follows the weights.

An endpoint's weight is its EndpointSlice's (annotation nftproxy.dev/weight) times its zone's (nftproxy.dev/weights on
the Service).  The rows are the weights divided by their greatest common divisor: the smallest number of rows that gives
exactly these shares.  If that is more than `most_rows`, they are the best of the largest approximations that fit:

* every endpoint has a row.  Only weight 0 gives an endpoint no connections, and drained endpoints are off the list.
* endpoints of the same weight have the same number of rows, and a larger weight never has fewer.

The same weights give the same rows, independent of the past and of their order.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import math
from collections import Counter
from collections.abc import Sequence

from nftproxy.model.objects import Place
from nftproxy.policy.choosing.verdicts import Candidate

EXACT_ROWS = 1_000
"""Any list may have this number of rows.  So weights of 1 % and 99 %, or 1 and 999, need no rounding."""
ROWS_OF_EACH = 4
"""A list of more than 250 endpoints may have this number of rows for each endpoint."""

TRIED = 64
"""The number of approximations compared, from the most rows that fit downwards: the best is close to optimal."""


def most_rows(endpoints: int) -> int:
    """An upper bound of the number of rows for this number of weighted endpoints."""
    return max(EXACT_ROWS, ROWS_OF_EACH * endpoints)


def by_weight(candidates: Sequence[Candidate]) -> Sequence[Place]:
    """The endpoint in each row of a list that is drawn by weight alone, in the order of the endpoints.

    Args:
        candidates: the list, which isn't empty.  All weights are 1 or more.
    """
    rows = rows_of([candidate.weight for candidate in candidates])
    return [candidate.place for candidate, count in zip(candidates, rows, strict=True) for _ in range(count)]


def rows_of(weights: Sequence[int]) -> tuple[int, ...]:
    """The rows of each endpoint.

    Args:
        weights: the weight of each endpoint, 1 or more, in any unit.
    """
    by_weight = dict(_rows(tuple(sorted(Counter(weights).items()))))
    return tuple(by_weight[weight] for weight in weights)


def apportioned(weights: Sequence[int], total: int) -> list[int]:
    """Divide `total` rows by weights, 1 or more: each endpoint has a row, and no share could be closer to its weight.

    Endpoints of the same weight may differ by a row: the first have more.

    Args:
        weights: the weight of each endpoint, in any unit.
        total: the number of rows, at least one for each endpoint.
    """
    whole = sum(weights)
    rows = [max(1, weight * total // whole) for weight in weights]
    step = 1 if sum(rows) < total else -1
    errors = [(step * (rows[n] * whole - weight * total), n) for n, weight in enumerate(weights) if rows[n] + step]
    heapq.heapify(errors)
    for _ in range(abs(total - sum(rows))):
        error, number = errors[0]
        rows[number] += step
        if rows[number] + step:
            heapq.heapreplace(errors, (error + whole, number))
        else:
            heapq.heappop(errors)
    return rows


@functools.lru_cache(maxsize=1024)
def _rows(counted: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The rows of each weight.  `counted` has each weight once, with its number of endpoints."""
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
    """Rows in proportion to the weights, where the largest weight has `highest`.  Halves are rounded up."""
    return [max(1, (2 * weight * highest + weights[-1]) // (2 * weights[-1])) for weight in weights]


def _error(weights: Sequence[int], rows: Sequence[int], counts: Sequence[int]) -> float:
    """The largest error among weights: how far the share of all endpoints of a weight is from the exact share."""
    should, have = _total(weights, counts), _total(rows, counts)
    shares = zip(weights, rows, counts, strict=True)
    return max(count * abs(weight / should - row / have) for weight, row, count in shares)


def _total(each: Sequence[int], counts: Sequence[int]) -> int:
    return sum(map(int.__mul__, each, counts))
