"""Bounds the Events that a node sends: series with counts, and token buckets.

Authors of Services decide how often something happens to them, and every node reports it.  So the Events of a node are
bounded in any case, in the way of client-go's recorder (tools/record, EventCorrelator):

* Occurrences of an object with the same reason and code form a series.  The first creates an Event, and each further
  raises its count.  A state that lasts counts once, however often it is reported.
* Each object has a token bucket, and the node has another.  Without a token a series waits and goes on counting, and
  the count by then is sent.  Namespaces take turns (model/fairness.py).
* A series ends an hour after it began, when kube-apiserver deletes the Event.

Time comes in as a value: seconds of a monotonic clock, and the wall clock's time.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from nftproxy.agent.reporting.occurrences import Occurrence
from nftproxy.model.codes import AnyCode
from nftproxy.model.fairness import SharedRoom, TokenBucket, TurnQueue
from nftproxy.model.objects import ObjectKey

BURST = 25
"""Events about an object in a row (client-go, tools/record: defaultSpamBurst)."""
REFILL = 300.0
"""Seconds until an object's next Event (client-go: defaultSpamQPS is 1/300)."""
NODE_BURST = 25
"""Events of this node in a row: as many as about an object."""
NODE_REFILL = 1.0
"""Seconds until the node's next Event.  client-go allows 5 a second, but 5,000 nodes may send the same Event."""
SERIES_ENDS_AFTER = 3600.0
"""Seconds after which a series ends: kube-apiserver deletes Events after an hour by default (--event-ttl)."""
MOST = 4096
"""Limit of series, and of objects with a bucket: beyond it the oldest of the namespace with the most are evicted
(client-go: maxLruCacheEntries)."""


class _Key(NamedTuple):
    """The key of a series."""

    subject: ObjectKey
    reason: str
    action: str
    code: AnyCode


class EventSeries(msgspec.Struct):
    """Occurrences of the same kind, and their Event.

    Args:
        occurrence: the first, which the Event describes.
        began: its wall-clock time, unique among all series.
        count: the number of occurrences.
        last: the wall-clock time of the last.
        is_created: whether the API has the Event.
        since: the monotonic time of the first.
        said: a hash of all notes of the last.
    """

    occurrence: Occurrence
    began: datetime.datetime
    count: int
    last: datetime.datetime
    is_created: bool = False
    since: float = 0.0
    said: int = 0


class EventCorrelator:
    """All series, with a queue of the series that have an Event to send."""

    def __init__(self) -> None:
        self.dropped = 0
        """Series that were evicted before they could be sent."""
        self._series: dict[_Key, EventSeries] = {}
        self._room = SharedRoom[_Key]()
        """The keys of all series."""
        self._due = TurnQueue[_Key]()
        self._buckets: dict[ObjectKey, TokenBucket] = {}
        self._bucket_room = SharedRoom[ObjectKey]()
        self._node = TokenBucket(NODE_BURST, NODE_REFILL)
        self._latest = datetime.datetime.min.replace(tzinfo=datetime.UTC)

    def observe(self, occurrences: Iterable[Occurrence], now: float, wall: datetime.datetime) -> None:
        """Add occurrences.  Occurrences of the same series count as a single occurrence with several notes."""
        reported: dict[_Key, dict[Occurrence, None]] = {}
        for each in occurrences:
            key = _Key(each.subject, each.reason, each.action, each.code)
            reported.setdefault(key, {})[each] = None
        for key, together in reported.items():
            self._count_in_series(key, list(together), now, wall)

    def _count_in_series(self, key: _Key, together: list[Occurrence], now: float, wall: datetime.datetime) -> None:
        said = hash(tuple(each.note for each in together))
        series = self._series.get(key)
        if series is None or now - series.since >= SERIES_ENDS_AFTER:
            if series is not None:
                self._room.remove(key.subject.namespace, key)
            self._make_room(key)
            # No two series begin at the same time, as the names of an object's Events have the time of their beginning
            self._latest = max(wall, self._latest + datetime.timedelta(microseconds=1))
            self._series[key] = EventSeries(_first_of(together), self._latest, 1, wall, since=now, said=said)
        elif series.said == said and together[0].lasts:
            return
        else:
            series.count, series.last, series.said = series.count + 1, wall, said
        self._due.add(key.subject.namespace, key)

    def _make_room(self, key: _Key) -> None:
        """Make room for a new series."""
        if (evicted := self._room.to_replace(key.subject.namespace, MOST)) is not None:
            namespace = evicted.subject.namespace
            self._room.remove(namespace, evicted)
            del self._series[evicted]
            self.dropped += self._due.discard(namespace, evicted)
        self._room.add(key.subject.namespace, key)

    def next(self, now: float) -> tuple[EventSeries | None, float | None]:
        """Return the series to send now, or the seconds until there may be a series (None if the queue is empty)."""
        if not self._due:
            return None, None
        pause = self._node.wait(now)
        if pause:
            return None, pause
        pauses = []
        for key in (each for namespace in self._due.names() for each in self._due.of(namespace)):
            bucket = self._bucket(key.subject)
            pause = bucket.wait(now)
            if not pause:
                bucket.spend(now)
                self._node.spend(now)
                self._due.take(key.subject.namespace, key)
                return self._series[key], None
            pauses.append(pause)
        return None, min(pauses)

    def _bucket(self, subject: ObjectKey) -> TokenBucket:
        if subject not in self._buckets:
            if (evicted := self._bucket_room.to_replace(subject.namespace, MOST)) is not None:
                self._bucket_room.remove(evicted.namespace, evicted)
                del self._buckets[evicted]
            self._bucket_room.add(subject.namespace, subject)
            self._buckets[subject] = TokenBucket(BURST, REFILL)
        return self._buckets[subject]


def _first_of(together: list[Occurrence]) -> Occurrence:
    """Return the first occurrence, with the number of the rest in its note."""
    first, *others = together
    return first._replace(note=f"{first.note} (and {len(others)} more)") if others else first
