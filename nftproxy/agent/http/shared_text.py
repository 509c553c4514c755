"""A text that is made for several clients at once: all that wait for it get the same bytes.

A client may ask for metrics over many connections, again and again.  So one text is made at a time, on the event loop,
and then the next waits `REST` times as long as that took.  A client gets a text that was begun after it asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

REST = 4.0
"""Times as long as a text took to make, until the next is made: clients use a fifth of the time at most."""


class SharedText:
    """The text that `make` returns, after `before` has been awaited.

    `clock` returns seconds.
    """

    def __init__(
        self,
        make: Callable[[bytes], bytes],
        before: Callable[[], Awaitable[bytes]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._before = before
        self._clock = clock
        self._due = 0.0
        self._next: asyncio.Task[bytes] | None = None
        self._making = asyncio.Lock()

    async def get(self) -> bytes:
        """Return a text that is made after this call, never one that was begun before it."""
        if self._next is None:
            self._next = asyncio.create_task(self._make_next())
        return await asyncio.shield(self._next)

    async def _make_next(self) -> bytes:
        async with self._making:
            await asyncio.sleep(max(0.0, self._due - self._clock()))
            self._next = None
            given = await self._before() if self._before else b""
            began = self._clock()
            try:
                return self._make(given)
            finally:
                now = self._clock()
                self._due = now + REST * (now - began)
