"""Consistent hashing: the endpoint of each row of a table, so that few rows change as endpoints come and go.

This is Maglev's table (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, 3.4).
Each endpoint prefers the rows in an order of its own, which is a permutation because the table's size is prime.  In
turn, each endpoint takes the free row that it prefers most, until no row is free.  So

* the table depends on the present endpoints alone, not on past endpoints: every node, and a restarted proxy, has the
  same table
* shares of endpoints of the same weight differ by a single row
* when an endpoint of N goes, its rows are shared out, and few other rows change: at most 2 % of the table more.

Weights work as in Envoy (source/extensions/load_balancing_policies/maglev): in each round an endpoint's weight is
added to its account, and it takes a row when the account reaches the largest weight.  In the first round each endpoint
takes a row.

A packet's row is a hash of its client, scaled to the size.  So another size sends nearly all clients elsewhere, and
there are only three sizes.  As long as a Service stays within a size, it may grow and shrink freely.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

SIZES = ((20, 4_093), (1_000, 16_381))
"""Pairs of a number of endpoints and the rows of a table for up to as many: primes.  The second size is Cilium's
default: when one of 5 to 200 endpoints goes, 1/N of the clients and 0.3 to 2 % more move.  The first size does the same
for up to 20 endpoints, with a quarter of the rows."""
LARGEST = 32_749
"""Rows for more endpoints: the largest prime below 2^15.  Twice as many rows would be too many for a Service with two
fronts (limits.py)."""

_KEY = b"nftproxy maglev 1"
"""Any constant.  It must never change with an update, since another constant moves all clients."""


def table_size(endpoints: int) -> int:
    """The number of rows of the table for a number of endpoints."""
    return next((size for most, size in SIZES if endpoints <= most), LARGEST)


@functools.lru_cache(maxsize=64)
def table(endpoints: tuple[str, ...], weights: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The endpoint of each row, as an index of `endpoints`.

    Args:
        endpoints: the name of each endpoint, at least one name, in an order that doesn't depend on anything else.
        weights: the weight of each endpoint, 1 or more.
        size: the number of rows, a prime.
    """
    rows = [-1] * size
    preferences = [_preferences(name, size) for name in endpoints]
    for index in itertools.islice(_takers(weights), size):
        preferences[index] = _claim_row(rows, index, *preferences[index])
    return tuple(rows)


def _takers(weights: Sequence[int]) -> Iterator[int]:
    """Yield for each row of the table the endpoint that takes it, by weight.  The iterator has no end.

    It goes in rounds, in which endpoints keep their order.  A light endpoint takes no row in most rounds.
    """
    highest = max(weights)
    accounts = [0] * len(weights)
    due = defaultdict[int, list[int]](list, {1: [*range(len(weights))]})  # by the number of the round
    for number in itertools.count(1):
        for index in sorted(due.pop(number)):  # never empty: the heaviest endpoint takes a row in each round
            yield index
            accounts[index] += highest
            due[max(number + 1, -(-accounts[index] // weights[index]))].append(index)


def _preferences(name: str, size: int) -> tuple[int, int]:
    """The row that an endpoint prefers most, and the distance from each preferred row to the next."""
    digest = hashlib.blake2b(name.encode(), digest_size=16, key=_KEY).digest()
    return int.from_bytes(digest[:8], "big") % size, int.from_bytes(digest[8:], "big") % (size - 1) + 1


def _claim_row(rows: list[int], index: int, row: int, skip: int) -> tuple[int, int]:
    """Give the endpoint its first free row from `row` on.  Return its next preference and its `skip`."""
    while rows[row] >= 0:
        row = (row + skip) % len(rows)
    rows[row] = index
    return (row + skip) % len(rows), skip
