"""Slots of endpoints: all of them, each once, and few that move when an endpoint comes or goes."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nftproxy_conformance.strategies import quick

from nftproxy.model.addresses import Address
from nftproxy.model.objects import Place
from nftproxy.policy.choosing.slots import IN_ORDER, _with_room, in_preferred_slots
from nftproxy.policy.drawing import in_slots
from tools.bench.work import lines


def place(number: int) -> Place:
    """An endpoint of a number: addresses of either family, and two ports."""
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return Place(Address(address if number % 3 else f"fd00::{number:x}"), 8080 + number % 2)


def places(count: int, seed: int) -> list[Place]:
    """This number of endpoints, with addresses from all over a cluster, sorted."""
    return sorted(place(number) for number in random.Random(seed).sample(range(1 << 22), count))


def moved(before: Sequence[Place], after: Sequence[Place]) -> int:
    """How many endpoints of both have another slot."""
    slots = {each: slot for slot, each in enumerate(after)}
    return sum(slots.get(each, slot) != slot for slot, each in enumerate(before))


@given(st.lists(st.integers(0, (1 << 22) - 1).map(place), max_size=300).map(sorted))
@quick(100)
def test_each_endpoint_has_its_slot(some: list[Place]) -> None:
    """Slots are counted from 0 without a gap, and an endpoint has a slot for each time that it is listed."""
    assert sorted(in_slots(some)) == some


@pytest.mark.parametrize("count", [0, 1, 2, IN_ORDER])
def test_short_lists_are_in_order(count: int) -> None:
    """The few endpoints of a usual Service are in the order of their addresses."""
    some = places(count, seed=count)
    assert list(in_slots(some)) == some


@pytest.mark.parametrize("count", [17, 32, 33, 64, 65, 100, 128, 129, 1_000, 1_024, 1_025])
def test_few_endpoints_move(count: int) -> None:
    """When an endpoint goes or comes back, a logarithm of the rest move, even across powers of two."""
    found = []
    for seed in range(max(4, 2_000 // count)):
        before = places(count, seed)
        gone = random.Random(seed).randrange(count)
        found.append(moved(in_slots(before), in_slots(before[:gone] + before[gone + 1 :])))
    most = IN_ORDER if count == IN_ORDER + 1 else 5 * math.log(count)
    assert 0 < statistics.mean(found) <= most


def test_an_endpoint_in_place_of_another_moves_few() -> None:
    """A pod that replaces another pod, with another address, makes as few move."""
    found = []
    for seed in range(10):
        some = places(501, seed)
        found.append(moved(in_slots(some[:250] + some[251:]), in_slots(some[:300] + some[301:])))
    assert statistics.mean(found) <= 5 * math.log(500)


def test_neighbours_are_spread() -> None:
    """Consecutive addresses, as a node's pods have them, are hashed far apart, so that few endpoints move."""
    some = sorted(Place(Address(f"10.1.{number >> 8}.{number & 255}"), 80) for number in range(1_000))
    found = [moved(in_slots(some), in_slots(some[:gone] + some[gone + 1 :])) for gone in range(0, 1_000, 100)]
    assert statistics.mean(found) <= 10 * math.log(1_000)


@pytest.mark.parametrize("hashed", [0, 1, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF])
def test_no_hash_leads_nowhere(hashed: int) -> None:
    """If only one block has room, every hash of an address leads to it."""
    for free in range(64):
        assert _with_room([int(block == free) for block in range(64)], 0, hashed)[0] == free


def test_slots_stay_what_they_are() -> None:
    """Every earlier version made the same slots.  Others would move the clients of all long lists at an update."""
    found = {
        count: crc32(repr([*map(tuple, in_slots(places(count, 1)))]).encode()) for count in (17, 33, 100, 1_000, 1_025)
    }
    assert found == {17: 0x62B24C18, 33: 0xF5B2B90F, 100: 0x6B8FEDB7, 1_000: 0x2150DC9C, 1_025: 0x4DCC3EB1}


def test_slots_of_a_heavy_endpoint_stay_what_they_are() -> None:
    """Every earlier version gave the rows of a heavy endpoint, which have the same hash, these slots."""
    few = places(10, 1)
    found = crc32(repr([*map(tuple, in_slots(sorted([*few, *few[:1] * 1_000])))]).encode())
    assert found == 0xB8124AA1


@pytest.mark.parametrize("step", [0, 1 << 24], ids=["equal", "similar"])
def test_hashes_that_name_the_same_blocks_cost_no_walk_each(step: int) -> None:
    """Endpoints of the same hash take few more lines of Python than other endpoints.

    IPv6 addresses of the same hash are easily made.
    """
    some = places(4_096, 1)
    others = lines(lambda: in_preferred_slots(some, [crc32(b"%d" % number) for number in range(4_096)]))
    assert (
        lines(lambda: in_preferred_slots(some, [12_345 + number % 256 * step for number in range(4_096)])) < 2 * others
    )
