"""Which slot of a list each endpoint has: a matter of the endpoints alone, and yet few move when one comes or goes.

A list has slots 0 to N-1 without a gap, and which endpoint is in which slot must not depend on the past: whoever knows
the same endpoints, such as `nftproxy render`, gives them the same slots.  In the order of their addresses that is so,
but then an endpoint that goes moves all that come after it: half of them, on average.

So in longer lists each endpoint prefers slots by a hash of its own.  In the order of their addresses they take, one
after the other, what they prefer most of what is still free.  What one endpoint leaves to the others, or takes from
them, is one slot; the next that prefers it moves there and leaves one in turn, and so on, a few times.

To find a free slot fast, slots are in blocks.  An endpoint prefers blocks: the one that its hash names, and if that is
full or there is no such block (the numbers of blocks in a hash go up to the next power of two) the one whose number has
the highest bit less, down to block 0, and then another number goes on.  So that there is one block more or less changes
the preference of those alone that it is about, across powers of two as well.  In its block an endpoint takes the first
free slot from a place that the hash names.

An endpoint of 1,000 that goes makes some 30 others move on average, one of 100 makes 11.  kept_slots.py follows them
one by one, from the last slots of a long list: what comes out is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

from nftproxy.model.objects import Place

IN_ORDER = 16
"""Lists that are no longer are in the order of addresses: no more can move than there are, and it takes no time."""

BLOCK = 32
"""Slots of a block."""
_SPREAD = 0x9E3779B1
"""2**32 divided by the golden ratio, and odd: multiplied by it, similar checksums differ in the bits that count
(Knuth, The Art of Computer Programming, 6.4)."""


def in_slots(places: Sequence[Place]) -> Sequence[Place]:
    """The endpoints of a list in the order of their slots: slot 0 has the first.

    Args:
        places: the endpoints in the order of their addresses; one that is there several times gets as many slots.
    """
    count = len(places)
    if count <= IN_ORDER:
        return places
    mask = mask_of(count)
    room = [min(max(count - start, 0), BLOCK) for start in range(0, mask + 1, BLOCK)]
    taken, found = bytearray(count), list(places)
    for place in places:
        drawn = crc32(place[0].encode(), place[1])  # as in `hashed`, which would take as long as all else
        preferred = drawn * _SPREAD >> 8 & mask
        block = preferred // BLOCK
        if not room[block]:
            block = _with_room(room, block, drawn)
        room[block] -= 1
        start = block * BLOCK
        slot = taken.find(0, start + preferred % BLOCK, start + BLOCK)
        if slot < 0:
            slot = taken.find(0, start)
        taken[slot] = 1
        found[slot] = place
    return found


def mask_of(count: int) -> int:
    """What cuts a hash down to slots that a list may have: the next power of two, and a block at least, minus 1."""
    return (1 << (count - 1).bit_length()) - 1 | BLOCK - 1


def hashed(place: Place, mask: int) -> tuple[int, int]:
    """An endpoint's hash, and the slot that it names: its block comes first, and there the search begins."""
    drawn = crc32(place[0].encode(), place[1])
    return drawn, drawn * _SPREAD >> 8 & mask


def preferred_blocks(drawn: int, preferred: int, mask: int) -> Iterator[int]:
    """The numbers of blocks in the order in which an endpoint prefers them, without end; some may not exist.

    The generator of further choices (Knuth and Lewis) comes by every number, whatever the address.
    """
    block = preferred // BLOCK
    while True:
        yield block
        if block:
            block ^= 1 << block.bit_length() - 1
        else:
            drawn = drawn * 1664525 + 1013904223 & 0xFFFFFFFF
            block = (drawn * _SPREAD >> 8) // BLOCK & mask // BLOCK


def _with_room(room: Sequence[int], block: int, drawn: int) -> int:
    """The first block with a free slot that an endpoint prefers, whose first choice is `block`.

    As `preferred_blocks`, which takes twice the time where whole lists are made.
    """
    while not room[block]:
        if block:
            block ^= 1 << block.bit_length() - 1
        else:
            drawn = drawn * 1664525 + 1013904223 & 0xFFFFFFFF
            block = (drawn * _SPREAD >> 8) // BLOCK & len(room) - 1
    return block
