"""The slots of a long list as endpoints come and go: those that slots.py gives, found from the last ones.

In the order of their addresses, each endpoint takes what it prefers of what those before it have left.  So one that
goes matters to those after it alone, and to each only by the one slot that is free more:

* The first of them that prefers this to its own slot takes it, and leaves its own to those after it; and so on, until
  nobody prefers what is left.  An endpoint prefers a slot if that comes before its own in its own block, or is in a
  block that was full when its turn came: `_passed_by` has who came by each block in vain.
* One that comes takes what it prefers of what is free or goes to a later one; that one does the same, and so on.

A slot more is one that somebody has left, before the first of them; a slot less makes whoever had it look again.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from nftproxy.model.addresses import Address
from nftproxy.model.objects import Place
from nftproxy.policy.slots import BLOCK, hashed, in_slots, mask_of, preferred_blocks

MOST_FOLLOWED = 8
"""Endpoints that may come or go at once: each takes a twentieth of the time that all slots take."""
SHARE_OF_STEPS = 2
"""One in so many endpoints may be looked for in turn, whatever their addresses: with more steps, nothing is gained."""

_BEFORE_ALL = Place(Address(""), 0)


class _TooManySteps(Exception):
    """To find all slots from nothing takes less time."""


def can_be_followed(count: int, gone: Collection[Place], come: Collection[Place]) -> bool:
    """Whether a list that had so many endpoints is worth following: hashes mean other slots beyond a power of two."""
    after = count + len(come) - len(gone)
    return len(gone) + len(come) <= MOST_FOLLOWED and mask_of(after) == mask_of(count)


class KeptSlots:
    """Who is in which slot of a list, kept as endpoints come and go.

    Args:
        places: the endpoints in the order of their addresses, each once, and more than `slots.IN_ORDER`.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._mask = mask_of(len(places))
        self._at: list[Place | None] = list(in_slots(places))
        self._slot_of = {place: slot for slot, place in enumerate(self._at) if place}
        self._begin = {place: hashed(place, self._mask)[1] for place in places}
        self._search = [(slot - self._begin[place]) % BLOCK for place, slot in self._slot_of.items()]
        self._passed: dict[Place, Sequence[int]] = {}
        self._passed_by: list[set[Place]] = [set() for _ in range(0, self._mask + 1, BLOCK)]
        self._changed: set[int] = set()
        self._steps = 0
        for place, slot in self._slot_of.items():
            self._pass(place, self._on_the_way(place, slot // BLOCK))

    def __len__(self) -> int:
        """How many slots there are."""
        return len(self._at)

    def __getitem__(self, slot: int) -> Place:
        """Who is in a slot."""
        place = self._at[slot]
        assert place is not None, "every slot has its endpoint"
        return place

    def follow(self, gone: Collection[Place], come: Collection[Place]) -> set[int] | None:
        """Let some endpoints go, and others come, if they can be followed.

        Returns:
            The slots that have another endpoint now; None if it would take longer to find them than to begin anew: then
            these slots are of no use any more.
        """
        self._changed = set()
        self._steps = len(self._at) // SHARE_OF_STEPS
        try:
            self._resize(gone, come, len(self._at) + len(come) - len(gone))
        except _TooManySteps:
            return None
        return {slot for slot in self._changed if slot < len(self._at)}

    def _resize(self, gone: Collection[Place], come: Collection[Place], count: int) -> None:
        while len(self._at) < count:
            self._at.append(None)
            self._search.append(0)
            self._fill(len(self._at) - 1, _BEFORE_ALL)
        for place in gone:
            self._pass(place, ())
            del self._begin[place]
            self._fill(self._slot_of.pop(place), place)
        for place in come:
            self._begin[place] = hashed(place, self._mask)[1]
            self._seat(place, *self._preferred(place, ()))
        while len(self._at) > count:
            last, search = self._at.pop(), self._search.pop()
            self._seat_further(last, len(self._at), search)

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise _TooManySteps

    def _fill(self, slot: int, after: Place) -> None:
        """Give a free slot to the first endpoint that prefers it, of those after one; and so on with what that left."""
        self._at[slot] = None
        while place := self._first_of_those_who_prefer(slot, after):
            block, left = slot // BLOCK, self._slot_of[place]
            passed = self._passed.get(place, ())
            if block in passed:
                self._pass(place, passed[: passed.index(block)])
            self._take(place, slot)
            self._at[left] = None
            slot, after = left, place

    def _first_of_those_who_prefer(self, slot: int, after: Place) -> Place | None:
        """The first endpoint after one that prefers a free slot to its own, None if nobody does."""
        block, place = divmod(slot, BLOCK)
        start = block * BLOCK
        found = [other for other in self._passed_by[block] if other > after]
        self._spend(1 + len(self._passed_by[block]) // BLOCK)
        for at, search in enumerate(self._search[start : start + BLOCK]):
            if search and (place - at + search) % BLOCK < search:
                other = self._at[start + at]
                if other and other > after:
                    found.append(other)
        return min(found, default=None)

    def _seat(self, place: Place, slot: int, passed: Sequence[int]) -> None:
        """Give an endpoint the slot that it prefers; whoever has that must go further."""
        loser, search = self._at[slot], self._search[slot]
        self._pass(place, passed)
        self._take(place, slot)
        self._seat_further(loser, slot, search)

    def _seat_further(self, place: Place | None, slot: int, search: int) -> None:
        """Give an endpoint, if any, another slot for the one that it has lost; and so on with the one that has that.

        `search` is how far from where its search began it was.
        """
        while place:
            found = self._next_in_block(place, slot, search)
            if found is None:
                found, passed = self._preferred(place, (*self._passed.get(place, ()), slot // BLOCK))
                self._pass(place, passed)
            loser, slot, search = self._at[found], found, self._search[found]
            self._take(place, found)
            place = loser

    def _next_in_block(self, place: Place, slot: int, search: int) -> int | None:
        """The next slot in the same block that an endpoint may have, after one that it has lost; None if there is none.

        An endpoint may have what is free, or goes to one that comes later.
        """
        self._spend(1)
        start = slot // BLOCK * BLOCK
        for further in range(slot + 1, slot + BLOCK - search):
            at = start + further % BLOCK
            if at < len(self._at):
                other = self._at[at]
                if other is None or other > place:
                    return at
        return None

    def _preferred(self, place: Place, passed: Sequence[int]) -> tuple[int, list[int]]:
        """The slot that an endpoint prefers of those that it may have, not in some blocks; with the blocks before."""
        drawn, preferred = hashed(place, self._mask)
        first, passed = preferred % BLOCK, list(passed)
        for block in preferred_blocks(drawn, preferred, self._mask):
            if block in passed:
                continue
            self._spend(1)
            start = block * BLOCK
            slots = self._at[start : start + BLOCK]
            for at in itertools.chain(range(first, len(slots)), range(min(first, len(slots)))):
                other = slots[at]
                if other is None or other > place:
                    return start + at, passed
            passed.append(block)
        raise AssertionError("there is no end of blocks")

    def _take(self, place: Place, slot: int) -> None:
        self._at[slot] = place
        self._slot_of[place] = slot
        self._search[slot] = (slot - self._begin[place]) % BLOCK
        self._changed.add(slot)

    def _pass(self, place: Place, blocks: Sequence[int]) -> None:
        """Note the blocks that an endpoint came by in vain; most have none."""
        for block in self._passed.pop(place, ()):
            self._passed_by[block].discard(place)
        for block in blocks:
            self._passed_by[block].add(place)
        if blocks:
            self._passed[place] = blocks

    def _on_the_way(self, place: Place, block: int) -> list[int]:
        """The blocks that an endpoint prefers to one, each once, the numbers of those too that don't exist."""
        drawn, preferred = hashed(place, self._mask)
        passed: dict[int, None] = {}
        for each in preferred_blocks(drawn, preferred, self._mask):
            if each == block:
                break
            passed[each] = None
        return list(passed)
