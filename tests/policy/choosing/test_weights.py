"""Weights as rows: exact if the rows suffice, else as near as they allow, and independent of history."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.strategies import quick

from nftproxy.policy.choosing.weights import by_weight, most_rows, rows_of
from tests.support.candidates import candidates

weights = st.lists(st.sampled_from([1, 2, 3, 7, 33, 50, 99, 100, 300, 9_900, 10_000]), min_size=1, max_size=300)


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ([100], [1]),
        ([100, 100, 100], [1, 1, 1]),
        ([300, 100], [3, 1]),
        ([50, 100, 75], [2, 4, 3]),
        ([100, 100, 100, 3], [100, 100, 100, 3]),
        ([99, 1], [99, 1]),
        ([999, 1], [999, 1]),
        ([10_000, 1], [999, 1]),
        ([10_000, 10_000, 1], [499, 499, 1]),
        ([10_000, 17], [998, 2]),
        ([5_000, 5_000, 33, 33, 101, 101, 101], [447, 447, 3, 3, 9, 9, 9]),
    ],
)
def test_the_smallest_number_of_rows(given: list[int], rows: list[int]) -> None:
    """The rows are the weights divided by their greatest common divisor, or the best fit within the bound."""
    assert list(rows_of(given)) == rows


@quick(60)
@given(weights)
def test_rows_are_bounded_and_in_order(given: list[int]) -> None:
    """Each endpoint has a row, equal weights have equally many, larger weights not fewer, and the sum is bounded."""
    rows = rows_of(given)
    assert min(rows) >= 1
    assert sum(rows) <= most_rows(len(given))
    by_weight = dict(zip(given, rows, strict=True))
    assert [by_weight[weight] for weight in given] == list(rows)
    assert sorted(by_weight.values()) == [by_weight[weight] for weight in sorted(by_weight)]


@quick(60)
@given(weights, st.integers(2, 50))
def test_rows_are_reduced(given: list[int], factor: int) -> None:
    """Shares that fit are exact, by the smallest number of rows, and the same in any unit and in any order."""
    rows = rows_of(given)
    exact = [weight // math.gcd(*given) for weight in given]
    if sum(exact) <= most_rows(len(given)):
        assert list(rows) == exact
        assert rows_of([weight * factor for weight in given]) == rows
    shuffled = random.Random(factor).sample(list(zip(given, rows, strict=True)), len(given))
    assert rows_of([weight for weight, _ in shuffled]) == tuple(row for _, row in shuffled)


@quick(60)
@given(weights)
def test_rounding_is_small(given: list[int]) -> None:
    """No share is off by more than a row, plus the excess of the lightest endpoints, each of which has a row."""
    rows = rows_of(given)
    raised = rows.count(1) if max(rows) > 1 else 0
    for weight, row in zip(given, rows, strict=True):
        assert abs(row / sum(rows) - weight / sum(given)) <= (1 + raised) / sum(rows)


def test_many_weights_cost_little() -> None:
    """Five thousand endpoints with a thousand different weights have two to four rows each, on average."""
    given = [1 + number % 1_600 * 7 for number in range(5_000)]
    assert 10_000 < sum(rows_of(given)) <= 20_000


def test_rows_by_weight() -> None:
    """Endpoints of the same weight have a row each, in order, and of different weights rows in proportion."""
    alike = candidates(100, 100, 100)
    assert by_weight(alike) == [each.place for each in alike]
    light, heavy = given = candidates(25, 100)
    assert by_weight(given) == [light.place] + [heavy.place] * 4
