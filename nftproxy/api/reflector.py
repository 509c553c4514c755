"""One resource of the cluster, followed: which request to make next, and what the answers say.

A state machine without sockets, clock or chance: those come in as values.  `request` says what to ask; what comes of
it goes to one of the `receive_...` methods, which return events; then `pause` says how long to wait.  The rules are
those of client-go's reflector (tools/cache/reflector.go), and where that is known to fail, stricter ones:

* A listing is passed on as a whole or not at all, so a deletion that nobody saw is seen, and half a list deletes
  nothing.  A list that doesn't end is given up, by its bytes, its pages and its time.
* A watch goes on where the last one ended, from the newest resourceVersion that was seen, bookmarks included.
* Time doesn't go backwards unless the server's does.  The first listing is whatever the server has at hand
  (resourceVersion=0); any later one is at least as new as what is known, and if the server can't do that, the newest
  there is (relistResourceVersion).
* A server may have gone back in time, when etcd was restored from a backup.  A watch from a version that it hasn't
  reached is silent at first, and then goes on as if nothing had been missed; client-go would serve for ever what is
  gone.  So after a connection that ended otherwise than it should, one cheap question comes before the watch: a list
  of one object (or of all, where these are few) from etcd, whose version is the server's.  resourceVersions are
  numbers that can be compared (KEP-5504): if the server is behind, everything is listed anew.
* A watch that the server denies for good, or that brings nothing that can be read, may be a fault of the version.  The
  first such watch is simply tried again, the second in a row makes a listing, and then the 4th, the 8th, ...
* No request is repeated without a pause, unless the last watch was a healthy one (pauses.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import msgspec

from nftproxy.api.complaints import Complaints
from nftproxy.api.decode import show
from nftproxy.api.parse import parse_json, parse_key
from nftproxy.api.pauses import Failures, Pause, Times
from nftproxy.api.resources import Resource
from nftproxy.api.responses import (
    Change,
    ErrorStatus,
    Lines,
    Page,
    Unreadable,
    is_behind,
    read_change,
    read_error,
    read_page,
)
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event, Listed, Put, Removed, key_of
from nftproxy.model.objects import ClusterObject, Ignored, ObjectKey

PAGE = 500
"""Objects in a page of a list, as in client-go (tools/pager); a list from the server's watch cache is always whole."""

MOST_PAGES = 10_000
"""Pages of a listing: five million objects, which no etcd holds."""

LARGEST_LIST = 512 * 2**20
"""Bytes of a listing, all pages, as JSON: some 300,000 EndpointSlices, twice the largest clusters (docs/performance.md,
"5,000 nodes on paper")."""

STEP = 500
"""Objects that are parsed before others get their turn: EndpointSlices of 10 endpoints take 10 ms."""


class Request(NamedTuple):
    """A GET to make: of /api/v1/{plural} or /apis/{api_version}/{plural}."""

    api_version: str
    plural: str
    is_watch: bool
    params: dict[str, str]


class Basis(Enum):
    """How new a listing has to be."""

    AT_HAND = "whatever the server has in its cache"
    NOT_OLDER = "at least as new as what is known"
    NEWEST = "the newest, in pages"
    WHOLE = "the newest, at once"


TIMER = 1.0
"""Seconds by which a watch may end before its timeout, as it is the server's clock that counts."""

_LIST_ANEW = {400, 404, 422}
"""HTTP statuses by which a server denies a watch for good: asking again would change nothing."""


class Reflector:
    """Follows one resource."""

    def __init__(self, resource: Resource, times: Times | None = None) -> None:
        self.resource = resource
        self.pause = Pause()
        self.is_open = False
        """Whether more of the present answer is wanted."""
        self.complaints = Complaints()
        self._times = times or Times()
        self._failures = Failures(self._times)
        self._lines = Lines()
        self._began = 0.0
        self._is_answered = False
        self._timeout = 0
        self._doubts = 0
        self._has_been_surprised = False
        self._version = ""
        self._is_unsure = False
        self._is_asking = False
        self._unknown_versions = 0
        self._is_absent = False
        self._found: dict[ObjectKey | str, ClusterObject] = {}
        self._page_version = ""
        self._pages = 0
        self._list_began: float | None = None
        self.room = LARGEST_LIST
        """Bytes that the rest of the present listing may have."""
        self._list(Basis.AT_HAND)

    # Out

    def request(self, now: float, chance: float) -> Request:
        """What to ask next.

        Args:
            now: seconds of any clock that doesn't jump.
            chance: a random number from 0 up to 1.
        """
        if self._is_unsure and not self._is_listing and self.resource.is_small:
            self._list(Basis.NEWEST)
        self._began = now
        self._is_answered = False
        self._is_asking = self._is_unsure and not self._is_listing
        self.is_open = True
        self.pause = Pause()
        self._lines = Lines()
        resource = self.resource
        api_version = resource.kind.api_versions[self._unknown_versions]
        is_watch = not (self._is_listing or self._is_asking)
        return Request(api_version, resource.plural, is_watch, resource.selectors | self._params(chance))

    def _params(self, chance: float) -> dict[str, str]:
        if self._is_asking:
            return {"limit": "1"}
        return self._list_params() if self._is_listing else self._watch_params(chance)

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
        self._timeout = int(times.shortest_watch + chance * (times.longest_watch - times.shortest_watch))
        return {
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._timeout),
        }

    # In

    def receive_answer(self, now: float) -> None:
        """The server has begun to answer the request, whatever it says."""
        self._is_answered = True
        self._failures.note_answer(now)

    def receive_list(self, body: bytes | bytearray, now: float) -> Iterator[list[Event]]:
        """Take in the answer to a list; the last that is yielded is the listing, if this was the last page.

        Empty lists come before, after each `STEP` objects: good moments to do something else.
        """
        try:
            page = read_page(body, self.resource.kind)
        except Unreadable as error:
            self.receive_failure(str(error), now, is_doubtful=True)
            return
        if self._is_asking:
            self._compare(page.version)
            return
        for start in range(0, len(page.items), STEP):
            for raw in page.items[start : start + STEP]:
                key, value = self._parse(raw)
                if key is not None and value is not None:
                    self._found[key] = value
            yield []
        yield from self._end_page(page, len(body), now)

    def _end_page(self, page: Page, size: int, now: float) -> Iterator[list[Event]]:
        self._page_version = self._page_version or page.version
        self._continue = page.continue_token
        self._pages += 1
        self.room -= size
        self._list_began = self._began if self._list_began is None else self._list_began
        self.is_open = False
        if not self._continue:
            self._version = self._page_version
            self._is_listing = self._is_absent = self._is_unsure = False
            self.complaints.settle()
            yield [Listed(self.resource.model, tuple(self._found.values()))]
            self._found = {}
        elif self._pages >= MOST_PAGES:
            self.receive_endless_list(f"{self._pages} pages", now)
        elif now - self._list_began >= self._times.longest_list:
            self.receive_endless_list(f"{self._times.longest_list:.0f} s", now)

    def receive_endless_list(self, bound: str, now: float) -> None:
        """Give up a listing that goes beyond a bound, which is named for the log; it begins anew after a pause."""
        self._list(Basis.NEWEST)
        self.receive_failure(f"giving up a list that has no end within {bound}", now)

    def _compare(self, version: str) -> None:
        """Watch on if the server, whose version this is, has all that is known; else list."""
        self._is_unsure = self.is_open = False
        if is_behind(version, self._version):
            reason = f"the server is at version {version}, behind {self._version}: it was restored from a backup"
            self._list(Basis.NEWEST)
            self.pause = self._failures.unhelpful(f"{reason}; listing anew")

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
        lived = now - self._began
        self._is_unsure = lived < self._timeout - TIMER
        if self._lines.is_cut:
            self.receive_failure("the watch ended in the middle of a line", now)
        elif lived < self._times.healthy:
            self.receive_failure("the watch ended too soon", now, is_doubtful=True)
        else:
            self.is_open = False
            self._failures.forgive()
            self._doubts = 0

    def receive_error(self, failure: ErrorStatus, now: float) -> list[Event]:
        """The server says no: to the request, or by an ERROR in a watch."""
        if failure.code == 404 and self._is_listing and self.resource.may_be_absent:
            return self._receive_absence()
        self._forgive(now)
        is_gone = failure.code == 410 or failure.is_too_large
        if is_gone and self._is_listing:
            self._list(Basis.WHOLE if self._continue else Basis.NEWEST)
        elif not self._is_listing and (is_gone or failure.code in _LIST_ANEW):
            self._unknown_versions = 0
            self._list(Basis.NOT_OLDER)
        is_clear = is_gone or failure.code == 429
        code = Code.API_DENIED if failure.code in _DENIED else Code.API_UNHELPFUL
        self._fail(self._failures.unhelpful(failure.message, failure.retry_after, code), is_doubtful=not is_clear)
        return self._go_without() if failure.code == 403 else []

    def _go_without(self) -> list[Event]:
        """Nothing waits for what others can do without, and may not be listed; it is asked for again all the same."""
        if not self.resource.may_be_absent or self._version or self._is_absent:
            return []
        self._is_absent = True
        self.complaints.say(
            Problem("", self.resource.plural, "", "may not be listed: going on without them", Code.API_GOING_WITHOUT)
        )
        return [Listed(self.resource.model, ())]

    def receive_failure(self, reason: str, now: float, *, is_doubtful: bool = False) -> None:
        """The connection could not be made, or is lost, or something else went wrong.

        Args:
            reason: for the log.
            now: as for `request`.
            is_doubtful: it may be for what was asked, and not only for the way there.
        """
        self._is_unsure = True
        if not self._is_answered:
            self._fail(self._failures.unanswered(reason, now, now - self._began))
        elif self._forgive(now):
            self._fail(self._failures.unanswered(reason, now), is_doubtful=is_doubtful)
        else:
            self._fail(self._failures.unhelpful(reason), is_doubtful=is_doubtful or self._is_listing)

    def receive_silence(self, now: float) -> None:
        """Nothing came for so long that the connection must be dead.

        Of a watch that is no fault: where little changes, and etcd reports its progress seldom, there may be nothing to
        bookmark.
        """
        is_watch = not (self._is_listing or self._is_asking)
        self.receive_failure("nothing came any more", now)
        self.pause = self.pause._replace(is_fault=not is_watch)

    # What it comes to

    def _forgive(self, now: float) -> bool:
        """Forget what failed before a watch that was a good one, however it ends; whether it was."""
        is_healthy = not (self._is_listing or self._is_asking) and now - self._began >= self._times.healthy
        if is_healthy:
            self._failures.forgive()
        return is_healthy

    def _fail(self, pause: Pause, *, is_doubtful: bool = False) -> None:
        """Pause before the next request, and perhaps make it a listing."""
        self.is_open = False
        self._doubts += is_doubtful
        if is_doubtful and self._doubts >= 2 and self._doubts & (self._doubts - 1) == 0:
            self._list(self._basis if self._is_listing else Basis.NOT_OLDER)
        self.pause = pause

    def _list(self, basis: Basis) -> None:
        """Begin a listing."""
        self._is_listing = True
        self._basis = basis
        self._continue = self._page_version = ""
        self._found = {}
        self._pages = 0
        self._list_began = None
        self.room = LARGEST_LIST
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
        absent = self._times.absent
        self.pause = Pause(absent, absent, "this cluster has none" if is_news else "", is_fault=False)
        return [Listed(self.resource.model, ())] if is_news else []

    def _receive_change(self, change: Change, now: float) -> list[Event]:
        """Take in one event of a watch."""
        if change.type == "ERROR":
            self._is_unsure = True
            return self.receive_error(read_error(change.object), now)
        if change.type not in _TYPES:
            if not self._has_been_surprised:
                text = f"events of type {show(change.type)} are not understood, and passed over"
                self.complaints.say(Problem("", self.resource.plural, "", text, Code.API_UNKNOWN_EVENT))
            self._has_been_surprised = True
            return []
        self._doubts = 0
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


_DENIED = (401, 403)
"""Status codes by which the API says that it doesn't know who asks, or that they may not."""

_TYPES = {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}
"""Types of events (meta/v1 WatchEvent) that are understood, beside ERROR."""
