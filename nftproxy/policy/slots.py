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

An endpoint of 1,000 that goes makes some 30 others move on average, one of 100 makes 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from nftproxy.model.objects import Place

IN_ORDER = 16
"""Lists that are no longer are in the order of addresses: no more can move than there are, and it takes no time."""

_BLOCK = 32
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
    mask = (1 << (count - 1).bit_length()) - 1 | _BLOCK - 1
    room = [min(max(count - start, 0), _BLOCK) for start in range(0, mask + 1, _BLOCK)]
    taken, found = bytearray(count), list(places)
    for place in places:
        drawn = crc32(place[0].encode(), place[1])
        preferred = drawn * _SPREAD >> 8 & mask
        block = preferred // _BLOCK
        if not room[block]:
            block = _with_room(room, block, drawn)
        room[block] -= 1
        start = block * _BLOCK
        slot = taken.find(0, start + preferred % _BLOCK, start + _BLOCK)
        if slot < 0:
            slot = taken.find(0, start)
        taken[slot] = 1
        found[slot] = place
    return found


def _with_room(room: Sequence[int], block: int, drawn: int) -> int:
    """The block with a free slot that an endpoint prefers, whose first choice is `block`.

    The generator of further choices (Knuth and Lewis) comes by every number, so that this ends whatever the address.
    """
    while not room[block]:
        if block:
            block ^= 1 << block.bit_length() - 1
        else:
            drawn = drawn * 1664525 + 1013904223 & 0xFFFFFFFF
            block = (drawn * _SPREAD >> 8) // _BLOCK & len(room) - 1
    return block
