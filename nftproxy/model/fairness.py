"""How namespaces share a bounded thing: room, processor time, places in a queue, or lines of a log.

Tenants choose how much they ask for, so each bound is divided between namespaces:

* **Room** is divided by max-min fairness (`divide`).  A namespace that asks for at most an equal share gets all of its
  demand, and the rest is divided equally between the others.
* **Items that can be evicted** are admitted up to a bound.  Beyond it the namespace with the most items makes room for
  any that has fewer (`SharedRoom`).
* **Items that can't be evicted** follow dynamic thresholds (`Holdings.room`): the fuller it is, the fewer items a
  namespace may have.
* **A queue** serves namespaces in turn (`TurnQueue`, `first_in_turn`, and `turn_numbers` where the order depends on
  more).
* **Time** that a namespace has used counts as a debt, which time pays off (`Debts`).  The namespace with the least debt
  comes first, and a namespace that uses less than an equal share soon owes nothing.
* **A rate** is a token bucket (`TokenBucket`).  `SharedRate` divides a rate between namespaces: debts with dynamic
  thresholds.  `LineBudget` is such a rate of lines of the log.

The invariants, which tests/model/test_fairness.py checks: a namespace that asks for less than an equal share loses
nothing, the sum never exceeds the bound, and the work is in proportion to the namespaces that ask for more.  By dynamic
thresholds an equal share is that of the namespaces that ask for more, and a further one.  Memory is bounded.  Time
comes in as a value, in seconds of a clock that never goes back.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush, nsmallest
from typing import Generic, TypeVar

LINES_OF_A_NAMESPACE, LINES_OF_ALL = (100, 1.0), (400, 0.25)
"""Lines of the log for a namespace, and for all, that are written at once, and the seconds until the next.

The log of a node keeps 10 MiB by default (the kubelet's containerLogMaxSize), some 50,000 lines: three hours of these.
"""

MOST_NAMESPACES = 1024
"""Namespaces whose lines are counted at a time."""

NOTE_EVERY = 10.0
"""Least seconds between two lines that count the lines left out."""

Name = TypeVar("Name", bound="str | tuple[str, ...]")
Item = TypeVar("Item", bound=Hashable)


def divide(largest_first: Iterable[tuple[int, Name]], asked: int, total: int) -> tuple[int, set[Name]]:
    """Return the most that each may have, and the names that ask for more, none if there is enough for all.

    Args:
        largest_first: the demands, the largest first.  Only the demands beyond the share, and one more, are read.
        asked: the sum of all demands.
        total: the bound.
    """
    left, share, beyond = total - asked, total, set[Name]()
    for demand, name in largest_first:
        more = (left + demand) // (len(beyond) + 1)
        if demand <= more:
            break
        left += demand
        share = more
        beyond.add(name)
    return share, beyond


class Holdings:
    """The number of items of each name."""

    def __init__(self) -> None:
        self.total = 0
        """The number of items of all names."""
        self._counts: dict[str, int] = {}
        self._largest_first = list[tuple[int, int, str]]()
        """A heap of the counts, below zero, each with the number of the change and the name.  Some are out of date."""
        self._changes = 0

    def __len__(self) -> int:
        """Return the number of names that have items."""
        return len(self._counts)

    def count(self, name: str) -> int:
        """Return the number of items of a name."""
        return self._counts.get(name, 0)

    def add(self, name: str, by: int = 1) -> None:
        """Add a number of items of a name, or remove them if the number is negative."""
        count = self._counts.pop(name, 0) + by
        self.total += by
        if count:
            self._counts[name] = count
            self._changes += 1
            heappush(self._largest_first, (-count, self._changes, name))
        if len(self._largest_first) > 2 * len(self._counts) + 16:
            self._largest_first = [(-known, turn, each) for turn, (each, known) in enumerate(self._counts.items())]
            heapify(self._largest_first)

    def largest(self) -> str:
        """Return the name with the most items, the one that has had as many for longest, or "" if there are none."""
        while self._largest_first:
            count, _, name = self._largest_first[0]
            if self._counts.get(name) == -count:
                return name
            heappop(self._largest_first)
        return ""

    def room(self, name: str, most: int) -> int:
        """Return how many further items a name may have, of items that nobody can evict.

        A name leaves as much room as it has items (dynamic thresholds, Choudhury and Hahne 1998).  So a name alone gets
        half, and beside any number of others there is room for a further one.  A name that comes late gets less, until
        items of the others end.
        """
        return most - self.total - self.count(name)


class SharedRoom(Generic[Item]):
    """The items of each name, where the number of all items is bounded.

    A name with fewer items than an equal share is never refused, and loses none.
    """

    def __init__(self) -> None:
        self._of: dict[str, dict[Item, None]] = {}
        """The items of each name, the latest at the end."""
        self._held = Holdings()

    def __len__(self) -> int:
        """Return the number of items of all names."""
        return self._held.total

    def __iter__(self) -> Iterator[Item]:
        """Yield all items, name by name."""
        return itertools.chain.from_iterable(self._of.values())

    def count(self, name: str) -> int:
        """Return the number of items of a name."""
        return self._held.count(name)

    def to_evict(self, name: str, most: int) -> Item | None:
        """Return the item whose room a new item of `name` takes, None if there is room, or `name` has its share.

        It is the latest of the name with the most items.
        """
        if len(self) < most:
            return None
        largest = self._held.largest()
        if self.count(largest) <= self.count(name) + 1:
            return None
        return next(reversed(self._of[largest]))

    def to_replace(self, name: str, most: int) -> Item | None:
        """Return the item whose room a new item of `name` takes, None if there is room: new items always come in.

        It is the oldest of the name with the most items, which is `name` if none has more.
        """
        if len(self) < most:
            return None
        largest = self._held.largest()
        return self.oldest(name if self.count(name) == self.count(largest) else largest)

    def oldest(self, name: str) -> Item:
        """Return the oldest item of a name that has some."""
        return next(iter(self._of[name]))

    def add(self, name: str, item: Item) -> None:
        """Add an item that isn't there yet."""
        self._of.setdefault(name, {})[item] = None
        self._held.add(name)

    def remove(self, name: str, item: Item) -> None:
        """Remove an item."""
        del self._of[name][item]
        if not self._of[name]:
            del self._of[name]
        self._held.add(name, -1)


class TurnQueue(Generic[Item]):
    """Items that wait.  Names take turns, and the items of a name come in their order."""

    def __init__(self) -> None:
        self._of: dict[str, dict[Item, None]] = {}
        """The items of each name.  The first name has the next turn."""

    def __bool__(self) -> bool:
        """Return whether any item waits."""
        return bool(self._of)

    def names(self) -> Iterable[str]:
        """Return the names in the order of their turns."""
        return self._of

    def of(self, name: str) -> Iterable[Item]:
        """Return the items of a name in their order."""
        return self._of.get(name, ())

    def add(self, name: str, item: Item) -> None:
        """Add an item, unless it is there.  A new name comes last."""
        self._of.setdefault(name, {})[item] = None

    def discard(self, name: str, item: Item) -> bool:
        """Remove an item that needs no turn any more, and return whether it was there."""
        items = self._of.get(name, {})
        if item not in items:
            return False
        del items[item]
        if not items:
            del self._of[name]
        return True

    def take(self, name: str, item: Item) -> None:
        """Remove an item that has its turn.  Its name comes last from now on."""
        items = self._of.pop(name)
        del items[item]
        if items:
            self._of[name] = items

    def clear(self) -> None:
        """Remove all items."""
        self._of.clear()


def turn_numbers(items: Iterable[Item], name_of: Callable[[Item], str]) -> Iterator[tuple[int, Item]]:
    """Yield each item with the number of its name's earlier items.

    In the order of these numbers names take turns: the first item of each comes before the second of any.
    """
    before = Counter[str]()
    for item in items:
        name = name_of(item)
        yield before[name], item
        before[name] += 1


def first_in_turn(items: Iterable[Item], name_of: Callable[[Item], str], most: int) -> list[Item]:
    """Return the first items, the first of each name before the second of any, and else in their order."""
    return [item for _, item in nsmallest(most, turn_numbers(items, name_of), key=lambda each: each[0])]


class Debts:
    """The time that namespaces have used and not paid off.

    All debts are paid off at the same pace: `own` seconds in a second at most, and `together` seconds in a second,
    divided by the number of debtors.  So however many namespaces use time, only those that use more than an equal share
    come to owe more and more.
    """

    def __init__(self, own: float, together: float, longest: float) -> None:
        """`longest` is the largest debt that is remembered, in seconds."""
        self._own, self._together, self._longest = own, together, longest
        self._now = 0.0
        self._paid = 0.0  # by a namespace that has always owed
        self._free_at: dict[str, float] = {}  # what `_paid` will be when a namespace owes nothing
        self._sum = 0.0  # of these
        self._first = list[tuple[float, str]]()  # a heap of these, with entries that are out of date

    def __len__(self) -> int:
        """Return the number of namespaces with a debt, as of the last payment."""
        return len(self._free_at)

    def charge(self, name: str, seconds: float, now: float) -> None:
        """Add to the debt of a namespace."""
        self._pay(now)
        debt = min(self._free_at.get(name, self._paid) - self._paid + seconds, self._longest)
        if debt > 0:
            self._sum += self._paid + debt - self._free_at.get(name, 0.0)
            self._free_at[name] = self._paid + debt
            heappush(self._first, (self._paid + debt, name))
        if len(self._first) > 2 * len(self._free_at) + 16:
            self._first = [(free_at, each) for each, free_at in self._free_at.items()]
            heapify(self._first)

    def of(self, name: str, now: float) -> float:
        """Return the debt of a namespace in seconds."""
        self._pay(now)
        return max(0.0, self._free_at.get(name, self._paid) - self._paid)

    def total(self, now: float) -> float:
        """Return the sum of all debts in seconds."""
        self._pay(now)
        return max(0.0, self._sum - self._paid * len(self._free_at))

    def _pay(self, now: float) -> None:
        """Pay debts off for the time that has passed.  The work is in proportion to the charges."""
        left, self._now = max(0.0, now - self._now), max(self._now, now)
        while self._first:
            free_at, name = self._first[0]
            if self._free_at.get(name) == free_at:
                pace = min(self._own, self._together / len(self._free_at))
                if (free_at - self._paid) / pace > left:
                    self._paid += left * pace
                    return
                left -= (free_at - self._paid) / pace
                self._paid = free_at
                del self._free_at[name]
                self._sum = self._sum - free_at if self._free_at else 0.0
            heappop(self._first)


class TokenBucket:
    """A token bucket: `burst` tokens at once, then a token every `refill` seconds."""

    def __init__(self, burst: int, refill: float) -> None:
        self._refill = refill
        self._spare = (burst - 1) * refill
        self._full_at = 0.0
        """The time when the bucket will be full: a time loses nothing by rounding, unlike fractions of tokens."""

    def is_full(self, now: float) -> bool:
        """Return whether all tokens are there: each that was taken has been refilled."""
        return self._full_at <= now

    @property
    def due(self) -> float:
        """The time from which there is a token."""
        return self._full_at - self._spare

    def wait(self, now: float) -> float:
        """Return the seconds until there is a token, 0 if there is a token now.

        Sums of times are off by less than a microsecond, which must not cost a token.
        """
        return max(0.0, round(self.due - now, 6))

    def spend(self, now: float, tokens: float = 1.0) -> None:
        """Take a token, or as many as something has cost: the next comes when all are refilled."""
        self._full_at = max(self._full_at, now) + self._refill * tokens


class SharedRate:
    """A rate that names share, with the number of refusals of each.

    A name owes each token that it has taken, at most its own burst, and all owe at most the common burst.  A name
    leaves as much of that as it owes (`Holdings.room`), so a name that asks for less than an equal share is never
    refused, however many take all that they get.
    """

    def __init__(self, own: tuple[int, float], together: tuple[int, float], most: int) -> None:
        """Both rates are the burst, and the seconds until the next token.  `most` names are remembered."""
        self._own, own_refill = own
        self._together, refill = together
        self._debts = Debts(1 / own_refill, 1 / refill, self._own)
        self._most = most
        self._refused = Counter[str]()

    def admit(self, name: str, now: float) -> bool:
        """Take a token of a name, and return whether there was one."""
        debt = self._debts.of(name, now)
        room = min(self._own, self._together - self._debts.total(now)) - debt
        is_admitted = round(room, 6) >= 1 and (debt > 0 or len(self._debts) < self._most)
        if is_admitted:
            self._debts.charge(name, 1.0, now)
        elif len(self._refused) < self._most or name in self._refused:
            self._refused[name] += 1
        return is_admitted

    def pop_refused(self) -> list[tuple[str, int]]:
        """Return the number of refusals of each name since the last call, the most first."""
        found, self._refused = self._refused, Counter[str]()
        return found.most_common()


class LineBudget:
    """A budget for lines of the log whose number tenants decide: a rate for each namespace, and one for all."""

    def __init__(self) -> None:
        self._rate = SharedRate(LINES_OF_A_NAMESPACE, LINES_OF_ALL, MOST_NAMESPACES)
        self.left_out = 0
        """Lines that were left out since the last note."""
        self._next_note = 0.0

    def admit(self, namespace: str, now: float) -> bool:
        """Return whether a line may be written.  The namespace is "" if the line is about no namespace, or several."""
        is_admitted = self._rate.admit(namespace, now)
        self.left_out += not is_admitted
        return is_admitted

    def leave_out(self, lines: int = 1) -> None:
        """Count lines that are left out for another reason."""
        self.left_out += lines

    def note(self, things: str, now: float) -> str:
        """Return how many lines were left out, with the namespace that has the most, or "" if none or too early.

        `things` is what the lines are about, such as "problems".
        """
        if now < self._next_note:
            return ""
        if not self.left_out:
            return ""
        count, refused = self.left_out, self._rate.pop_refused()
        self.left_out, self._next_note = 0, now + NOTE_EVERY
        most = f", {refused[0][1]} of them in namespace {refused[0][0]}" if refused and refused[0][0] else ""
        return f"and {count} more {things} like these{most}"
