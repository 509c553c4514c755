"""The endpoint in each row of a list, so that drawing a row follows the algorithm of the Service.

A draw is an nft expression that gives a number: at random, by a hash of the client, or in turn (numbers.py).  The rows
implement the rest of the annotation:

    random, source-hash          each endpoint in as many rows as its weight comes to (policy/drawing.py)
    consistent-hash              Maglev's table
    round-robin                  several rounds, each with all endpoints in an order of its own

**Round-robin.**  nft's counter, `numgen inc`, belongs to a rule, and a rule belongs to all Services with as many rows.
If connections to two Services alternate, each Service would see every other number only: with two endpoints, always the
same endpoint.  So Services are spread over `LANES` counters, and the rows hold up to `ROUNDS` rounds.  The order
differs by node, Service and round, and every second round is the round before it backwards: a Service that sees every
other row still sees all endpoints, equally often.  A Service that has its counter for itself gets each endpoint once
(or as often as its weight says) in each round.  All nodes start with row 0, which is another endpoint on each node, and
for each Service.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from zlib import crc32

from nftproxy.extensions.algorithms import maglev
from nftproxy.model.objects import Place
from nftproxy.policy.choosing.slots import IN_ORDER, in_preferred_slots
from nftproxy.policy.choosing.verdicts import Candidate
from nftproxy.policy.choosing.weights import by_weight

LANES = 8
"""Counters of each list for Services that take turns: half of the numbers that algorithms may have (numbers.py)."""
ROUNDS = 8
"""Rounds of round-robin.  Services share counters.  If another Service takes every other number of a counter, each
endpoint still gets four turns."""
ROUND_ROBIN_ROWS = 256
"""The most rows of all rounds together.  Longer lists have fewer rounds, in pairs as long as a pair fits, and very long
lists have a single round."""


def hashed(candidates: Sequence[Candidate]) -> Sequence[Place]:
    """The endpoint in each row of Maglev's table.

    Args:
        candidates: the list, which isn't empty.  All weights are 1 or more.
    """
    places = [candidate.place for candidate in candidates]
    names = tuple(f"{address} {port}" for address, port in places)
    weights = tuple(candidate.weight for candidate in candidates)
    return [places[index] for index in maglev.table(names, weights, maglev.table_size(len(names)))]


def in_turn(candidates: Sequence[Candidate], turn: str) -> Sequence[Place]:
    """The endpoint in each row of round-robin.  Every second round is the reverse of the round before it.

    Args:
        candidates: the list, which isn't empty.  All weights are 1 or more.
        turn: a text that differs by node and Service, for the order.
    """
    rows = by_weight(candidates)
    forth = [_shuffled(rows, f"{turn} {number}") for number in range(_rounds(len(rows)))]
    return [row for number, order in enumerate(forth) for row in (forth[number - 1][::-1] if number % 2 else order)]


def most_in_turn(rows: int) -> int:
    """The most rows that all rounds have together, if each has at most `rows`."""
    return max(rows, min(ROUNDS * rows, ROUND_ROBIN_ROWS))


def lane(service: str) -> int:
    """The number of the counter by which a Service takes turns, from 0."""
    return _number(service) % LANES


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
