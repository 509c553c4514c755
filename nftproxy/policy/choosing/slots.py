"""The slot of each endpoint in a list: it depends on the endpoints alone, and few move as endpoints come or go.

A list has slots 0 to N-1 without a gap.  The slots must not depend on the past: any program with the same endpoints,
such as `nftproxy render`, gives them the same slots.  The order of addresses would do so, but then the removal of an
endpoint moves all endpoints after it: half of them, on average.

So in longer lists each endpoint prefers slots by a hash of its own.  In the order of their addresses, each endpoint
takes the free slot that it prefers most.  An endpoint that goes leaves a single slot to the rest, and an endpoint that
comes takes a single slot.  The next endpoint that prefers a vacated slot moves there and vacates its own in turn, and
so on, a few times.

To find a free slot fast, slots are in blocks.  An endpoint prefers the block that its hash names.  If that block is
full, or doesn't exist (the numbers of blocks in a hash go up to the next power of two), the endpoint clears the highest
bit of the block's number, repeatedly, down to block 0.  If block 0 is full, too, it continues from another number.  So
an additional block, or a missing block, changes only the preferences that name it, across powers of two as well.  In
its block an endpoint takes the first free slot from a place that the hash names.

When one of 1,000 endpoints goes, some 30 other endpoints move on average.  When one of 100 goes, 11 move.
"""

from __future__ import annotations

from collections.abc import Sequence

from nftproxy.model.objects import Place

IN_ORDER = 16
"""Lists of up to this number of endpoints are in the order of addresses: few endpoints can move, and it is fast."""

BLOCK = 32
"""Slots of a block."""
_SPREAD = 0x9E3779B1
"""2**32 divided by the golden ratio, and odd: multiplied by it, similar checksums differ in the bits that count
(Knuth, The Art of Computer Programming, 6.4)."""


def in_preferred_slots(places: Sequence[Place], hashes: Sequence[int]) -> Sequence[Place]:
    """The endpoints of a list in the order of their slots: the first endpoint has slot 0.

    Args:
        places: the endpoints in the order of their addresses.  A repeated endpoint gets as many slots.
        hashes: a hash of each endpoint (32 bits).
    """
    count = len(places)
    mask = (1 << (count - 1).bit_length()) - 1 | BLOCK - 1  # slots that a hash may name: the next power of two
    room = [min(max(count - start, 0), BLOCK) for start in range(0, mask + 1, BLOCK)]
    taken, found = bytearray(count), list(places)
    reached: dict[int, tuple[int, int]] = {}  # by the bits of a hash that name blocks
    for place, drawn in zip(places, hashes, strict=True):
        preferred = drawn * _SPREAD >> 8 & mask
        block = preferred // BLOCK
        if not room[block]:
            names = drawn & (mask << 8 | 0xFF)
            block, drawn = reached[names] = _with_room(room, *reached.get(names, (block, drawn)))
        room[block] -= 1
        start = block * BLOCK
        slot = taken.find(0, start + preferred % BLOCK, start + BLOCK)
        if slot < 0:
            slot = taken.find(0, start)
        taken[slot] = 1
        found[slot] = place
    return found


def _with_room(room: Sequence[int], block: int, drawn: int) -> tuple[int, int]:
    """The first block with a free slot in the order in which an endpoint prefers blocks, and the hash that led there.

    Blocks only fill up.  So endpoints with the same hash, such as the rows of a heavy endpoint, continue from there.

    Args:
        room: the number of free slots in each block.
        block: the endpoint's first choice, or the block where an endpoint with the same hash found room.
        drawn: the hash of the endpoint.  A pseudo-random generator (Knuth and Lewis) makes further choices from it, and
            reaches every block.
    """
    while not room[block]:
        if block:
            block ^= 1 << block.bit_length() - 1
        else:
            drawn = drawn * 1664525 + 1013904223 & 0xFFFFFFFF
            block = (drawn * _SPREAD >> 8) // BLOCK & len(room) - 1
    return block, drawn
