"""The endpoint in each row: in turn, or by Maglev's table."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Sequence

import pytest

from nftproxy.extensions.algorithms import maglev
from nftproxy.extensions.algorithms.placement import LANES, ROUNDS, hashed, in_turn, lane, most_in_turn
from nftproxy.model.objects import Place
from nftproxy.policy.choosing.verdicts import Candidate
from nftproxy.policy.choosing.weights import by_weight
from nftproxy.policy.numbers import Draw
from tests.support.candidates import candidates


def places(given: Sequence[Candidate]) -> list[Place]:
    """The places of these candidates."""
    return [each.place for each in given]


def rounds(rows: Sequence[Place], length: int) -> list[tuple[Place, ...]]:
    """The rows in rounds of this length."""
    return [tuple(rows[start : start + length]) for start in range(0, len(rows), length)]


def test_rows_of_consistent_hash() -> None:
    """The rows are Maglev's table, in which an endpoint is called by its address and port."""
    given = candidates(100, 50)
    indices = maglev.table(("10.1.0.1 8080", "10.1.0.2 8080"), (100, 50), 4_093)
    assert hashed(given) == [places(given)[index] for index in indices]


def test_rounds_of_round_robin() -> None:
    """Each round has every endpoint as often as it weighs, in an order of its own."""
    given = candidates(100, 100, 50)
    first, second, third = places(given)
    turns = rounds(in_turn(given, "node-a shop/web"), 5)
    assert len(turns) == ROUNDS
    assert all(Counter(turn) == Counter({first: 2, second: 2, third: 1}) for turn in turns)
    assert len(set(turns)) > 1


@pytest.mark.parametrize(("count", "rounds"), [(2, 8), (3, 8), (4, 8), (5, 8), (32, 8), (33, 6), (50, 4), (128, 2)])
def test_every_other_turn_meets_all_alike(count: int, rounds: int) -> None:
    """A client that gets every other row meets all endpoints equally often."""
    for number in range(10):
        rows = in_turn(candidates(*[100] * count), f"node-a shop/web-{number}")
        met = Counter([*rows, *rows][::2])
        assert len(met) == count
        assert set(met.values()) == {rounds}


def test_the_order_stays_what_it_is() -> None:
    """Every earlier version made the same rows and counter.

    Others would replace all rows of such Services at an update.
    """
    rows = in_turn(candidates(100, 100, 50), "node-a shop/web")
    assert "".join(address[-1] for address, _ in rows) == "2132112312223111132221123321123211221123"
    assert [lane(f"shop/web-{number}") for number in range(8)] == [1, 7, 6, 1, 2, 0, 4, 2]


def test_nodes_and_services_start_with_different_endpoints() -> None:
    """The first row of a list is another endpoint on other nodes and for other Services, each equally often."""
    given = candidates(*[100] * 5)
    for name in ("node-{} shop/web", "node-a shop/web-{}"):
        first = Counter(in_turn(given, name.format(number))[0] for number in range(1000))
        assert all(140 < first[each] < 260 for each in places(given))


def test_a_turn_stays_when_others_come() -> None:
    """A new endpoint changes nothing about the order of the other endpoints within a round."""
    given = candidates(*[100] * 6)
    five, six = (rounds(in_turn(given[:n], "x"), n) for n in (5, 6))
    for before, after in zip(five, six, strict=True):
        assert [each for each in after if each != places(given)[5]] == list(before)


def test_few_turns_of_a_long_list_move() -> None:
    """When an endpoint of 500 goes, few others have another row.  Each node has an order of its own."""
    given = candidates(*[100] * 500)
    rows = in_turn(given, "node-a shop/web")
    for gone in range(0, 500, 50):
        left = in_turn(given[:gone] + given[gone + 1 :], "node-a shop/web")
        assert sum(map(operator.ne, rows, left)) <= 100
    other = in_turn(given, "node-b shop/web")
    assert Counter(other) == Counter(rows)
    assert sum(map(operator.eq, rows, other)) < 50


def test_turns_of_a_heavy_endpoint_are_spread() -> None:
    """An endpoint of a long list that has many turns doesn't have them in a row."""
    heavy, *_ = given = candidates(2000, *[100] * 180)
    rows = in_turn(given, "node-a shop/web")
    in_a_row = max(len(list(turns)) for place, turns in itertools.groupby(rows) if place == heavy.place)
    assert Counter(rows)[heavy.place] == 20
    assert in_a_row <= 2


def test_services_spread_over_all_counters() -> None:
    """Services spread over all counters that have numbers."""
    assert {lane(f"shop/web-{number}") for number in range(200)} == set(range(LANES))
    assert sum(draw.is_in_turn for draw in Draw) == LANES


@pytest.mark.parametrize("weights", [(100,), (100, 100), (100, 1, 99), (1,) + (10_000,) * 30, (100,) * 300])
def test_no_list_exceeds_the_reckoned_rows(weights: tuple[int, ...]) -> None:
    """No list has more rows than the limit reckons with before it is made."""
    given = candidates(*weights)
    assert len(in_turn(given, "")) <= most_in_turn(len(by_weight(given)))
    assert len(hashed(given)) == maglev.table_size(len(given))


def test_bounds() -> None:
    """All rounds together have few rows, or are a single round of the list."""
    assert [most_in_turn(rows) for rows in (5, 32, 100, 257)] == [40, 256, 256, 257]
