"""One resource of the cluster, followed: which request to make next, and what the answers say.

A state machine without sockets, clock or chance: those come in as values.  `request` tells what to ask; what comes of
it goes to one of the `receive_...` methods, which return events; then `pause` tells how long to wait.  The rules are
those of client-go's reflector (tools/cache/reflector.go), and where that is known to fail, stricter ones:

* A listing is told as a whole or not at all, so a deletion that nobody saw is seen, and half a list deletes nothing.
* A watch goes on where the last one ended, from the newest resourceVersion that was seen, bookmarks included.  What
  versions mean is the server's affair: they are never compared.
* Time doesn't go backwards.  The first listing is whatever the server has at hand (resourceVersion=0); any later one
  is at least as new as what is known, and if the server can't do that, the newest there is (relistResourceVersion).
* Doubts lead to a new listing.  A watch that is refused, or silent, or brings nothing that can be read, may be from a
  version that the server has never heard of, as after a backup was restored; client-go would wait for ever.  The
  first such watch is simply tried again, the second in a row makes a listing, and then the 4th, the 8th, ...: servers
  without bookmarks are silent for good reason.
* Nothing is repeated without a pause that grows, unless the last watch was a healthy one.  That a listing succeeded is
  no reason to be quick: listing and failing to watch, again and again, is the worst that can be done to a server.
  Where a watch that has told something breaks, the next one costs the server little; so there it is enough that it
  lived for longer than the pause before it, and the fault that ends it is another than the one that began the pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import msgspec

from nftproxy.api.complaints import Complaints
from nftproxy.api.decode import show
from nftproxy.api.parse import parse_json, parse_key
from nftproxy.api.resources import Resource
from nftproxy.api.responses import Change, Lines, Refusal, Unreadable, read_change, read_page, read_refusal
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event, Listed, Put, Removed, key_of
from nftproxy.model.objects import ClusterObject, Ignored, ObjectKey

PAGE = 500
"""Objects in a page of a list, as in client-go (tools/pager); a list from the server's watch cache is always whole."""

STEP = 500
"""Objects that are parsed before others get their turn: EndpointSlices of 10 endpoints take 10 ms."""


class Times(msgspec.Struct, frozen=True):
    """What the machine takes its time for, in seconds.

    `shortest_watch` and `longest_watch` (whole seconds): after how long a watch is to end, at random, as in client-go.
    `healthy`: a watch that lived that long was a good one.  `absent`: between looks for a kind that isn't there.
    """

    shortest_watch: int = 300
    longest_watch: int = 600
    healthy: float = 5.0
    absent: float = 600.0


class Request(NamedTuple):
    """A GET to make: of /api/v1/{plural} or /apis/{api_version}/{plural}."""

    api_version: str
    plural: str
    is_watch: bool
    params: dict[str, str]


class Pause(NamedTuple):
    """How long to wait before the next request: at least so many seconds, and longer after more failures in a row.

    After no failures it is no longer than that.  `reason` is for the log, "" if all is well.
    """

    failures: int = 0
    at_least: float = 0.0
    reason: str = ""


class Basis(Enum):
    """How new a listing has to be."""

    AT_HAND = "whatever the server has in its cache"
    NOT_OLDER = "at least as new as what is known"
    NEWEST = "the newest, in pages"
    WHOLE = "the newest, at once"


_LIST_ANEW = {400, 404, 422}
"""HTTP statuses by which a watch is refused for good: asking again would change nothing."""


class Reflector:
    """Follows one resource."""

    def __init__(self, resource: Resource, times: Times | None = None) -> None:
        self.resource = resource
        self.pause = Pause()
        self.is_open = False
        """Whether more of the present answer is wanted."""
        self.complaints = Complaints()
        self._times = times or Times()
        self._lines = Lines()
        self._began = 0.0
        self._failures = 0
        self._failed_at = 0.0
        self._has_told = False
        self._doubts = 0
        self._has_been_surprised = False
        self._version = ""
        self._unknown_versions = 0
        self._is_absent = False
        self._found: dict[ObjectKey | str, ClusterObject] = {}
        self._page_version = ""
        self._list(Basis.AT_HAND)

    # Out

    def request(self, now: float, chance: float) -> Request:
        """What to ask next.

        Args:
            now: seconds of any clock that doesn't jump.
            chance: a random number from 0 up to 1.
        """
        self._began = now
        self._has_told = False
        self.is_open = True
        self.pause = Pause()
        self._lines = Lines()
        params = self._list_params() if self._is_listing else self._watch_params(chance)
        resource = self.resource
        api_version = resource.kind.api_versions[self._unknown_versions]
        return Request(api_version, resource.plural, not self._is_listing, resource.selectors | params)

    def _list_params(self) -> dict[str, str]:
        if self._continue:
            return {"limit": str(PAGE), "continue": self._continue}
        return {
            Basis.AT_HAND: {"resourceVersion": "0", "limit": str(PAGE)},
            Basis.NOT_OLDER: {"resourceVersion": self._version, "resourceVersionMatch": "NotOlderThan"},
            Basis.NEWEST: {"limit": str(PAGE)},
            Basis.WHOLE: {},
        }[self._basis]

    def _watch_params(self, chance: float) -> dict[str, str]:
        times = self._times
        return {
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(times.shortest_watch + chance * (times.longest_watch - times.shortest_watch))),
        }

    # In

    def receive_list(self, body: bytes | bytearray, now: float) -> Iterator[list[Event]]:
        """Take in the answer to a list; the last that is yielded is the listing, if this was the last page.

        Empty lists come before, after each `STEP` objects: good moments to do something else.
        """
        try:
            page = read_page(body, self.resource.kind)
        except Unreadable as error:
            self.receive_failure(str(error), now, is_doubtful=True)
            return
        for start in range(0, len(page.items), STEP):
            for raw in page.items[start : start + STEP]:
                key, value = self._parse(raw)
                if key is not None and value is not None:
                    self._found[key] = value
            yield []
        self._page_version = self._page_version or page.version
        self._continue = page.continue_token
        self.is_open = False
        if not self._continue:
            self._version = self._page_version
            self._is_listing = self._is_absent = False
            self.complaints.settle()
            yield [Listed(self.resource.model, tuple(self._found.values()))]
            self._found = {}

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Take in bytes of a watch; after an ERROR, or what can't be read, `is_open` is false."""
        events: list[Event] = []
        try:
            for line in self._lines.split(data):
                if self.is_open:
                    events += self._receive_change(read_change(line), now)
        except Unreadable as error:
            self.receive_failure(str(error), now, is_doubtful=True)
        return events

    def receive_end(self, now: float) -> None:
        """The watch has ended as it does at its timeout."""
        if self._lines.is_cut:
            self.receive_failure("the watch ended in the middle of a line", now)
        elif now - self._began < self._times.healthy:
            self.receive_failure("the watch ended too soon", now, is_doubtful=True)
        else:
            self.is_open = False
            self._failures = self._doubts = 0

    def receive_refusal(self, refusal: Refusal, now: float) -> list[Event]:
        """The server says no: to the request, or by an ERROR in a watch."""
        if refusal.code == 404 and self._is_listing and self.resource.may_be_absent:
            return self._receive_absence()
        self._forgive(now)
        is_gone = refusal.code == 410 or refusal.is_too_large
        if is_gone and self._is_listing:
            self._list(Basis.WHOLE if self._continue else Basis.NEWEST)
        elif not self._is_listing and (is_gone or refusal.code in _LIST_ANEW):
            self._unknown_versions = 0
            self._list(Basis.NOT_OLDER)
        is_clear = is_gone or refusal.code == 429
        self._fail(Pause(0, refusal.retry_after, refusal.message), now, is_doubtful=not is_clear)
        return []

    def receive_failure(self, reason: str, now: float, *, is_doubtful: bool = False) -> None:
        """The connection could not be made, or is lost, or something else went wrong.

        Args:
            reason: for the log.
            now: as for `request`.
            is_doubtful: it may be for what was asked, and not only for the way there.
        """
        self._forgive(now, has_broken=not is_doubtful)
        self._fail(Pause(reason=reason), now, is_doubtful=is_doubtful)

    # What it comes to

    def _forgive(self, now: float, *, has_broken: bool = False) -> None:
        """Forget what failed before a watch that was a good one, however it ends."""
        lived, paused = now - self._began, self._began - self._failed_at
        is_another_fault = has_broken and self._has_told and lived > paused
        if not self._is_listing and (lived >= self._times.healthy or is_another_fault):
            self._failures = 0

    def _fail(self, pause: Pause, now: float, *, is_doubtful: bool) -> None:
        """Pause before the next request, as after one failure more, and perhaps make it a listing."""
        self.is_open = False
        self._failures += 1
        self._failed_at = now
        self._doubts += is_doubtful
        if is_doubtful and self._doubts >= 2 and self._doubts & (self._doubts - 1) == 0:
            self._list(self._basis if self._is_listing else Basis.NOT_OLDER)
        self.pause = pause._replace(failures=self._failures)

    def _list(self, basis: Basis) -> None:
        """Begin a listing."""
        self._is_listing = True
        self._basis = basis
        self._continue = self._page_version = ""
        self._found = {}
        self.complaints.begin()

    def _receive_absence(self) -> list[Event]:
        """The kind is unknown in this API version: try the next one, and after the last, there is nothing to list."""
        self.is_open = False
        self._unknown_versions += 1
        if self._unknown_versions < len(self.resource.kind.api_versions):
            return []
        self._unknown_versions = 0
        self._list(Basis.AT_HAND)
        is_news, self._is_absent = not self._is_absent, True
        self.pause = Pause(0, self._times.absent, "this cluster has none" if is_news else "")
        return [Listed(self.resource.model, ())] if is_news else []

    def _receive_change(self, change: Change, now: float) -> list[Event]:
        """Take in one event of a watch."""
        if change.type == "ERROR":
            return self.receive_refusal(read_refusal(change.object), now)
        if change.type not in _TYPES:
            if not self._has_been_surprised:
                self.complaints.say(f"events of type {show(change.type)} are not understood, and passed over")
            self._has_been_surprised = True
            return []
        self._doubts = 0
        self._has_told = True
        self._version = change.version or self._version
        return self._events_of(change)

    def _events_of(self, change: Change) -> list[Event]:
        if change.type == "BOOKMARK":
            return []
        if change.type == "DELETED":
            key, value = parse_key(change.object, self.resource.kind), None
            self.complaints.note(key, ())
        else:
            key, value = self._parse(change.object)
        if value is not None:
            return [Put(value)]
        return [] if key is None else [Removed(self.resource.model, key)]

    def _parse(self, raw: msgspec.Raw) -> tuple[ObjectKey | str | None, ClusterObject | None]:
        """An object and its key; None for one that isn't for this proxy or can't be read, or whose key can't."""
        found: list[Problem] = []
        value = parse_json(raw, "", found, kind=self.resource.kind)
        if value is None or isinstance(value, Ignored):
            key, value = parse_key(raw, self.resource.kind), None
        else:
            key = key_of(value)
        self.complaints.note(key, found)
        return key, value


_TYPES = {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}
"""Types of events (meta/v1 WatchEvent) that are understood, beside ERROR."""
