"""The bounds on the number of Events."""

from __future__ import annotations

import datetime

import pytest

from nftproxy.agent.reporting.event_series import (
    BURST,
    MOST,
    NODE_BURST,
    NODE_REFILL,
    REFILL,
    SERIES_ENDS_AFTER,
    EventCorrelator,
    EventSeries,
)
from nftproxy.agent.reporting.occurrences import Occurrence
from nftproxy.model.codes import Code
from nftproxy.model.fairness import TokenBucket
from nftproxy.model.objects import ObjectKey

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, datetime.UTC)


def occurrence(note: str, name: str = "web", reason: str = "AddressConflict") -> Occurrence:
    """Something about a Service."""
    return Occurrence(ObjectKey("shop", name), reason, "Claim", note, Code.CONFLICT_TAKEN)


def observed(correlator: EventCorrelator, *notes: str, now: float = 0.0, name: str = "web") -> None:
    """Record occurrences that happen together."""
    correlator.observe([occurrence(note, name) for note in notes], now, NOW)


def sent(correlator: EventCorrelator, now: float = 0.0) -> list[EventSeries]:
    """All Events that may be sent at a moment."""
    found = []
    while (series := correlator.next(now)[0]) is not None:
        found.append(series)
    return found


def test_simultaneous_losses_are_one_event() -> None:
    """Two thousand ports that a Service doesn't get are a single Event, which counts the ports beside the first."""
    correlator = EventCorrelator()
    observed(correlator, *(f"port {number}" for number in range(2000)))
    (series,) = sent(correlator)
    assert (series.occurrence.note, series.count) == ("port 0 (and 1999 more)", 1)


def test_a_repeated_occurrence_is_counted() -> None:
    """The first Event stays, and its count goes up with each new note."""
    correlator = EventCorrelator()
    observed(correlator, "a")
    observed(correlator, "b")
    (series,) = sent(correlator)
    assert (series.occurrence.note, series.count) == ("a", 2)
    correlator.observe([occurrence("c")], 9.0, NOW + datetime.timedelta(seconds=9))
    assert sent(correlator) == [series]
    assert (series.count, series.last - series.began) == (3, datetime.timedelta(seconds=9))


def test_a_lasting_state_counts_once() -> None:
    """A state that is reported again word for word is sent once, and a new occurrence counts again."""
    correlator = EventCorrelator()
    state = [occurrence("a")._replace(lasts=True), occurrence("b")._replace(lasts=True)]
    correlator.observe(state, 0.0, NOW)
    (series,) = sent(correlator)
    correlator.observe(state, 1.0, NOW)
    assert (sent(correlator, 1.0), series.count) == ([], 1)
    correlator.observe(state[:1], 2.0, NOW)
    assert (sent(correlator, 2.0), series.count) == ([series], 2)
    observed(correlator, "once", name="api")
    observed(correlator, "once", name="api")
    assert [each.count for each in sent(correlator, 2.0)] == [2]


def test_another_reason_code_or_object_is_another_event() -> None:
    """A series has a single object, reason and code, so that its Event names the code of all its occurrences."""
    correlator = EventCorrelator()
    other = occurrence("a")._replace(code=Code.CONFLICT_PROTECTED)
    correlator.observe(
        [occurrence("a"), occurrence("a", "api"), occurrence("a", reason="RulesRefused"), other], 0.0, NOW
    )
    assert [series.count for series in sent(correlator)] == [1, 1, 1, 1]


def test_no_two_series_begin_at_once() -> None:
    """Series that are noted in one moment have moments of their own, as Events are named by them."""
    correlator = EventCorrelator()
    correlator.observe([occurrence("a", reason=str(number)) for number in range(5)], 0.0, NOW)
    assert len({series.began for series in sent(correlator)}) == 5


def test_an_object_has_a_bucket() -> None:
    """An object has 25 Events in a row and then an Event per five minutes, with the count of all occurrences."""
    correlator = EventCorrelator()
    times = []
    for number in range(1000):
        observed(correlator, str(number), now=number)
        times += [number for _ in sent(correlator, number)]
    assert times[:BURST] == list(range(BURST))
    assert times[BURST:] == [300, 600, 900]
    observed(correlator, "last", now=1200.0)
    (series,) = sent(correlator, 1200.0)
    assert series.count == 1001


def test_one_object_holds_up_no_other() -> None:
    """While a series waits for its object's bucket, series of other objects are sent."""
    correlator = EventCorrelator()
    for number in range(BURST + 1):
        observed(correlator, str(number), now=number * NODE_REFILL)
        sent(correlator, number * NODE_REFILL)
    observed(correlator, "more", now=100.0)
    observed(correlator, "a", now=100.0, name="api")
    assert [series.occurrence.subject.name for series in sent(correlator, 100.0)] == ["api"]
    pause = correlator.next(100.0)[1]
    assert pause == pytest.approx(REFILL - 100.0)


def test_the_first_token_is_waited_for() -> None:
    """If several objects wait for their buckets, the earliest token ends the pause."""
    correlator = EventCorrelator()
    for name, start in (("web", 0.0), ("api", 100.0)):
        for number in range(BURST + 1):
            observed(correlator, str(number), now=start + number, name=name)
            sent(correlator, start + number)
    due, pause = correlator.next(200.0)
    assert due is None
    assert pause == pytest.approx(REFILL - 200.0)


def test_a_node_has_a_bucket() -> None:
    """All objects together have 25 Events in a row, and then an Event per second."""
    correlator = EventCorrelator()
    for number in range(100):
        observed(correlator, "a", name=f"s{number}")
    assert len(sent(correlator)) == NODE_BURST
    assert correlator.next(0.0) == (None, NODE_REFILL)
    assert len(sent(correlator, 10.0)) == 10


def test_a_series_ends() -> None:
    """An hour after it began the API has dropped the Event, so the next occurrence is a new Event."""
    correlator = EventCorrelator()
    observed(correlator, "a")
    (first,) = sent(correlator)
    observed(correlator, "a", now=SERIES_ENDS_AFTER - 1)
    assert sent(correlator, SERIES_ENDS_AFTER - 1) == [first]
    observed(correlator, "a", now=SERIES_ENDS_AFTER)
    (second,) = sent(correlator, SERIES_ENDS_AFTER)
    assert (second.count, second.began > first.began) == (1, True)


def test_memory_is_bounded() -> None:
    """If there are too many series the oldest are dropped, and unsent series are counted."""
    correlator = EventCorrelator()
    for number in range(MOST + 10):
        observed(correlator, "a", name=f"s{number}")
    assert correlator.dropped == 10
    (first, *_) = sent(correlator)
    assert first.occurrence.subject.name == "s10"
    assert len(correlator._series) == MOST
    for number in range(2 * MOST):
        observed(correlator, "a", name=f"t{number}", now=(number + 1) * NODE_REFILL)
        correlator.next((number + 1) * NODE_REFILL)
    assert len(correlator._buckets) == MOST


def about(service: ObjectKey) -> Occurrence:
    """Something about a Service of any namespace."""
    return Occurrence(service, "AddressConflict", "Claim", "a", Code.CONFLICT_TAKEN)


def test_namespaces_take_turns() -> None:
    """Beside a tenant with thousands of Events, another tenant's is the next."""
    correlator = EventCorrelator()
    correlator.observe([about(ObjectKey("evil", f"s{number}")) for number in range(1000)], 0.0, NOW)
    sent(correlator)
    correlator.observe([about(ObjectKey("shop", "web"))], 1.0, NOW)
    found = [each.occurrence.subject for each in (*sent(correlator, 1.0), *sent(correlator, 2.0))]
    assert ObjectKey("shop", "web") in found


def test_only_the_namespace_with_the_most_loses_series() -> None:
    """A tenant with more series than there is room for drops no other tenant's Event."""
    correlator = EventCorrelator()
    correlator.observe([about(ObjectKey("shop", "web"))], 0.0, NOW)
    correlator.observe([about(ObjectKey("evil", f"s{number}")) for number in range(2 * MOST)], 0.0, NOW)
    assert sent(correlator)[0].occurrence.subject == ObjectKey("shop", "web")
    assert correlator.dropped == MOST + 1


def test_a_bucket_is_never_more_than_full() -> None:
    """However long nothing was taken, no more than the burst can be taken at once."""
    bucket = TokenBucket(2, 10.0)
    assert bucket.wait(10_000.0) == 0.0
    for _ in range(2):
        assert bucket.wait(10_000.0) == 0.0
        bucket.spend(10_000.0)
    assert bucket.wait(10_000.0) == 10.0
    assert bucket.wait(10_004.0) == pytest.approx(6.0)


def test_nothing_to_send_takes_no_time() -> None:
    """While nothing waits there is nothing to wait for."""
    assert EventCorrelator().next(0.0) == (None, None)
