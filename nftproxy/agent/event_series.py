"""How often Events may be sent: one for each object, reason and code, with a count, and as often as token buckets give.

Who may write Services decides how often something happens to them, and every node says so; so what a node sends is
bounded, whatever happens: client-go's recorder does it in the same way (tools/record, EventCorrelator).

* What happens to an object for the same reason and code is one series: the first time an Event is created, later its
  count goes up.  A state that lasts counts once, however often it is reported.
* For each object there is a token bucket, and one for the node.  While there is no token a series waits, and goes on
  counting; what is sent then is the count by then.
* A series is over an hour after it began, as kube-apiserver forgets Events then.

Time comes in as a value: seconds of any clock that doesn't jump, and what the wall says.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from nftproxy.model.codes import Code

BURST = 25
"""Events about one object in a row (client-go, tools/record: defaultSpamBurst)."""
REFILL = 300.0
"""Seconds until there may be another one (client-go: defaultSpamQPS is 1/300)."""
NODE_BURST = 25
"""Events of this node in a row: as many as about one object."""
NODE_REFILL = 1.0
"""Seconds until there may be another one.  client-go allows 5 a second, but 5,000 nodes may say the same."""
SILENCE = 3600.0
"""Seconds after which a series is over: kube-apiserver forgets Events after an hour by default (--event-ttl)."""
MOST = 4096
"""Series, and objects with a bucket, that are remembered (client-go: maxLruCacheEntries); the oldest are forgotten."""


class Happening(NamedTuple):
    """What there is to report, by its code: about a Service, or with a namespace of "" about the Node of that name.

    What `lasts` is reported again and again, and counts once as long as it is the same.
    """

    namespace: str
    name: str
    reason: str
    action: str
    note: str
    code: Code
    is_warning: bool = True
    lasts: bool = False


class Subject(NamedTuple):
    """The object that an Event is about; the namespace of a Node is ""."""

    namespace: str
    name: str


class _Key(NamedTuple):
    """What one series is about."""

    subject: Subject
    reason: str
    action: str
    code: Code


class Series(msgspec.Struct):
    """Something that happens to an object again and again.

    Args:
        happening: the first time, which the Event describes.
        began: when that was, by the wall; another moment than that of any other series.
        count: how often it has happened.
        last: when it did the last time, by the wall.
        is_created: whether the API has the Event.
        since: when it began, by the clock that doesn't jump.
        said: a hash of all notes of the last time.
    """

    happening: Happening
    began: datetime.datetime
    count: int
    last: datetime.datetime
    is_created: bool = False
    since: float = 0.0
    said: int = 0


class TokenBucket:
    """So many at once, and then one each time that so many seconds have passed."""

    def __init__(self, burst: int, refill: float) -> None:
        self._refill = refill
        self._spare = (burst - 1) * refill
        self._full_at = 0.0
        """When it will be full: of a time, unlike of parts of tokens, nothing gets lost by rounding."""

    def wait(self, now: float) -> float:
        """Seconds until there is a token; 0 if there is one."""
        return max(0.0, self._full_at - self._spare - now)

    def take(self, now: float) -> None:
        """Take a token."""
        self._full_at = max(self._full_at, now) + self._refill


class Correlator:
    """All series, and which of them have something to send."""

    def __init__(self) -> None:
        self.dropped = 0
        """Series that were forgotten before they could be sent."""
        self._series: dict[_Key, Series] = {}
        self._due: dict[_Key, None] = {}
        self._buckets: dict[Subject, TokenBucket] = {}
        self._node = TokenBucket(NODE_BURST, NODE_REFILL)
        self._latest = datetime.datetime.min.replace(tzinfo=datetime.UTC)

    def observe(self, happenings: Iterable[Happening], now: float, wall: datetime.datetime) -> None:
        """Take note of what has happened; what has the same reason and object is one thing with several notes."""
        reported: dict[_Key, dict[Happening, None]] = {}
        for each in happenings:
            key = _Key(Subject(each.namespace, each.name), each.reason, each.action, each.code)
            reported.setdefault(key, {})[each] = None
        for key, together in reported.items():
            self._note(key, list(together), now, wall)

    def _note(self, key: _Key, together: list[Happening], now: float, wall: datetime.datetime) -> None:
        said = hash(tuple(each.note for each in together))
        series = self._series.get(key)
        if series is None or now - series.since >= SILENCE:
            self._series.pop(key, None)
            self._forget_oldest()
            # No two begin at once, as the Events of one object are named by when they did
            self._latest = max(wall, self._latest + datetime.timedelta(microseconds=1))
            self._series[key] = Series(_first_of(together), self._latest, 1, wall, since=now, said=said)
        elif series.said == said and together[0].lasts:
            return
        else:
            series.count, series.last, series.said = series.count + 1, wall, said
        self._due[key] = None

    def _forget_oldest(self) -> None:
        while len(self._series) >= MOST:
            oldest = next(iter(self._series))
            del self._series[oldest]
            if oldest in self._due:
                del self._due[oldest]
                self.dropped += 1

    def next(self, now: float) -> tuple[Series | None, float | None]:
        """The series to send now, and if there is none, the seconds until there may be one; None if none waits."""
        if not self._due:
            return None, None
        pause = self._node.wait(now)
        if pause:
            return None, pause
        pauses = []
        for key in self._due:
            bucket = self._bucket(key.subject)
            pause = bucket.wait(now)
            if not pause:
                bucket.take(now)
                self._node.take(now)
                del self._due[key]
                return self._series[key], None
            pauses.append(pause)
        return None, min(pauses)

    def _bucket(self, subject: Subject) -> TokenBucket:
        if subject not in self._buckets:
            if len(self._buckets) >= MOST:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[subject] = TokenBucket(BURST, REFILL)
        return self._buckets[subject]


def _first_of(together: list[Happening]) -> Happening:
    """One of several, with a note of how many more there are."""
    first, *others = together
    return first._replace(note=f"{first.note} (and {len(others)} more)") if others else first
