"""Looks at the kernel, again and again: each takes a bounded share of time, and those that fail back off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nftproxy.model.errors import Unavailable

LONGEST_PAUSE = 30.0
"""Longest pause in seconds while the kernel doesn't answer, as for loads of rules."""


async def look_once(
    look: Callable[[], Awaitable[None]],
    pause: float,
    report: Callable[[Unavailable, float], None],
    *,
    interval: float,
    share: float,
) -> float:
    """Look, and return the seconds until the next look.

    Args:
        look: asks the kernel.
        pause: the seconds before this look.
        report: is called with the error of a look that fails, and the next pause.
        interval: the least seconds between two looks.
        share: the next pause is at least `share` times the duration of this look.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        await look()
    except Unavailable as error:
        pause = min(2 * pause, LONGEST_PAUSE)
        report(error, pause)
        return pause
    return max(interval, share * (clock() - began))
