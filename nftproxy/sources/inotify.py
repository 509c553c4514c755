"""Waiting for what inotify has to say, with a time limit."""

from __future__ import annotations

import asyncio

from asyncinotify import Event, Inotify


class InotifyEvents:
    """The events of an inotify, with a time limit: its own `get`, when cancelled, may lose events that it has read."""

    def __init__(self, inotify: Inotify) -> None:
        self._inotify = inotify
        self._coming: asyncio.Task[Event] | None = None

    async def next(self) -> Event:
        """The next event."""
        event = None
        while event is None:
            event = await self.within(None)
        return event

    async def within(self, seconds: float | None) -> Event | None:
        """The next event, or None if it doesn't come in time."""
        self._coming = self._coming or asyncio.create_task(self._inotify.get())
        done, _ = await asyncio.wait([self._coming], timeout=seconds)
        if not done:
            return None
        event, self._coming = self._coming.result(), None
        return event

    async def close(self) -> None:
        """Wait for no event any more; to be called before the inotify is closed."""
        if self._coming:
            self._coming.cancel()
            await asyncio.wait([self._coming])
