"""The endpoint in each row of a list, so that drawing a row follows the algorithm and weights of the Service.

A draw is an nft expression that gives a number: at random, by a hash of the client, or in turn (numbers.py).  The rows
implement the rest of the annotations:

    random, source-hash          each endpoint in as many rows as its weight comes to (slots.py says in which)
    least-connections            the same, repeated, and shifted to endpoints with fewer connections
    consistent-hash              Maglev's table
    round-robin                  several rounds, each with all endpoints in an order of its own

**Round-robin.**  nft's counter, `numgen inc`, belongs to a rule, and a rule belongs to all Services with as many rows.
If connections to two Services alternate, each Service would see every other number only: with two endpoints, always the
same endpoint.  So Services are spread over `LANES` counters, and the rows hold up to `ROUNDS` rounds.  The order
differs by node, Service and round, and every second round is the round before it backwards: a Service that sees every
other row still sees all endpoints, equally often.  A Service that has its counter for itself gets each endpoint once
(or as often as its weight says) in each round.  All nodes start with row 0, which is another endpoint on each node, and
for each Service.

**Least connections.**  The number of rows depends on the endpoints and weights alone, so that a shift replaces some
rows and nothing else.  Without a shift each share is that of a random draw.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from zlib import crc32

from nftproxy.extensions.algorithms import maglev
from nftproxy.extensions.algorithms.weights import apportioned, most_rows, rows_of
from nftproxy.extensions.least_connections.factors import NEUTRAL, Factors
from nftproxy.model.annotations import Algorithm
from nftproxy.model.objects import Place
from nftproxy.policy.choosing.candidates import Candidate
from nftproxy.policy.choosing.slots import IN_ORDER, in_preferred_slots, in_slots

LANES = 8
"""Counters of each list for Services that take turns: half of the numbers that algorithms may have (numbers.py)."""
ROUNDS = 8
"""Rounds of round-robin.  Services share counters.  If another Service takes every other number of a counter, each
endpoint still gets four turns."""
ROUND_ROBIN_ROWS = 256
"""The most rows of all rounds together.  Longer lists have fewer rounds, in pairs as long as a pair fits, and very long
lists have a single round."""
BALANCED_ROWS = 8
"""Rows that a list with least connections has for each endpoint at least, in the mean.  An endpoint keeps a row, so it
gets an eighth of its share at least."""
MOST_BALANCED = 128
"""The most endpoints of such a list.  Longer lists are drawn at random."""

NO_FACTORS: Factors = {}


def placed(
    candidates: Sequence[Candidate], algorithm: Algorithm, turn: str, factors: Factors = NO_FACTORS
) -> Sequence[Place]:
    """The endpoint in each row of a list.

    Args:
        candidates: the list, which isn't empty.  All weights are 1 or more.
        algorithm: the algorithm that the Service asks for.
        turn: a text that differs by node and Service, for the order of round-robin.
        factors: the shift for least connections.
    """
    if is_consistent(algorithm):
        return _hashed(candidates)
    if algorithm is Algorithm.LEAST_CONNECTIONS and is_balanced(len(candidates)):
        return _balanced(base_rows(candidates), factors)
    rows = _weighted(candidates)
    return _in_turn(rows, turn) if algorithm is Algorithm.ROUND_ROBIN else in_slots(rows)


def most_placed(endpoints: int, algorithm: Algorithm, *, is_weighted: bool) -> int:
    """The most rows that a number of endpoints, 1 or more, may come to."""
    if is_consistent(algorithm):
        return maglev.table_size(endpoints)
    rows = most_rows(endpoints) if is_weighted else endpoints
    if algorithm is Algorithm.LEAST_CONNECTIONS:
        return _most_balanced(endpoints, rows)
    return rows * _rounds(rows) if algorithm is Algorithm.ROUND_ROBIN else rows


def rows_at_most(endpoints: int, algorithm: Algorithm, heaviest: int) -> int:
    """The most rows that a number of endpoints, 1 or more, may come to with weights from 1 to `heaviest`.

    Closer than `most_placed` where weights are small.
    """
    if is_consistent(algorithm):
        return maglev.table_size(endpoints)
    rows = min(most_rows(endpoints), endpoints * heaviest) if heaviest > 1 else endpoints
    if algorithm is Algorithm.LEAST_CONNECTIONS:
        return _most_balanced(endpoints, rows)
    return max(rows, min(ROUNDS * rows, ROUND_ROBIN_ROWS)) if algorithm is Algorithm.ROUND_ROBIN else rows


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


def _balanced(base: Mapping[Place, int], factors: Factors) -> Sequence[Place]:
    """The endpoint in each row of a list with least connections.

    Endpoints give up their last rows, and others take these, so that a shift replaces no other row.
    """
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


def _most_balanced(endpoints: int, rows: int) -> int:
    """The most rows of a list with least connections, of which so many would be drawn at random.

    A node may have a shorter list than the others, as by policy Local.
    """
    balanced = BALANCED_ROWS * min(endpoints, MOST_BALANCED)
    return max(rows, balanced if rows == endpoints else balanced + min(rows, balanced) - 1)


def is_consistent(algorithm: Algorithm) -> bool:
    """Whether the algorithm moves few clients as endpoints come and go."""
    return algorithm in (Algorithm.CONSISTENT_HASH, Algorithm.CONSISTENT_HASH_WITH_PORT)


def lane(service: str) -> int:
    """The number of the counter by which a Service takes turns, from 0."""
    return _number(service) % LANES


def _weighted(candidates: Sequence[Candidate]) -> Sequence[Place]:
    places = [candidate.place for candidate in candidates]
    if len({candidate.weight for candidate in candidates}) == 1:
        return places
    rows = rows_of([candidate.weight for candidate in candidates])
    return [place for place, count in zip(places, rows, strict=True) for _ in range(count)]


def _hashed(candidates: Sequence[Candidate]) -> Sequence[Place]:
    places = [candidate.place for candidate in candidates]
    names = tuple(f"{address} {port}" for address, port in places)
    weights = tuple(candidate.weight for candidate in candidates)
    return [places[index] for index in maglev.table(names, weights, maglev.table_size(len(names)))]


def _in_turn(rows: Sequence[Place], turn: str) -> Sequence[Place]:
    """Rounds of the rows, each in another order.  Every second round is the reverse of the round before it."""
    forth = [_shuffled(rows, f"{turn} {number}") for number in range(_rounds(len(rows)))]
    return [row for number, order in enumerate(forth) for row in (forth[number - 1][::-1] if number % 2 else order)]


def _rounds(rows: int) -> int:
    return max(1, min(ROUNDS, ROUND_ROBIN_ROWS // rows // 2 * 2))


def _shuffled(rows: Sequence[Place], order: str) -> Sequence[Place]:
    """The rows in an order of this name, in which few rows of a long list move as endpoints come or go (slots.py)."""
    repeats = Counter[Place]()
    turns = []
    for row in rows:
        repeats[row] += 1
        turns.append(repeats[row])
    if len(rows) > IN_ORDER:
        seed = crc32(order.encode())
        hashes = [
            crc32(row[0].encode(), seed ^ row[1]) + turn & 0xFFFFFFFF for row, turn in zip(rows, turns, strict=True)
        ]
        return in_preferred_slots(rows, hashes)
    numbers = [_number(f"{order} {row[0]} {row[1]} {turn}") for row, turn in zip(rows, turns, strict=True)]
    return [row for _, row in sorted(zip(numbers, rows, strict=True))]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
