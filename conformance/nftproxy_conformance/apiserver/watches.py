"""Watches: their options, and their queues of events.

The store notifies a watch of each change, and the watch puts a line into its queue.  All watches share the lines.  The
writer to the connection drains the queue, and sleeps while it is empty.  Bookmarks and the end come from the loop's
timers.  Faults act where lines enter the queue.

Two rules are those of kube-apiserver's watch cache.  A watch from a future version is accepted, and gets no events and
no bookmarks until that version exists.  The version of a bookmark is always later than the start of the watch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from nftproxy_conformance.apiserver.faults import (
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
from nftproxy_conformance.apiserver.journal import Request
from nftproxy_conformance.apiserver.options import Options
from nftproxy_conformance.apiserver.resources import Resource
from nftproxy_conformance.apiserver.settings import Settings
from nftproxy_conformance.apiserver.status import ApiError, expired, too_large
from nftproxy_conformance.apiserver.store import Change, Store, TooOldError, event_line
from nftproxy_conformance.apiserver.versions import end_of_initial_events

LAST_BOOKMARK = 2.0
"""A watch gets a last bookmark so many seconds before its timeout (k8s.io/apiserver, storage/cacher)."""


class Watch:
    """A watch, from its headers to its end.

    Args:
        store: the objects.
        resource: the watched resource.
        options: the options of the query.
        settings: the server's settings.
        request: the request that opened it.

    Raises:
        ApiError: 410 or 504, its start isn't available.
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
        """Subscribe to the store, and start the timers."""
        self._store.subscribe(self._resource, self.offer)
        self._began = asyncio.get_running_loop().time()
        timeout = self._options.timeout or self._settings.watch_timeout
        self._later("end", timeout, lambda: self.part(Parting.END))
        if self._settings.bookmark_interval is not None:
            self._bookmark_later(self._settings.bookmark_interval)
        if timeout > LAST_BOOKMARK:
            self._later("last bookmark", timeout - LAST_BOOKMARK, self._bookmark)

    def close(self) -> None:
        """Unsubscribe from the store, and stop the timers."""
        self._store.unsubscribe(self._resource, self.offer)
        for timer in self._timers.values():
            timer.cancel()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes to send, until the stream is to end."""
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
        """Queue the event of a change, if the watch selects the object."""
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
        """Apply a fault, at once or with the next event."""
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
        """Send the queue, and then end."""
        if self._is_silent and how is Parting.END:
            return  # a black hole swallows the end too
        self.parting = self.parting or how
        self._wake.set()

    def _begin(self) -> int:
        """Queue the first events, and return the revision after which changes count."""
        asked, current = self._options.resource_version, self._store.revision
        if self._options.send_initial_events:
            if (asked or 0) > current:
                raise too_large(asked or 0, current)
            self._send_state()
            if self._options.wants_bookmarks:
                annotations = end_of_initial_events(self._resource, self._settings.version)
                self._send(self._resource.bookmark(current, annotations))
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
        """Call `do` when the watch is this number of seconds old."""
        self._timers[what] = asyncio.get_running_loop().call_at(self._began + seconds / self._settings.pace, do)

    def _bookmark_later(self, seconds: float) -> None:
        """Send a bookmark when the watch is `seconds` old, and then regularly."""

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
    """True if a watch reports its failed start in an ERROR event, as real servers do after parsing the query."""
    return error.code in {410, 504} and not settings.expired_watch_has_status
