"""Tables for consistent hashing: complete, even, the same for the same endpoints, and stable."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.strategies import quick

from nftproxy.extensions.algorithms.maglev import LARGEST, SIZES, table, table_size
from tools.bench.work import lines

COUNTS = st.integers(1, 60)


def names(count: int) -> list[str]:
    """So many endpoints, in the order in which lists have them."""
    return sorted(f"10.1.{each // 250}.{each % 250} 8080" for each in range(count))


def rows(endpoints: list[str], weights: list[int] | None = None) -> list[str]:
    """The endpoint in each row of the table."""
    indices = table(tuple(endpoints), tuple(weights or [1] * len(endpoints)), table_size(len(endpoints)))
    return [endpoints[index] for index in indices]


def moved(before: list[str], after: list[str]) -> float:
    """The part of the rows, and so of the clients, that goes elsewhere."""
    return sum(map(str.__ne__, before, after)) / len(before)


def test_sizes_are_primes() -> None:
    """Each size is a prime, so that every skip makes a permutation, and grows with the endpoints."""
    sizes = [*(size for _, size in SIZES), LARGEST]
    assert sizes == sorted(sizes)
    assert all(size % divisor for size in sizes for divisor in range(2, int(size**0.5) + 1))
    assert [table_size(count) for count in (1, 20, 21, 1_000, 1_001, 30_000)] == [4_093, 4_093, 16_381, 16_381] + [
        LARGEST
    ] * 2


def test_the_table_stays_what_it_is() -> None:
    """Every earlier version made the same table.  Another table would move all clients at an update."""
    assert table(("a", "b", "c"), (1, 1, 1), 4_093)[:16] == (1, 2, 1, 2, 1, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1)
    assert crc32(bytes(table(("a", "b", "c"), (3, 2, 1), 4_093))) == 0xC8F62158


@quick(20)
@given(COUNTS)
def test_rows_are_shared_evenly(count: int) -> None:
    """Every row has an endpoint, and the rows of endpoints of the same weight differ by 1 at most."""
    counted = Counter(rows(names(count)))
    assert counted.total() == table_size(count)
    assert max(counted.values()) - min(counted.values()) <= 1
    assert len(counted) == count


@quick(20)
@given(COUNTS, st.integers(0, 59))
def test_an_endpoint_that_goes_moves_few_rows(count: int, which: int) -> None:
    """When 1 of N endpoints goes, 1/N of the rows change and at most 2 % more, and all are back when it is."""
    before = names(count + 1)
    after = [name for name in before if name != before[which % len(before)]]
    if table_size(len(after)) == table_size(len(before)):
        assert moved(rows(before), rows(after)) <= 1 / len(before) + 0.02
    assert rows(list(before)) == rows(before)


@pytest.mark.parametrize("weights", [[100, 100, 1], [3, 1]])
def test_rows_follow_weights(weights: list[int]) -> None:
    """An endpoint's part of the rows is its part of the weights, to a few rows."""
    counted = Counter(table(tuple("abc"[: len(weights)]), tuple(weights), 4_093))
    for index, weight in enumerate(weights):
        assert abs(counted[index] / counted.total() - weight / sum(weights)) < 0.001


def test_a_weight_that_changes_moves_little() -> None:
    """A canary that goes from 1 % to 2 % takes its clients from the other endpoints, and moves few more."""
    endpoints = names(4)
    one, two = (rows(endpoints, [99, 99, 99, weight]) for weight in (3, 6))
    assert moved(one, two) < 0.01 + 0.02


def test_a_heavy_endpoint_costs_no_walk_for_each_of_its_rows() -> None:
    """With 500 light endpoints beside a heavy endpoint, a table takes less than with 501 of equal weight."""
    endpoints = tuple(names(501))
    uneven = lines(lambda: table(endpoints, (10_000, *[1] * 500), 4_093))
    assert uneven < lines(lambda: table(endpoints, (1,) * 501, 4_093))


def test_more_endpoints_than_rows() -> None:
    """If there are more endpoints than rows, each row has an endpoint of its own."""
    count = LARGEST + 10
    assert len(set(table(tuple(map(str, range(count))), (1,) * count, LARGEST))) == LARGEST
