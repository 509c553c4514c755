"""Lists and watches a resource of the cluster: the next request to make, and the events in each answer.

A state machine without sockets, clock or randomness, which come in as values.  `request` returns the next request.  A
`receive_...` method takes its answer and returns events.  Then `pause` says how long to wait.

phases.py has the phases of this machine, and every transition between them.

The rules are those of client-go's reflector (tools/cache/reflector.go), and stricter where client-go is known to fail:

* A listing is passed on as a whole or not at all.  So a deletion that was missed is found, and half a list deletes
  nothing.  A list that doesn't end is given up, by its pages and its time.  Its bytes have no bound, since a tenant
  may fill etcd.  An object that is too large is left out, and named.
* A watch continues where the last watch ended, from the newest resourceVersion that was seen, bookmarks included.
* Time doesn't go backwards unless the server's does.  The first listing is cached (resourceVersion=0).  Every later
  listing is at least as new as the known version.  If the server can't do that, it is the newest that there is
  (relistResourceVersion).
* A server may have gone back in time, when etcd was restored from a backup.  A watch from a version that the server
  hasn't reached is silent at first, and then continues as if nothing had been missed.  client-go would serve deleted
  objects for ever.  So after a connection that ended abnormally, and after a denied watch that is retried late, a cheap
  probe precedes the watch: a list of a single object (or of all, where these are few) from etcd, which has the server's
  version.  A watch that ended at its timeout needs none: the next begins at once.  resourceVersions are numbers that
  can be compared (KEP-5504).  If the server is behind, everything is listed anew.
* A watch that the server denies for good, or that brings nothing readable, may fail because of its version.  The
  first such watch is retried, the second in a row leads to a listing, and then the 4th, the 8th, ...
* No request is repeated without a pause, unless the last watch was healthy (pauses.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from nftproxy.api.decode import show
from nftproxy.api.parse import parse_json, parse_key
from nftproxy.api.pauses import FailureCounts, Pause, ReflectorTimes
from nftproxy.api.phases import TRANSITIONS, Ending, Phase
from nftproxy.api.problem_tracker import MOST_OF_ONE, ProblemTracker
from nftproxy.api.resources import Resource
from nftproxy.api.responses import (
    LARGEST_OBJECT,
    ErrorStatus,
    Lines,
    Page,
    PageReader,
    Unreadable,
    WatchEvent,
    is_behind,
    read_change,
    read_error,
)
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.objects import ClusterObject, Ignored, ObjectKey, key_of

PAGE = 500
"""Objects in a page of a list, as in client-go (tools/pager).  A list from the server's watch cache is always whole."""

MOST_PAGES = 10_000
"""Pages of a listing: five million objects, which no etcd holds."""

TIMER = 1.0
"""Seconds by which a watch may end before its timeout, as it is the server's clock that counts."""

_INVALID = (400, 404, 422)
"""HTTP statuses by which a server denies a watch for good."""
_DENIED = (401, 403)
"""HTTP statuses of missing authentication or authorization."""

_TYPES = {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}
"""Types of events (meta/v1 WatchEvent) that are understood, beside ERROR."""


class ApiRequest(NamedTuple):
    """A GET to make: of /api/v1/{plural} or /apis/{api_version}/{plural}."""

    api_version: str
    plural: str
    is_watch: bool
    params: dict[str, str]


class _Listing(msgspec.Struct):
    """The part of a listing that has been read.  Its version is that of the first page."""

    objects: dict[ObjectKey | str, ClusterObject] = {}
    ignored: dict[ObjectKey | str, Ignored] = {}
    version: str = ""
    continue_token: str = ""
    pages: int = 0
    began: float | None = None


class _Exchange(msgspec.Struct):
    """The present request, and its answer.

    `version` is the known version at its beginning, `timeout` the seconds that a watch asked for.  `objects`, `ignored`
    and `faults` are those of the page so far.
    """

    began: float
    page: PageReader
    version: str = ""
    timeout: int = 0
    is_answered: bool = False
    lines: Lines = msgspec.field(default_factory=Lines)
    objects: dict[ObjectKey | str, ClusterObject] = {}
    ignored: dict[ObjectKey | str, Ignored] = {}
    faults: list[tuple[ObjectKey | str | None, list[Problem]]] = []


class Reflector:
    """Lists and watches a resource."""

    def __init__(self, resource: Resource, times: ReflectorTimes | None = None) -> None:
        self.resource = resource
        self.phase = Phase.LIST_CACHED
        self.pause = Pause()
        """How long to wait before the next request."""
        self.is_open = False
        """Whether to read on in the present answer."""
        self.problems = ProblemTracker()
        self._times = times or ReflectorTimes()
        self._failures = FailureCounts(self._times)
        self._exchange = _Exchange(0.0, PageReader(resource.kind))
        self._listing = _Listing()
        self._version = ""
        """The known version: of the last listing, or of a later event."""
        self._doubts = 0
        """Failures in a row for no clear reason."""
        self._api_version = 0
        """The index among the kind's API versions."""
        self.is_absent = False
        """Whether an empty listing was passed on for a kind that can't be listed."""
        self._has_reported_type = False

    # Out

    def request(self, now: float, chance: float) -> ApiRequest:
        """Return the next request.

        Args:
            now: seconds of any clock that doesn't jump.
            chance: a random number from 0 up to 1.
        """
        self.is_open = True
        self.pause = Pause()
        resource = self.resource
        self._exchange = _Exchange(now, PageReader(resource.kind), self._version)
        api_version = resource.kind.api_versions[self._api_version]
        is_watch = self.phase is Phase.WATCH
        return ApiRequest(api_version, resource.plural, is_watch, resource.selectors | self._params(chance))

    def _params(self, chance: float) -> dict[str, str]:
        if self._listing.continue_token:
            return {"limit": str(PAGE), "continue": self._listing.continue_token}
        match self.phase:
            case Phase.LIST_CACHED:
                return {"resourceVersion": "0", "limit": str(PAGE)}
            case Phase.LIST_NOT_OLDER:
                return {"resourceVersion": self._version, "resourceVersionMatch": "NotOlderThan"}
            case Phase.LIST_NEWEST:
                return {"limit": str(PAGE)}
            case Phase.LIST_WHOLE:
                return {}
            case Phase.PROBE:
                return {"limit": "1"}
            case Phase.WATCH:
                return self._watch_params(chance)

    def _watch_params(self, chance: float) -> dict[str, str]:
        times = self._times
        self._exchange.timeout = int(times.shortest_watch + chance * (times.longest_watch - times.shortest_watch))
        return {
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._exchange.timeout),
        }

    # In

    def receive_answer(self, now: float) -> None:
        """Note that the server has begun to answer the request, with any status."""
        self._exchange.is_answered = True
        self._failures.record_answer(now)

    def receive_list_data(self, data: bytes, now: float) -> None:
        """Read bytes of a list.  After unreadable bytes `is_open` is false."""
        page = self._exchange.page
        try:
            items = page.take(data)
        except Unreadable as error:
            self.receive_failure(str(error), now, is_doubtful=True)
            return
        self._parse_items(items)
        for names in page.pop_left_out():
            self._exchange.faults.append(self._too_large(names))

    def receive_list_end(self, now: float) -> list[Event]:
        """Note that the server has ended its answer to a list.  The last page's event is the listing."""
        self.is_open = False
        try:
            page = self._exchange.page.end()
        except Unreadable as error:
            self.receive_failure(str(error), now, is_doubtful=True)
            return []
        if self.phase is Phase.PROBE:
            self._end_probe(page.version)
            return []
        self._parse_items(page.items)
        return self._end_page(page, now)

    def _parse_items(self, items: Sequence[msgspec.Raw]) -> None:
        exchange = self._exchange
        for raw in items if self.phase is not Phase.PROBE else ():
            key, value, found = self._parse(raw)
            if found:
                exchange.faults.append((key, found[:MOST_OF_ONE]))
            if key is None or value is None:
                continue
            if isinstance(value, Ignored):
                exchange.ignored[key] = value
            else:
                exchange.objects[key] = value

    def _too_large(self, names: bytes) -> tuple[ObjectKey | str | None, list[Problem]]:
        """Return the key and fault of an object that was left out, from the JSON of its names."""
        kind = self.resource.kind
        key = parse_key(names, kind)
        subject = kind.name if key is None else f"{kind.name} {key}"
        text = f"has more than {LARGEST_OBJECT} bytes, and is left out"
        return key, [Problem("", subject, "", text, Code.OBJECT_UNREADABLE)]

    def _end_page(self, page: Page, now: float) -> list[Event]:
        listing, exchange = self._listing, self._exchange
        listing.objects |= exchange.objects
        listing.ignored |= exchange.ignored
        for key, found in exchange.faults:
            self.problems.record(key, found)
        listing.version = listing.version or page.version
        listing.continue_token = page.continue_token
        listing.pages += 1
        if listing.began is None:
            listing.began = exchange.began
        if not listing.continue_token:
            self._version = listing.version
            self.is_absent = False
            self.problems.end_listing()
            self._move(Ending.COMPLETE)
            return [Listed(self.resource.model, tuple(listing.objects.values()), tuple(listing.ignored.values()))]
        if listing.pages >= MOST_PAGES:
            self.receive_endless_list(f"{listing.pages} pages", now)
        elif now - listing.began >= self._times.longest_list:
            self.receive_endless_list(f"{self._times.longest_list:.0f} s", now)
        return []

    def receive_endless_list(self, bound: str, now: float) -> None:
        """Give up a listing that exceeds a bound, which is named in the log.  It begins anew after a pause."""
        self._move(Ending.OVERLONG)
        self.receive_failure(f"giving up a list that has no end within {bound}", now, is_doubtful=True)

    def _end_probe(self, version: str) -> None:
        """Continue with the watch if the server, at this version, has reached the known version.  Otherwise list."""
        if is_behind(version, self._version):
            reason = f"the server is at version {version}, behind {self._version}: it was restored from a backup"
            self._move(Ending.BEHIND)
            self.pause = self._failures.count_unhelpful(f"{reason}; listing anew")
        else:
            self._move(Ending.CURRENT)

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Read bytes of a watch.  After an ERROR, and after unreadable bytes, `is_open` is false."""
        events: list[Event] = []
        try:
            for line in self._exchange.lines.split(data):
                if self.is_open:
                    events += self._receive_event(read_change(line), now)
        except Unreadable as error:
            self.receive_failure(str(error), now, is_doubtful=True)
        return events

    def receive_end(self, now: float) -> None:
        """Note that the server has ended the watch, as it does at the timeout."""
        lived = now - self._exchange.began
        if self._exchange.lines.is_cut:
            self.receive_failure("the watch ended in the middle of a line", now)
        elif lived < self._times.healthy:
            self.receive_failure("the watch ended too soon", now, is_doubtful=not self._was_useful(now))
        else:
            self.is_open = False
            self._failures.reset()
            self._doubts = 0
            if lived < self._exchange.timeout - TIMER:
                self._move(Ending.CUT_SHORT)

    def receive_error(self, failure: ErrorStatus, now: float) -> list[Event]:
        """Read an answer of HTTP status 400 or more."""
        return self._receive_error(failure, now, None)

    def _receive_error(self, failure: ErrorStatus, now: float, outcome: Ending | None) -> list[Event]:
        """Read an error.  It ends the request with `outcome`, unless its status has an ending of its own."""
        if failure.code == 404 and self.phase.is_list and self.resource.may_be_absent:
            return self._receive_absence()
        self._reset_if_healthy(now)
        is_gone = failure.code == 410 or failure.is_too_large
        if is_gone:
            outcome = Ending.PAGE_EXPIRED if self._listing.continue_token else Ending.EXPIRED
        elif failure.code in _INVALID:
            outcome = Ending.INVALID
        if outcome in (Ending.EXPIRED, Ending.INVALID) and not self.phase.is_list:
            self._api_version = 0
        is_clear = is_gone or failure.code == 429
        code = Code.API_DENIED if failure.code in _DENIED else Code.API_UNHELPFUL
        pause = self._failures.count_unhelpful(failure.message, failure.retry_after, code)
        if outcome is None and pause.longest >= self._times.healthy:
            outcome = Ending.LATE
        self._fail(pause, outcome, is_doubtful=not is_clear)
        return self._go_without() if failure.code == 403 else []

    def _go_without(self) -> list[Event]:
        """Pass on an empty listing of a kind that isn't essential and may not be listed.  Requests go on."""
        if not self.resource.may_be_absent or self._version or self.is_absent:
            return []
        self.is_absent = True
        self.problems.report(
            Problem("", self.resource.plural, "", "may not be listed: going on without them", Code.API_GOING_WITHOUT)
        )
        return [Listed(self.resource.model, ())]

    def _receive_absence(self) -> list[Event]:
        """Try the kind's next API version.  After the last version, pass on an empty listing."""
        self.is_open = False
        self._api_version += 1
        if self._api_version < len(self.resource.kind.api_versions):
            return []
        self._api_version = 0
        self._move(Ending.ABSENT)
        is_news, self.is_absent = not self.is_absent, True
        absent = self._times.absent
        self.pause = Pause(absent, absent, "this cluster has none" if is_news else "", is_fault=False)
        return [Listed(self.resource.model, ())] if is_news else []

    def receive_failure(self, reason: str, now: float, *, is_doubtful: bool = False) -> None:
        """Note that the connection failed, or that its data can't be read.

        Args:
            reason: for the log.
            now: as for `request`.
            is_doubtful: the request may be the cause, and not only the connection.
        """
        exchange = self._exchange
        if not exchange.is_answered:
            pause = self._failures.count_unanswered(reason, now, now - exchange.began)
            is_doubtful = False
        elif self._reset_if_healthy(now):  # no fault, as balancers cut idle connections, unless the next request fails
            pause = self._failures.count_unanswered(reason, now)._replace(is_fault=False)
        elif not is_doubtful and self._was_useful(now):
            pause = self._failures.count_cut(reason)
        else:
            pause = self._failures.count_unhelpful(reason)._replace(is_cut=not is_doubtful)
            is_doubtful |= self.phase.is_list
        self._fail(pause, Ending.LOST, is_doubtful=is_doubtful)

    @property
    def is_watching(self) -> bool:
        """Whether the present or next request is a watch."""
        return self.phase is Phase.WATCH

    def receive_silence(self, reason: str, now: float) -> None:
        """Note that nothing came for so long that the connection must be dead, with the reason for the log.

        For a watch that is no fault: where little changes, and etcd reports its progress seldom, there may be nothing
        to bookmark.
        """
        is_watch = self.is_watching
        self.receive_failure(reason, now)
        self.pause = self.pause._replace(is_fault=not is_watch)

    # Phases

    def _reset_if_healthy(self, now: float) -> bool:
        """Reset the counts of failures if the present request was a healthy watch.  Return whether it was."""
        is_healthy = self.phase is Phase.WATCH and now - self._exchange.began >= self._times.healthy
        if is_healthy:
            self._failures.reset()
        return is_healthy

    def _was_useful(self, now: float) -> bool:
        """Whether the present request is a watch that lasted for a while, or has brought a newer version."""
        exchange = self._exchange
        is_new = self._version != exchange.version
        return self.phase is Phase.WATCH and (is_new or now - exchange.began >= self._times.useful)

    def _fail(self, pause: Pause, outcome: Ending | None, *, is_doubtful: bool) -> None:
        """End the request.

        After two doubtful endings in a row, and again after four, eight and so on, the ending is `DOUBTFUL`.
        """
        self.is_open = False
        self.pause = pause
        self._doubts += is_doubtful
        is_too_doubtful = is_doubtful and self._doubts >= 2 and self._doubts.bit_count() == 1
        self._move(Ending.DOUBTFUL if is_too_doubtful else outcome)

    def _move(self, outcome: Ending | None) -> None:
        """Change the phase as `TRANSITIONS` has it.  Where all objects are few, they are listed instead of a probe."""
        phase = TRANSITIONS[self.phase].get(outcome) if outcome else None
        if phase is None:
            return
        self.phase = Phase.LIST_NEWEST if phase is Phase.PROBE and self.resource.is_small else phase
        self._listing = _Listing()
        if self.phase.is_list:
            self.problems.begin_listing()

    # Objects

    def _receive_event(self, event: WatchEvent, now: float) -> list[Event]:
        if event.type == "ERROR":
            return self._receive_error(read_error(event.object), now, Ending.BROKEN)
        if event.type not in _TYPES:
            if not self._has_reported_type:
                text = f"events of type {show(event.type)} are not understood, and ignored"
                self.problems.report(Problem("", self.resource.plural, "", text, Code.API_UNKNOWN_EVENT))
            self._has_reported_type = True
            return []
        self._doubts = 0
        self._version = event.version or self._version
        return self._events_of(event)

    def _events_of(self, event: WatchEvent) -> list[Event]:
        if event.type == "BOOKMARK":
            return []
        if event.type == "DELETED":
            key, value, found = parse_key(event.object, self.resource.kind), None, list[Problem]()
        else:
            key, value, found = self._parse(event.object)
        if found or not self.problems.is_idle:
            self.problems.record(key, found)
        if value is not None and not isinstance(value, Ignored):
            return [Put(value)]
        return [] if key is None else [Removed(self.resource.model, key, value)]

    def _parse(self, raw: msgspec.Raw) -> tuple[ObjectKey | str | None, ClusterObject | Ignored | None, list[Problem]]:
        """The key and value of an object, and its faults.

        The value is None if the object can't be read, the key if that can't be read.
        """
        found: list[Problem] = []
        value = parse_json(raw, "", found, kind=self.resource.kind)
        is_key_alone = value is None or isinstance(value, Ignored)
        key = parse_key(raw, self.resource.kind) if is_key_alone else key_of(value)  # type: ignore[arg-type]
        return key, value, found
