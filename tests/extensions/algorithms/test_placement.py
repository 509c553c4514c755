"""The endpoint in each row: by weight, in turn, or by Maglev's table."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given as drawing
from hypothesis import strategies as st

from nftproxy.extensions.algorithms import maglev
from nftproxy.extensions.algorithms.placement import LANES, ROUNDS, base_rows, lane, most_placed, placed
from nftproxy.extensions.algorithms.weights import most_rows
from nftproxy.model.addresses import Address
from nftproxy.model.annotations import Algorithm
from nftproxy.model.objects import Place
from nftproxy.policy.choosing.candidates import Candidate
from nftproxy.policy.numbers import Draw

HASHES = [Algorithm.CONSISTENT_HASH, Algorithm.CONSISTENT_HASH_WITH_PORT]
PLAIN = [Algorithm.RANDOM, Algorithm.SOURCE_HASH, Algorithm.SOURCE_HASH_WITH_PORT]


def candidates(*weights: int) -> list[Candidate]:
    """Endpoints of these weights."""
    return [
        Candidate(Place(Address(f"10.1.{number >> 8}.{number & 255}"), 8080), True, False, False, None, None, weight)
        for number, weight in enumerate(weights, 1)
    ]


def places(given: Sequence[Candidate]) -> list[Place]:
    """The places of these candidates."""
    return [each.place for each in given]


def rounds(rows: Sequence[Place], length: int) -> list[tuple[Place, ...]]:
    """The rows in rounds of this length."""
    return [tuple(rows[start : start + length]) for start in range(0, len(rows), length)]


@pytest.mark.parametrize("algorithm", PLAIN)
def test_rows_by_weight(algorithm: Algorithm) -> None:
    """Endpoints of the same weight have a row each, in order, and of different weights rows in proportion."""
    alike = candidates(100, 100, 100)
    assert placed(alike, algorithm, "") == places(alike)
    given = candidates(25, 100)
    light, heavy = places(given)
    assert placed(given, algorithm, "") == [light, heavy, heavy, heavy, heavy]


@pytest.mark.parametrize("algorithm", HASHES)
def test_rows_of_consistent_hash(algorithm: Algorithm) -> None:
    """The rows are Maglev's table, in which an endpoint is called by its address and port."""
    given = candidates(100, 50)
    indices = maglev.table(("10.1.0.1 8080", "10.1.0.2 8080"), (100, 50), 4_093)
    assert placed(given, algorithm, "node-a") == [places(given)[index] for index in indices]


def test_rounds_of_round_robin() -> None:
    """Each round has every endpoint as often as it weighs, in an order of its own."""
    given = candidates(100, 100, 50)
    first, second, third = places(given)
    turns = rounds(placed(given, Algorithm.ROUND_ROBIN, "node-a shop/web"), 5)
    assert len(turns) == ROUNDS
    assert all(Counter(turn) == Counter({first: 2, second: 2, third: 1}) for turn in turns)
    assert len(set(turns)) > 1


@pytest.mark.parametrize(("count", "rounds"), [(2, 8), (3, 8), (4, 8), (5, 8), (32, 8), (33, 6), (50, 4), (128, 2)])
def test_every_other_turn_meets_all_alike(count: int, rounds: int) -> None:
    """A client that gets every other row meets all endpoints equally often."""
    for number in range(10):
        rows = placed(candidates(*[100] * count), Algorithm.ROUND_ROBIN, f"node-a shop/web-{number}")
        met = Counter([*rows, *rows][::2])
        assert len(met) == count
        assert set(met.values()) == {rounds}


def test_the_order_stays_what_it_is() -> None:
    """Every earlier version made the same rows and counter.

    Others would replace all rows of such Services at an update.
    """
    rows = placed(candidates(100, 100, 50), Algorithm.ROUND_ROBIN, "node-a shop/web")
    assert "".join(address[-1] for address, _ in rows) == "2132112312223111132221123321123211221123"
    assert [lane(f"shop/web-{number}") for number in range(8)] == [1, 7, 6, 1, 2, 0, 4, 2]


def test_nodes_and_services_start_with_different_endpoints() -> None:
    """The first row of a list is another endpoint on other nodes and for other Services, each equally often."""
    given = candidates(*[100] * 5)
    for name in ("node-{} shop/web", "node-a shop/web-{}"):
        first = Counter(placed(given, Algorithm.ROUND_ROBIN, name.format(number))[0] for number in range(1000))
        assert all(140 < first[each] < 260 for each in places(given))


def test_a_turn_stays_when_others_come() -> None:
    """A new endpoint changes nothing about the order of the other endpoints within a round."""
    given = candidates(*[100] * 6)
    five, six = (rounds(placed(given[:n], Algorithm.ROUND_ROBIN, "x"), n) for n in (5, 6))
    for before, after in zip(five, six, strict=True):
        assert [each for each in after if each != places(given)[5]] == list(before)


def test_few_turns_of_a_long_list_move() -> None:
    """When an endpoint of 500 goes, few others have another row.  Each node has an order of its own."""
    given = candidates(*[100] * 500)
    rows = placed(given, Algorithm.ROUND_ROBIN, "node-a shop/web")
    for gone in range(0, 500, 50):
        left = placed(given[:gone] + given[gone + 1 :], Algorithm.ROUND_ROBIN, "node-a shop/web")
        assert sum(map(operator.ne, rows, left)) <= 100
    other = placed(given, Algorithm.ROUND_ROBIN, "node-b shop/web")
    assert Counter(other) == Counter(rows)
    assert sum(map(operator.eq, rows, other)) < 50


def test_turns_of_a_heavy_endpoint_are_spread() -> None:
    """An endpoint of a long list that has many turns doesn't have them in a row."""
    heavy, *_ = given = candidates(2000, *[100] * 180)
    rows = placed(given, Algorithm.ROUND_ROBIN, "node-a shop/web")
    in_a_row = max(len(list(turns)) for place, turns in itertools.groupby(rows) if place == heavy.place)
    assert Counter(rows)[heavy.place] == 20
    assert in_a_row <= 2


def test_services_spread_over_all_counters() -> None:
    """Services spread over all counters that have numbers."""
    assert {lane(f"shop/web-{number}") for number in range(200)} == set(range(LANES))
    assert sum(draw.is_in_turn for draw in Draw) == LANES


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("weights", [(100,), (100, 100), (100, 1, 99), (1,) + (10_000,) * 30, (100,) * 300])
def test_no_list_exceeds_the_reckoned_rows(algorithm: Algorithm, weights: tuple[int, ...]) -> None:
    """No list has more rows than the limit reckons with before it is made."""
    rows = placed(candidates(*weights), algorithm, "")
    assert len(rows) <= most_placed(len(weights), algorithm, is_weighted=len(set(weights)) > 1)


def test_bounds() -> None:
    """The bound on a list's rows is a small multiple of its endpoints, or the size of a table."""
    assert most_placed(5, Algorithm.RANDOM, is_weighted=False) == 5
    assert most_placed(5, Algorithm.RANDOM, is_weighted=True) == most_rows(5)
    assert most_placed(5, Algorithm.ROUND_ROBIN, is_weighted=False) == 5 * 8
    assert most_placed(100, Algorithm.ROUND_ROBIN, is_weighted=False) == 100 * 2
    assert most_placed(129, Algorithm.ROUND_ROBIN, is_weighted=False) == 129
    assert most_placed(5, Algorithm.LEAST_CONNECTIONS, is_weighted=False) == 5 * 8
    assert most_placed(200, Algorithm.LEAST_CONNECTIONS, is_weighted=False) == 128 * 8
    assert most_placed(5, Algorithm.CONSISTENT_HASH, is_weighted=True) == maglev.table_size(5)


@pytest.mark.parametrize("weights", [(100, 100, 100), (1, 3), (100, 100, 3), (7, 1000, 999)])
def test_least_connections_begin_as_random(weights: Sequence[int]) -> None:
    """Without factors each endpoint has the share that random choice gives it, in more rows."""
    given = candidates(*weights)
    by_chance = Counter(placed(given, Algorithm.RANDOM, ""))
    rows = Counter(placed(given, Algorithm.LEAST_CONNECTIONS, ""))
    copies = rows.total() // by_chance.total()
    assert rows == {place: copies * count for place, count in by_chance.items()}
    assert rows.total() >= 8 * len(given) > (copies - 1) * by_chance.total()


@drawing(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 800)), min_size=2, max_size=40))
def test_factors_move_rows(drawn: list[tuple[int, int]]) -> None:
    """The number of rows stays, each endpoint has one, and a larger product gives no less, but for rounding."""
    given = candidates(*(weight for weight, _ in drawn))
    factors = {each.place: factor for each, (_, factor) in zip(given, drawn, strict=True)}
    rows = Counter(placed(given, Algorithm.LEAST_CONNECTIONS, "", factors))
    assert rows.total() == len(placed(given, Algorithm.LEAST_CONNECTIONS, ""))
    assert rows.keys() == factors.keys()
    products = {place: count * factors[place] for place, count in base_rows(given).items()}
    ordered = [rows[place] for place in sorted(products, key=lambda place: products[place])]
    assert all(before <= after + 1 for before, after in itertools.pairwise(ordered))


def test_few_rows_change() -> None:
    """A shift replaces the rows that an endpoint loses, and no others."""
    given = candidates(*[100] * 10)
    before = placed(given, Algorithm.LEAST_CONNECTIONS, "")
    after = placed(given, Algorithm.LEAST_CONNECTIONS, "", {given[0].place: 50})
    assert Counter(after)[given[0].place] == 4
    assert sum(map(operator.ne, before, after)) == 4


def test_long_lists_are_drawn_at_random() -> None:
    """A list of a single endpoint, or of more than 128, has the rows of random choice whatever the factors."""
    for count in (1, 129):
        given = candidates(*[100] * count)
        factors = {given[0].place: 800}
        assert placed(given, Algorithm.LEAST_CONNECTIONS, "", factors) == placed(given, Algorithm.RANDOM, "")
