"""Looks at the kernel, again and again: each takes a bounded share of time, and those that fail back off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nftproxy.model.backoff import Backoff
from nftproxy.model.errors import Unavailable

LONGEST_PAUSE = 30.0
"""Longest pause in seconds while the kernel doesn't answer, as for loads of rules."""


class Looks:
    """A series of looks at the kernel."""

    def __init__(
        self,
        look: Callable[[], Awaitable[None]],
        report: Callable[[Unavailable | None], None],
        *,
        interval: float,
        share: float,
    ) -> None:
        """Prepare the series.

        Args:
            look: asks the kernel.
            report: is called with the error of each look that fails, and with None once a look works again.
            interval: the least seconds between two looks.
            share: the next pause is at least `share` times the duration of a look.
        """
        self._look = look
        self._report = report
        self._interval = interval
        self._share = share
        self._backoff = Backoff(2 * interval, LONGEST_PAUSE)
        self._failures = 0

    async def once(self) -> float:
        """Look, and return the seconds until the next look."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await self._look()
        except Unavailable as error:
            self._failures += 1
            self._report(error)
            return self._backoff.pause(self._failures)
        if self._failures:
            self._report(None)
        self._failures = 0
        return max(self._interval, self._share * (clock() - began))
