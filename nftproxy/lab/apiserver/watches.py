"""Watches: what one has asked for, and what waits to be sent to it.

The store tells a watch of each change as it happens, which puts a line into its queue; lines are shared between all
watches.  Whoever writes to the connection takes what is there at once, and sleeps while there is nothing.  Bookmarks
and the end come from the loop's timers.  Faults act where lines enter the queue.

As in kube-apiserver's watch cache: a watch from the future is accepted, and gets nothing, not even bookmarks, until
the future has come; and a bookmark has always a later version than the watch began with, if not than the one before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from nftproxy.lab.apiserver.faults import (
    Action,
    BlackHole,
    CutLine,
    Duplicate,
    EndWatch,
    Inject,
    Parting,
    Reset,
    Swap,
)
from nftproxy.lab.apiserver.journal import Request
from nftproxy.lab.apiserver.options import Options
from nftproxy.lab.apiserver.resources import Resource
from nftproxy.lab.apiserver.settings import Settings
from nftproxy.lab.apiserver.status import ApiError, expired, too_large
from nftproxy.lab.apiserver.store import Change, Store, TooOldError, event_line

LAST_BOOKMARK = 2.0
"""Seconds before a watch's timeout at which it gets one more bookmark (k8s.io/apiserver, storage/cacher)."""


class Watch:
    """One watch, from its headers to its end.

    Args:
        store: whose changes it follows.
        resource: of what.
        options: what it asks for.
        settings: the server's.
        request: the request that opened it.

    Raises:
        ApiError: 410 or 504, it can't begin where it should.
    """

    def __init__(
        self, store: Store, resource: Resource, options: Options, settings: Settings, request: Request
    ) -> None:
        self.request = request
        self.parting: Parting | None = None
        self._store = store
        self._resource = resource
        self._options = options
        self._settings = settings
        self._lines: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._armed: deque[Action] = deque()
        self._held: bytes | None = None
        self._is_silent = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._began = 0.0
        self._since = self._marked = self._begin()

    def open(self) -> None:
        """Follow the store from here on."""
        self._store.follow(self._resource, self.offer)
        self._began = asyncio.get_running_loop().time()
        timeout = self._options.timeout or self._settings.watch_timeout
        self._later("end", timeout, lambda: self.part(Parting.END))
        if self._settings.bookmark_interval is not None:
            self._bookmark_later(self._settings.bookmark_interval)
        if timeout > LAST_BOOKMARK:
            self._later("last bookmark", timeout - LAST_BOOKMARK, self._bookmark)

    def close(self) -> None:
        """Follow it no more."""
        self._store.unfollow(self._resource, self.offer)
        for timer in self._timers.values():
            timer.cancel()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes to send, as soon as there are any, until the stream is to part."""
        while True:
            if self._lines:
                data = b"".join(self._lines)
                self._lines.clear()
                yield data
            elif self.parting is not None:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    def offer(self, change: Change) -> None:
        """Take a change that the watch may be about."""
        type_ = change.type_for(self._options.selection)
        if type_ is None or change.revision <= self._since or self._is_silent or self.parting is not None:
            return
        line = change.line(type_)
        action = self._armed.popleft() if self._armed else None
        if isinstance(action, Swap):
            self._held = line
            return
        self._send(line)
        if self._held is not None:
            self._send(self._held)
            self._held = None
        if isinstance(action, Duplicate):
            self._send(line)
        elif isinstance(action, CutLine):
            self._lines[-1] = line[: len(line) // 2]
            self.part(action.then)

    def strike(self, action: Action) -> None:
        """Let something go wrong: at once, or with the next event."""
        match action:
            case BlackHole():
                self._is_silent = True
            case Reset():
                self.part(Parting.RESET)
            case EndWatch():
                self.part(Parting.END)
            case Inject(data, then):
                self._send(data)
                if then is not None:
                    self.part(then)
            case _:
                self._armed.append(action)

    def part(self, how: Parting) -> None:
        """Send what waits, and then end."""
        if self._is_silent and how is Parting.END:
            return  # the black hole swallows this too
        self.parting = self.parting or how
        self._wake.set()

    def _begin(self) -> int:
        """Queue what comes first; returns the revision after which changes count."""
        asked, current = self._options.resource_version, self._store.revision
        if self._options.send_initial_events:
            if (asked or 0) > current:
                raise too_large(asked or 0, current)
            self._send_state()
            if self._options.wants_bookmarks:
                self._send(self._resource.bookmark(current, ends_initial_events=True))
            return current
        if not asked:
            return current
        try:
            changes = self._store.since(self._resource, asked)
        except TooOldError as error:
            raise expired(asked, error.floor) from error
        self._since = asked
        for change in changes:
            self.offer(change)
        return asked

    def _send_state(self) -> None:
        for stored in self._store.at(self._resource, self._store.revision):
            if stored.is_in(self._options.selection):
                self._send(event_line("ADDED", stored))

    def _send(self, line: bytes) -> None:
        if self.parting is None and not self._is_silent:
            self.request.events += 1
            self._lines.append(line)
            self._wake.set()

    def _later(self, what: str, seconds: float, do: Callable[[], None]) -> None:
        """Have something done so many seconds after the watch began."""
        self._timers[what] = asyncio.get_running_loop().call_at(self._began + seconds / self._settings.pace, do)

    def _bookmark_later(self, seconds: float) -> None:
        """Send a bookmark so many seconds after the watch began, and then again and again."""

        def bookmark() -> None:
            self._bookmark()
            if self._settings.bookmark_interval is not None:
                self._bookmark_later(seconds + self._settings.bookmark_interval)

        self._later("bookmark", seconds, bookmark)

    def _bookmark(self) -> None:
        if not self._options.wants_bookmarks or self._settings.bookmark_interval is None:
            return
        if self._store.revision == self._marked and not self._settings.is_idle:
            self._store.revision += 1  # a Lease was written, as is every few seconds in a cluster
        if self._store.revision > self._since:
            self._marked = self._store.revision
            self._send(self._resource.bookmark(self._marked))


def is_sent_in_stream(error: ApiError, settings: Settings) -> bool:
    """Whether a watch that can't begin says so in an ERROR event: as real servers do once they could read the query."""
    return error.code in {410, 504} and not settings.expired_watch_has_status
