"""Which endpoint is in which row of a list, so that drawing a row chooses endpoints as the Service asks for.

A draw is one of a few expressions of nft that give a number: at random, by a hash of the client, or one after the other
(numbers.py).  All else that annotations ask for is in the rows:

    random, source-hash          each endpoint in as many rows as its weight comes to (slots.py says in which)
    consistent-hash              Maglev's table
    round-robin                  several rounds, each with all endpoints in an order of its own

**Round-robin.**  nft's counter, `numgen inc`, belongs to a rule, and a rule belongs to all Services with as many rows.
Where connections to two Services alternate, each of them would see every other number only: with two endpoints, always
the same one.  So Services are spread over `LANES` counters, and the rows hold up to `ROUNDS` rounds, in which the order
differs by node, Service and round, and every second round is the one before it backwards: whoever sees every other row
still sees all endpoints, equally often.  A Service that has its counter for itself gets each endpoint once (or as often
as it weighs) in each round.  And where all nodes start with row 0, this is another endpoint on each, and for each
Service.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from nftproxy.model.annotations import Algorithm
from nftproxy.model.objects import Place
from nftproxy.policy import maglev
from nftproxy.policy.endpoints import Candidate
from nftproxy.policy.slots import in_slots
from nftproxy.policy.weights import most_rows, rows_of

LANES = 8
"""Counters of each list for Services that take turns: half of the numbers that algorithms may have (numbers.py)."""
ROUNDS = 8
"""Rounds of round-robin: where another Service takes every other number, each endpoint still comes four times."""
ROUND_ROBIN_ROWS = 256
"""With more rows than this, there are fewer rounds, in pairs as long as one fits: with still more endpoints a single
round in an order that differs is enough."""


def placed(candidates: Sequence[Candidate], algorithm: Algorithm, turn: str) -> Sequence[Place]:
    """The endpoint in each row of a list.

    Args:
        candidates: the list; not empty, and all of weight 1 or more.
        algorithm: what the Service asks for.
        turn: what distinguishes this node and Service from others, for the order of round-robin.
    """
    if is_consistent(algorithm):
        return _hashed(candidates)
    rows = _weighted(candidates)
    return _in_turn(rows, turn) if algorithm is Algorithm.ROUND_ROBIN else in_slots(rows)


def most_placed(endpoints: int, algorithm: Algorithm, *, is_weighted: bool) -> int:
    """How many rows so many endpoints, 1 or more, may come to."""
    if is_consistent(algorithm):
        return maglev.table_size(endpoints)
    rows = most_rows(endpoints) if is_weighted else endpoints
    return rows * _rounds(rows) if algorithm is Algorithm.ROUND_ROBIN else rows


def are_in_slots(candidates: Sequence[Candidate], algorithm: Algorithm) -> bool:
    """Whether the rows of a list are its endpoints, each once, in their slots (slots.py)."""
    goes_by_slots = not is_consistent(algorithm) and algorithm is not Algorithm.ROUND_ROBIN
    return goes_by_slots and len({candidate.weight for candidate in candidates}) == 1


def is_consistent(algorithm: Algorithm) -> bool:
    """Whether few clients move as endpoints come and go."""
    return algorithm in (Algorithm.CONSISTENT_HASH, Algorithm.CONSISTENT_HASH_WITH_PORT)


def lane(service: str) -> int:
    """Which of the counters a Service takes turns by, from 0."""
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
    """Rounds in orders of their own, of which every second one is the one before it backwards."""
    forth = [_shuffled(rows, f"{turn} {number}") for number in range(_rounds(len(rows)))]
    return [row for number, order in enumerate(forth) for row in (forth[number - 1][::-1] if number % 2 else order)]


def _rounds(rows: int) -> int:
    return max(1, min(ROUNDS, ROUND_ROBIN_ROWS // rows // 2 * 2))


def _shuffled(rows: Sequence[Place], order: str) -> Sequence[Place]:
    """The rows in an order of this name: each finds its place by itself, whatever other rows there are."""
    seen = Counter[Place]()
    places = []
    for row in rows:
        seen[row] += 1
        places.append((_number(f"{order} {row[0]} {row[1]} {seen[row]}"), row))
    return [row for _, row in sorted(places)]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
