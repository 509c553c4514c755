"""Slots that are kept: those that slots.py gives, however endpoints came and went."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.conformance.strategies import quick
from nftproxy.model.addresses import Address
from nftproxy.model.objects import Place
from nftproxy.policy import kept_slots
from nftproxy.policy.kept_slots import MOST_FOLLOWED, KeptSlots, can_be_followed
from nftproxy.policy.slots import in_slots

POOL = [Place(Address(f"10.{n >> 8}.{n & 255}.{n % 7}"), 8080 + n % 2) for n in range(1_500)]


def placed(kept: KeptSlots) -> list[Place]:
    """Who is in the slots, in their order."""
    return [kept[slot] for slot in range(len(kept))]


histories = st.tuples(
    st.sampled_from([17, 31, 40, 66, 100, 129, 500, 1_000]),
    st.integers(0, 1_000),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12),
)
"""How many endpoints there are at first, a seed to choose them, and how many go and come in each step."""


@quick(50)
@given(histories)
def test_slots_are_those_from_nothing(history: tuple[int, int, list[tuple[int, int]]]) -> None:
    """After each change everybody has the slot that `in_slots` gives, and what is named as changed is what has."""
    count, seed, steps = history
    chance = random.Random(seed)
    there = set(chance.sample(POOL, count))
    kept = KeptSlots(sorted(there))
    for most_gone, most_come in steps:
        gone = set(chance.sample(sorted(there), most_gone))
        come = set(chance.sample(sorted(set(POOL) - there), most_come))
        before = placed(kept)
        followed = kept.follow(gone, come) if can_be_followed(len(there), gone, come) else None
        there = (there - gone) | come
        expected = list(in_slots(sorted(there)))
        if followed is None:
            kept = KeptSlots(sorted(there))
        else:
            assert {slot for slot, each in enumerate(expected) if before[slot : slot + 1] != [each]} <= followed
            assert followed <= set(range(len(expected)))
        assert placed(kept) == expected


def test_one_of_a_thousand_is_followed() -> None:
    """One that goes, comes or gives way to another is followed, and few slots are named."""
    chance = random.Random(1)
    there = sorted(chance.sample(POOL, 1_000))
    absent = sorted(set(POOL) - set(there))
    kept = KeptSlots(there)
    named = []
    for _ in range(100):
        one, other = chance.choice(there), chance.choice(absent)
        changes: list[tuple[list[Place], list[Place]]] = [([one], []), ([], [one]), ([one], [other]), ([other], [one])]
        for gone, come in changes:
            changed = kept.follow(gone, come)
            assert changed is not None
            named.append(len(changed))
    assert placed(kept) == list(in_slots(there))
    assert sum(named) / len(named) < 50


@pytest.mark.parametrize(
    ("count", "gone", "come", "can"),
    [
        (1_000, MOST_FOLLOWED, 0, True),
        (1_000, MOST_FOLLOWED + 1, 0, False),
        (1_000, 4, MOST_FOLLOWED - 3, False),
        (1_024, 1, 1, True),
        (1_024, 0, 1, False),
        (1_025, 1, 0, False),
        (1_025, 0, 1, True),
    ],
)
def test_what_is_worth_following(count: int, gone: int, come: int, can: bool) -> None:
    """A few endpoints are, as long as the next power of two is the same."""
    assert can_be_followed(count, POOL[:gone], POOL[:come]) is can


def test_what_would_take_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each step leads to another one, whatever the addresses, they are not followed for ever."""
    kept = KeptSlots(sorted(POOL[:1_000]))
    monkeypatch.setattr(kept_slots, "SHARE_OF_STEPS", 1_000)
    found: list[Collection[int] | None] = [kept.follow([POOL[0]], [])]
    assert found == [None]
