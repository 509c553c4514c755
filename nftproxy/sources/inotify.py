"""Events of inotify, with a time limit."""

from __future__ import annotations

import asyncio

from asyncinotify import Event, Inotify


class InotifyEvents:
    """The events of an inotify, with a time limit.  Its own `get` may lose events when it is cancelled."""

    def __init__(self, inotify: Inotify) -> None:
        self._inotify = inotify
        self._coming: asyncio.Task[Event] | None = None

    async def next(self) -> Event:
        """Wait for the next event."""
        event = None
        while event is None:
            event = await self.within(None)
        return event

    async def within(self, seconds: float | None) -> Event | None:
        """Wait for the next event.  Return None if it doesn't come in time."""
        self._coming = self._coming or asyncio.create_task(self._inotify.get())
        done, _ = await asyncio.wait([self._coming], timeout=seconds)
        if not done:
            return None
        event, self._coming = self._coming.result(), None
        return event

    async def close(self) -> None:
        """Cancel the wait.  To be called before the inotify is closed."""
        if self._coming:
            self._coming.cancel()
            await asyncio.wait([self._coming])
