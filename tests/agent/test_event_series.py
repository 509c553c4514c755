"""How many Events are sent, however much happens."""

from __future__ import annotations

import datetime

import pytest

from nftproxy.agent.event_series import (
    BURST,
    MOST,
    NODE_BURST,
    NODE_REFILL,
    REFILL,
    SILENCE,
    Correlator,
    Happening,
    Series,
    TokenBucket,
)
from nftproxy.model.codes import Code

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, datetime.UTC)


def happening(note: str, name: str = "web", reason: str = "AddressConflict") -> Happening:
    """Something about a Service."""
    return Happening("shop", name, reason, "Claim", note, Code.CONFLICT_TAKEN)


def observed(correlator: Correlator, *notes: str, now: float = 0.0, name: str = "web") -> None:
    """Have these happen together."""
    correlator.observe([happening(note, name) for note in notes], now, NOW)


def sent(correlator: Correlator, now: float = 0.0) -> list[Series]:
    """All that may be sent at a moment."""
    found = []
    while (series := correlator.next(now)[0]) is not None:
        found.append(series)
    return found


def test_what_happens_together_is_one_event() -> None:
    """Two thousand ports that one Service doesn't get are one Event, which says how many there are beside the first."""
    correlator = Correlator()
    observed(correlator, *(f"port {number}" for number in range(2000)))
    (series,) = sent(correlator)
    assert (series.happening.note, series.count) == ("port 0 (and 1999 more)", 1)


def test_what_happens_again_is_counted() -> None:
    """The Event stays the first one; its count goes up with each time that something else is said."""
    correlator = Correlator()
    observed(correlator, "a")
    observed(correlator, "b")
    (series,) = sent(correlator)
    assert (series.happening.note, series.count) == ("a", 2)
    correlator.observe([happening("c")], 9.0, NOW + datetime.timedelta(seconds=9))
    assert sent(correlator) == [series]
    assert (series.count, series.last - series.began) == (3, datetime.timedelta(seconds=9))


def test_what_lasts_counts_once() -> None:
    """A state that is reported again and again, word for word, is sent once; what happens again counts again."""
    correlator = Correlator()
    state = [happening("a")._replace(lasts=True), happening("b")._replace(lasts=True)]
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
    """A series is about one object, one reason and one code, so that its Event names the code of all that it counts."""
    correlator = Correlator()
    other = happening("a")._replace(code=Code.CONFLICT_PROTECTED)
    correlator.observe([happening("a"), happening("a", "api"), happening("a", reason="RulesRefused"), other], 0.0, NOW)
    assert [series.count for series in sent(correlator)] == [1, 1, 1, 1]


def test_no_two_series_begin_at_once() -> None:
    """Series that are noted in one moment have moments of their own, as Events are named by them."""
    correlator = Correlator()
    correlator.observe([happening("a", reason=str(number)) for number in range(5)], 0.0, NOW)
    assert len({series.began for series in sent(correlator)}) == 5


def test_an_object_has_a_bucket() -> None:
    """Of one object 25 Events are sent in a row and then one in five minutes, whose count has all that happened."""
    correlator = Correlator()
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
    """While a series waits for its object's bucket, those of others go on."""
    correlator = Correlator()
    for number in range(BURST + 1):
        observed(correlator, str(number), now=number * NODE_REFILL)
        sent(correlator, number * NODE_REFILL)
    observed(correlator, "more", now=100.0)
    observed(correlator, "a", now=100.0, name="api")
    assert [series.happening.name for series in sent(correlator, 100.0)] == ["api"]
    pause = correlator.next(100.0)[1]
    assert pause == pytest.approx(REFILL - 100.0)


def test_the_first_token_is_waited_for() -> None:
    """Where several objects wait for their buckets, it is the one that comes first that ends the pause."""
    correlator = Correlator()
    for name, start in (("web", 0.0), ("api", 100.0)):
        for number in range(BURST + 1):
            observed(correlator, str(number), now=start + number, name=name)
            sent(correlator, start + number)
    due, pause = correlator.next(200.0)
    assert due is None
    assert pause == pytest.approx(REFILL - 200.0)


def test_a_node_has_a_bucket() -> None:
    """Of any number of objects 25 Events are sent in a row, and then one each second."""
    correlator = Correlator()
    for number in range(100):
        observed(correlator, "a", name=f"s{number}")
    assert len(sent(correlator)) == NODE_BURST
    assert correlator.next(0.0) == (None, NODE_REFILL)
    assert len(sent(correlator, 10.0)) == 10


def test_a_series_ends() -> None:
    """An hour after it began the API has forgotten the Event, so what is said then is a new one."""
    correlator = Correlator()
    observed(correlator, "a")
    (first,) = sent(correlator)
    observed(correlator, "a", now=SILENCE - 1)
    assert sent(correlator, SILENCE - 1) == [first]
    observed(correlator, "a", now=SILENCE)
    (second,) = sent(correlator, SILENCE)
    assert (second.count, second.began > first.began) == (1, True)


def test_memory_is_bounded() -> None:
    """Of too many series the oldest are forgotten, and those that were not yet sent are counted."""
    correlator = Correlator()
    for number in range(MOST + 10):
        observed(correlator, "a", name=f"s{number}")
    assert correlator.dropped == 10
    (first, *_) = sent(correlator)
    assert first.happening.name == "s10"
    assert len(correlator._series) == MOST
    for number in range(2 * MOST):
        observed(correlator, "a", name=f"t{number}", now=(number + 1) * NODE_REFILL)
        correlator.next((number + 1) * NODE_REFILL)
    assert len(correlator._buckets) == MOST


def test_a_bucket_is_never_more_than_full() -> None:
    """However long nothing was taken, no more than the burst can be taken at once."""
    bucket = TokenBucket(2, 10.0)
    assert bucket.wait(10_000.0) == 0.0
    for _ in range(2):
        assert bucket.wait(10_000.0) == 0.0
        bucket.take(10_000.0)
    assert bucket.wait(10_000.0) == 10.0
    assert bucket.wait(10_004.0) == pytest.approx(6.0)


def test_nothing_to_send_takes_no_time() -> None:
    """While nothing waits there is nothing to wait for."""
    assert Correlator().next(0.0) == (None, None)
