"""The rows of a list that is shifted to endpoints with fewer connections."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given as drawing
from hypothesis import strategies as st

from nftproxy.extensions.least_connections.balanced_rows import (
    NO_FACTORS,
    balanced,
    base_rows,
    is_balanced,
    most_balanced,
)
from nftproxy.policy.choosing.weights import by_weight
from nftproxy.policy.drawing import placed
from tests.support.candidates import candidates


@pytest.mark.parametrize("weights", [(100, 100, 100), (1, 3), (100, 100, 3), (7, 1000, 999)])
def test_least_connections_begin_as_random(weights: Sequence[int]) -> None:
    """Without factors each endpoint has the share that random choice gives it, in more rows."""
    given = candidates(*weights)
    by_chance = Counter(placed(given))
    rows = Counter(balanced(given, NO_FACTORS))
    copies = rows.total() // by_chance.total()
    assert rows == {place: copies * count for place, count in by_chance.items()}
    assert rows.total() >= 8 * len(given) > (copies - 1) * by_chance.total()


@drawing(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 800)), min_size=2, max_size=40))
def test_factors_move_rows(drawn: list[tuple[int, int]]) -> None:
    """The number of rows stays, each endpoint has one, and a larger product gives no less, but for rounding."""
    given = candidates(*(weight for weight, _ in drawn))
    factors = {each.place: factor for each, (_, factor) in zip(given, drawn, strict=True)}
    rows = Counter(balanced(given, factors))
    assert rows.total() == len(balanced(given, NO_FACTORS))
    assert rows.keys() == factors.keys()
    products = {place: count * factors[place] for place, count in base_rows(given).items()}
    ordered = [rows[place] for place in sorted(products, key=lambda place: products[place])]
    assert all(before <= after + 1 for before, after in itertools.pairwise(ordered))


def test_few_rows_change() -> None:
    """A shift replaces the rows that an endpoint loses, and no others."""
    given = candidates(*[100] * 10)
    before = balanced(given, NO_FACTORS)
    after = balanced(given, {given[0].place: 50})
    assert Counter(after)[given[0].place] == 4
    assert sum(map(operator.ne, before, after)) == 4


def test_which_lists_are_balanced() -> None:
    """A list of a single endpoint, or of more than 128, isn't balanced."""
    assert [is_balanced(count) for count in (1, 2, 128, 129)] == [False, True, True, False]


@pytest.mark.parametrize("weights", [(100, 100), (100, 1, 99), (1,) + (10_000,) * 30, (100,) * 128])
def test_no_list_exceeds_the_reckoned_rows(weights: tuple[int, ...]) -> None:
    """No list has more rows than the limit reckons with before it is made."""
    given = candidates(*weights)
    assert len(balanced(given, NO_FACTORS)) <= most_balanced(len(given), len(by_weight(given)))


def test_bounds() -> None:
    """The bound on a list's rows is a small multiple of its endpoints."""
    assert [most_balanced(count, count) for count in (5, 200)] == [5 * 8, 128 * 8]
