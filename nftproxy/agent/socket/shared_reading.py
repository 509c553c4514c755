"""Readings of the kernel that take seconds, such as of a conntrack with hundreds of thousands of entries.

One reading at a time serves all queries that wait for it.  Their clients get signs of life meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

GOING_ON = b"\n"
"""Sent while an answer that is a single value is being made, so that the client sees progress."""
PROGRESS = 0.5
"""Seconds between two signs of life."""


class SharedReading(Generic[T]):
    """A reading that several queries may ask for.  `read` runs in a thread."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._task: asyncio.Task[T] | None = None

    def join(self) -> asyncio.Task[T]:
        """Return the reading that is under way, or begin a reading."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(asyncio.to_thread(self._read))
        return self._task


async def signs_of_life(task: asyncio.Task[T]) -> AsyncIterator[bytes]:
    """Yield `GOING_ON` again and again until a task is done."""
    while not (await asyncio.wait([task], timeout=PROGRESS))[0]:
        yield GOING_ON
