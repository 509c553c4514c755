"""Nobody who asks for less than an equal share loses anything, and no sum exceeds its bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypothesis import example, given
from hypothesis import strategies as st

from nftproxy.model.fairness import (
    Debts,
    Holdings,
    SharedRate,
    SharedRoom,
    TokenBucket,
    TurnQueue,
    divide,
    first_in_turn,
    turn_numbers,
)

NAMES = st.sampled_from(["a", "b", "c", "d"])
ASKED = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 1000), max_size=12)


def largest_first(asked: dict[str, int]) -> list[tuple[int, str]]:
    """The demands, the largest first."""
    return sorted(((demand, name) for name, demand in asked.items()), reverse=True)


@given(ASKED, st.integers(0, 3000))
def test_room_is_divided_by_max_min_fairness(asked: dict[str, int], total: int) -> None:
    """The sum stays within the bound, an equal share is granted to all, and nearly nothing is left over."""
    share, beyond = divide(largest_first(asked), sum(asked.values()), total)
    granted = {name: share if name in beyond else demand for name, demand in asked.items()}
    assert sum(granted.values()) <= total or (not beyond and sum(asked.values()) <= total)
    assert beyond == (
        {name for name, demand in asked.items() if demand > share} if sum(asked.values()) > total else set()
    )
    assert all(granted[name] == demand for name, demand in asked.items() if demand * len(asked) <= total)
    assert not beyond or total - sum(granted.values()) < len(beyond)


@given(ASKED, st.integers(0, 3000))
def test_only_demands_beyond_the_share_are_read(asked: dict[str, int], total: int) -> None:
    """The work is in proportion to the namespaces that ask for more than their share."""
    read = 0

    def reading() -> Iterator[tuple[int, str]]:
        nonlocal read
        for each in largest_first(asked):
            read += 1
            yield each

    _, beyond = divide(reading(), sum(asked.values()), total)
    assert read <= len(beyond) + 1


USES = st.lists(st.tuples(NAMES, st.floats(0, 2), st.floats(0, 3)), max_size=40)


@given(USES)
def test_debts_are_paid_off_at_an_equal_pace(uses: list[tuple[str, float, float]]) -> None:
    """Debts are those of a simulation in which all debtors pay the same, and no more than their share."""
    debts, now, expected = Debts(own=0.25, together=0.5, longest=1e9), 0.0, dict[str, float]()
    for name, seconds, pause in uses:
        debts.charge(name, seconds, now)
        expected[name] = expected.get(name, 0.0) + seconds
        left = pause
        while left > 1e-12 and (owing := [each for each, debt in expected.items() if debt > 1e-12]):
            pace = min(0.25, 0.5 / len(owing))
            step = min(left, min(expected[each] for each in owing) / pace)
            expected |= {each: expected[each] - step * pace for each in owing}
            left -= step
        now += pause
        for each, debt in expected.items():
            assert abs(debts.of(each, now) - max(0.0, debt)) < 1e-6


@given(USES)
def test_a_namespace_that_uses_less_than_its_share_soon_owes_nothing(uses: list[tuple[str, float, float]]) -> None:
    """Beside any others, a namespace that uses an eighth of each second never owes more than that eighth."""
    debts, now = Debts(own=0.25, together=0.5, longest=60.0), 0.0
    for name, seconds, _ in uses:  # four namespaces at most: each pays an eighth of a second in a second, or more
        debts.charge("quiet" if name == "a" else name, 0.125 if name == "a" else seconds, now)
        now += name == "a"
        assert debts.of("quiet", now) <= 0.125 + 1e-9


def test_debts_are_bounded() -> None:
    """However much a namespace uses, its debt is paid off in a bounded time, and forgotten."""
    debts = Debts(own=0.25, together=0.5, longest=60.0)
    for _ in range(1_000):
        debts.charge("a", 1e6, 5.0)
    assert debts.of("a", 5.0) == 60.0
    assert debts.of("a", 5.0 + 239.0) > 0.0
    assert debts.of("a", 5.0 + 241.0) == 0.0
    assert len(debts) == len(debts._first) == 0


@given(USES)
def test_the_total_is_the_sum_of_all_debts(uses: list[tuple[str, float, float]]) -> None:
    """The total is that of all names, at any time."""
    debts, now = Debts(own=0.25, together=0.5, longest=60.0), 0.0
    for name, seconds, pause in uses:
        debts.charge(name, seconds, now)
        now += pause
        assert abs(debts.total(now) - sum(debts.of(each, now) for each in "abcd")) < 1e-6


@given(st.integers(1, 9), st.lists(st.floats(0, 5), max_size=60))
def test_a_bucket_bounds_every_stretch_of_time(burst: int, pauses: list[float]) -> None:
    """In any stretch of time there are at most `burst` tokens, and a token for each `refill`."""
    bucket, now, taken = TokenBucket(burst, 2.0), 0.0, list[float]()
    for pause in pauses:
        now += pause
        if not bucket.wait(now):
            bucket.spend(now)
            taken.append(now)
    for index, begin in enumerate(taken):
        for count, end in enumerate(taken[index:], 1):
            assert count <= burst + (end - begin) / 2.0 + 1e-6


@example([("a", 0.8114758085547207), ("b", 0.0), ("b", 0.0), ("b", 0.0)])
@given(st.lists(st.tuples(NAMES, st.floats(0, 1)), max_size=80))
def test_a_shared_rate_refuses_those_who_ask_for_more(asked: list[tuple[str, float]]) -> None:
    """A name with at most its burst is never refused if the common bucket has room, and each refusal is counted."""
    rate, now = SharedRate((3, 10.0), (100, 1.0), most=10), 0.0
    counts, refused = Counter[str](), Counter[str]()
    for name, pause in asked:
        counts[name] += 1
        is_admitted = rate.admit(name, now)
        assert is_admitted or counts[name] > 3
        refused[name] += not is_admitted
        now += pause
        assert counts[name] - refused[name] <= 3 + now / 10.0 + 1
    assert dict(rate.pop_refused()) == dict(+refused)
    assert rate.pop_refused() == []


@given(st.lists(NAMES, max_size=60))
def test_a_name_with_fewer_items_than_an_equal_share_loses_none(added: list[str]) -> None:
    """The number of items never exceeds the bound, and a name has all of its items up to an equal share."""
    room, held, asked, most = SharedRoom[tuple[str, int]](), dict[tuple[str, int], None](), Counter[str](), 10
    for number, name in enumerate(added):
        asked[name] += 1
        if (evicted := room.to_evict(name, most)) is not None:
            room.remove(evicted[0], evicted)
            del held[evicted]
        if len(room) < most:
            room.add(name, (name, number))
            held[name, number] = None
        assert len(room) == len(held) <= most
        counts = Counter(owner for owner, _ in held)
        assert all(room.count(each) == counts[each] >= min(asked[each], most // len(asked)) for each in asked)


@given(st.lists(NAMES, max_size=60))
def test_a_new_item_replaces_the_oldest_of_the_name_with_the_most(added: list[str]) -> None:
    """Each new item comes in, the number of items never exceeds the bound, and a name has an equal share's latest."""
    room, held, asked, most = SharedRoom[tuple[str, int]](), dict[tuple[str, int], None](), Counter[str](), 10
    for number, name in enumerate(added):
        asked[name] += 1
        if (evicted := room.to_replace(name, most)) is not None:
            room.remove(evicted[0], evicted)
            del held[evicted]
        room.add(name, (name, number))
        held[name, number] = None
        assert len(room) == len(held) <= most
        assert sorted(room) == sorted(held)
        counts = Counter(owner for owner, _ in held)
        assert all(room.count(each) == counts[each] >= min(asked[each], most // len(asked)) for each in asked)
        own = [index for index, owner in enumerate(added[: number + 1]) if owner == name]
        assert [index for owner, index in held if owner == name] == own[-counts[name] :]


@given(st.lists(st.tuples(NAMES, st.integers(-3, 5)), max_size=60))
def test_holdings_know_the_name_with_the_most(changes: list[tuple[str, int]]) -> None:
    """The counts are sums, and no name has more than the largest.  The memory is in proportion to the names."""
    held, counts = Holdings(), Counter[str]()
    for name, by in changes:
        by = max(by, -counts[name])
        held.add(name, by)
        counts[name] += by
        assert held.total == counts.total()
        assert held.count(held.largest()) == max(counts.values())
        assert len(held) == sum(map(bool, counts.values()))
        assert len(held._largest_first) <= 2 * len(held) + 16


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=300), st.integers(0, 40))
def test_items_that_stay_leave_room_for_a_further_name(asked: list[tuple[str, bool]], most: int) -> None:
    """The sum never exceeds the bound, and a name leaves as much room as it takes."""
    held = Holdings()
    for name, is_new in asked:
        if is_new and held.room(name, most) > 0:
            held.add(name)
            assert most - held.total >= held.count(name) - 1
        elif not is_new and held.count(name):
            held.add(name, -1)
        assert held.total <= most


@given(st.integers(1, 8), st.integers(0, 100))
def test_greedy_names_that_take_turns_leave_a_share_for_a_further_name(count: int, most: int) -> None:
    """Each has an equal share, as if there were a further name."""
    held, names = Holdings(), [str(number) for number in range(count)]
    while some := [name for name in names if held.room(name, most) > 0]:
        for name in some:
            if held.room(name, most) > 0:
                held.add(name)
    assert min(map(held.count, names)) >= most // (count + 1)
    assert max(map(held.count, names)) - min(map(held.count, names)) <= 1


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=60))
def test_names_take_turns(story: list[tuple[str, bool]]) -> None:
    """While a name waits, each other name has a single turn at most, and the items of a name come in their order."""
    queue, waiting, turns = TurnQueue[int](), dict[int, str](), dict[str, set[str]]()
    for number, (name, comes) in enumerate(story):
        if comes:
            queue.add(name, number)
            waiting[number] = name
            turns.setdefault(name, set())
        elif queue:
            first = next(iter(queue.names()))
            item = next(iter(queue.of(first)))
            queue.take(first, item)
            assert item == min(each for each, owner in waiting.items() if owner == first)
            assert waiting.pop(item) == first
            turns.pop(first)
            assert all(first not in had for had in turns.values())
            for had in turns.values():
                had.add(first)
            if first in waiting.values():
                turns[first] = set()
        assert sorted(waiting) == sorted(each for owner in queue.names() for each in queue.of(owner))
    for item, name in waiting.items():
        assert queue.discard(name, item)
        assert not queue.discard(name, item)
    assert not queue


@given(st.lists(NAMES, max_size=40))
def test_turn_numbers_count_the_earlier_items_of_a_name(names: list[str]) -> None:
    """Sorted by their numbers, the first items of all names come before the second of any, each in its order."""
    items = list(enumerate(names))
    numbered = list(turn_numbers(items, lambda each: each[1]))
    assert [item for _, item in numbered] == items
    assert [turn for turn, _ in numbered] == [names[:index].count(name) for index, name in items]


@given(st.lists(NAMES, min_size=1, max_size=40), st.integers(1, 12))
def test_the_first_in_turn_are_of_as_many_names_as_may_be(names: list[str], most: int) -> None:
    """A name with at most an equal share has all of its items, and no name has two more than another that has more."""
    items = list(enumerate(names))
    first = first_in_turn(items, lambda each: each[1], most)
    counts = Counter(name for _, name in first)
    assert len(first) == min(most, len(items))
    for name in set(names):
        own = [each for each in items if each[1] == name]
        assert [each for each in first if each[1] == name] == own[: counts[name]]
        assert counts[name] >= min(len(own), most // len(set(names)))
        assert counts[name] == len(own) or counts[name] >= max(counts.values()) - 1


def test_a_quiet_name_is_admitted_beside_names_that_take_all() -> None:
    """Ten names ask a hundred times a second, and a name that asks for less than an equal share is never refused."""
    rate = SharedRate((10, 1.0), (100, 0.25), most=100)  # four a second, so 4/11 for each
    for tick in range(100 * 60):
        for name in range(10):
            rate.admit(f"noisy-{name}", tick / 100)
        if tick % 300 == 299:
            assert rate.admit("quiet", tick / 100)
    assert "quiet" not in dict(rate.pop_refused())


@given(st.lists(st.tuples(NAMES, st.floats(0, 0.5)), max_size=200))
def test_a_shared_rate_bounds_the_sum(asked: list[tuple[str, float]]) -> None:
    """In any stretch of time all names together get no more than the common burst, and a token for each refill."""
    rate, now, times = SharedRate((4, 2.0), (6, 1.0), most=10), 0.0, list[float]()
    for name, pause in asked:
        now += pause
        if rate.admit(name, now):
            times.append(now)
    for index, begin in enumerate(times):
        for count, end in enumerate(times[index:], 1):
            assert count <= 6 + (end - begin) + 1e-6


def test_all_names_together_have_a_bound() -> None:
    """A thousand names get no more than the common bucket has, nor more memory than for `most` names."""
    rate = SharedRate((3, 10.0), (20, 1.0), most=100)
    assert sum(rate.admit(str(number), 0.0) for number in range(1000)) == 20
    assert len(rate.pop_refused()) == 100
    assert sum(rate.admit(str(number), 1e6) for number in range(1000)) == 20, "paid-off names are forgotten"
