"""Consistent hashing: which endpoint each row of a table is, so that few rows change as endpoints come and go.

This is Maglev's table (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, 3.4).
Each endpoint prefers the rows in an order of its own, which is a permutation because the table's size is prime.  In
turn, each takes the row that it prefers among those that are still free, until none is.  So

* the table depends on the endpoints that there are, not on those that there were: every node, and a proxy that starts
  anew, has the same one;
* shares of endpoints of one weight differ by one row;
* when one of N goes, its rows are shared out, and few others change: at most 2 % of the table more.

Weights are as Envoy has them (source/extensions/load_balancing_policies/maglev): in each round an endpoint's weight is
added to its account, and it takes a row whenever that reaches the largest weight.  In the first round each takes one.

A packet's row is a hash of its client, scaled to the size.  So another size sends nearly all clients elsewhere, and
there are but three of them: between the numbers at which the size changes, a Service may grow and shrink as it likes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

SIZES = ((20, 4_093), (1_000, 16_381))
"""Up to so many endpoints, so many rows: primes.  With the second one, Cilium's default, a table is so large that of 5
to 200 endpoints one that goes takes 1/N and 0.3 to 2 % more of the clients along; the first one does the same for up to
20, at a quarter of the rows."""
LARGEST = 32_749
"""For more endpoints: the largest prime below 2^15.  Twice as many rows would be too many for a Service with two fronts
(limits.py)."""

_KEY = b"nftproxy maglev 1"
"""Any constant: another one moves all clients, and so must never come with an update."""


def table_size(endpoints: int) -> int:
    """How many rows the table for so many endpoints has."""
    return next((size for most, size in SIZES if endpoints <= most), LARGEST)


@functools.lru_cache(maxsize=64)
def table(endpoints: tuple[str, ...], weights: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The endpoint of each row, as an index of `endpoints`.

    Args:
        endpoints: what each is called, in any order that does not depend on what else is there; not empty.
        weights: that of each, 1 or more.
        size: how many rows there are, a prime.
    """
    rows = [-1] * size
    highest = max(weights)
    accounts = [0] * len(endpoints)
    preferences = [_preferences(name, size) for name in endpoints]
    left, turn = size, 0
    while left:
        turn += 1
        for index, weight in enumerate(weights):
            if turn * weight >= accounts[index] and left:
                accounts[index] += highest
                preferences[index] = _take(rows, index, *preferences[index])
                left -= 1
    return tuple(rows)


def moved(before: Sequence[str], after: Sequence[str]) -> float:
    """The part of the rows, and so of the clients, that goes elsewhere in another table of the same size."""
    return sum(map(str.__ne__, before, after)) / len(before)


def _preferences(name: str, size: int) -> tuple[int, int]:
    """The row that an endpoint likes best, and how far it is to the next each time."""
    digest = hashlib.blake2b(name.encode(), digest_size=16, key=_KEY).digest()
    return int.from_bytes(digest[:8], "big") % size, int.from_bytes(digest[8:], "big") % (size - 1) + 1


def _take(rows: list[int], index: int, row: int, skip: int) -> tuple[int, int]:
    """Give the endpoint its first free row from `row` on; where it looks next time."""
    while rows[row] >= 0:
        row = (row + skip) % len(rows)
    rows[row] = index
    return (row + skip) % len(rows), skip
