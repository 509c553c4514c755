"""How namespaces share a bounded thing: room, processor time, or lines of a log.

Tenants choose how much they ask for, so each bound is divided between namespaces:

* **Room** is divided by max-min fairness (`divide`).  A namespace that asks for at most an equal share gets all of its
  demand, and the rest is divided equally between the others.
* **Items** are admitted up to a bound.  Beyond it the namespace with the most items makes room for any that has fewer
  (`SharedRoom`).
* **Time** that a namespace has used counts as a debt, which time pays off (`Debts`).  The namespace with the least debt
  comes first, and a namespace that uses less than an equal share soon owes nothing.
* **A rate** is a token bucket (`TokenBucket`), and `SharedRate` has a bucket for each namespace and another for all.
  `LineBudget` is such a rate of lines of the log.

The invariants, which tests/model/test_fairness.py checks: a namespace that asks for less than an equal share loses
nothing, the sum never exceeds the bound, and the work is in proportion to the namespaces that ask for more.  Memory is
bounded.  Time comes in as a value, in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush
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


class SharedRoom(Generic[Item]):
    """The items of each name, where the number of all items is bounded.

    A name with fewer items than an equal share is never refused, and loses none.
    """

    def __init__(self) -> None:
        self._of: dict[str, dict[Item, None]] = {}
        """The items of each name, the latest at the end."""
        self._size = 0
        self._largest = ""
        """The name with the most items, or "" if that must be looked up."""

    def __len__(self) -> int:
        """Return the number of items of all names."""
        return self._size

    def count(self, name: str) -> int:
        """Return the number of items of a name."""
        return len(self._of.get(name, ()))

    def to_evict(self, name: str, most: int) -> Item | None:
        """Return the item whose room a new item of `name` takes, None if there is room, or `name` has its share.

        It is the latest of the name with the most items.
        """
        if self._size < most:
            return None
        self._largest = self._largest or max(self._of, key=self.count, default="")
        if self.count(self._largest) <= self.count(name) + 1:
            return None
        return next(reversed(self._of[self._largest]))

    def add(self, name: str, item: Item) -> None:
        """Add an item that isn't there yet."""
        self._of.setdefault(name, {})[item] = None
        self._size += 1
        self._largest = ""

    def remove(self, name: str, item: Item) -> None:
        """Remove an item."""
        del self._of[name][item]
        if not self._of[name]:
            del self._of[name]
        self._size -= 1
        self._largest = ""


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
        self._first = list[tuple[float, str]]()  # a heap of these, with entries that are out of date

    def __len__(self) -> int:
        """Return the number of namespaces with a debt, as of the last payment."""
        return len(self._free_at)

    def charge(self, name: str, seconds: float, now: float) -> None:
        """Add to the debt of a namespace."""
        self._pay(now)
        debt = min(self._free_at.get(name, self._paid) - self._paid + seconds, self._longest)
        if debt > 0:
            self._free_at[name] = self._paid + debt
            heappush(self._first, (self._paid + debt, name))
        if len(self._first) > 2 * len(self._free_at) + 16:
            self._first = [(free_at, each) for each, free_at in self._free_at.items()]
            heapify(self._first)

    def of(self, name: str, now: float) -> float:
        """Return the debt of a namespace in seconds."""
        self._pay(now)
        return max(0.0, self._free_at.get(name, self._paid) - self._paid)

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

    def wait(self, now: float) -> float:
        """Return the seconds until there is a token, 0 if there is a token now.

        Sums of times are off by less than a microsecond, which must not cost a token.
        """
        return max(0.0, round(self._full_at - self._spare - now, 6))

    def spend(self, now: float) -> None:
        """Take a token."""
        self._full_at = max(self._full_at, now) + self._refill


class SharedRate(Generic[Name]):
    """A rate for each name and for all names together, with the number of refusals of each.

    A name is refused if its own bucket is empty, and then takes nothing of the others' bucket.
    """

    def __init__(self, own: tuple[int, float], together: tuple[int, float], most: int) -> None:
        """Both rates are the burst, and the seconds until the next token.  `most` names are remembered."""
        self._own = own
        self._together = TokenBucket(*together)
        self._most = most
        self._buckets: dict[Name, TokenBucket] = {}
        self._refused = Counter[Name]()

    def admit(self, name: Name, now: float) -> bool:
        """Take a token of a name, and return whether there was one."""
        bucket = self._buckets.get(name) or self._new_bucket(name, now)
        is_admitted = bucket is not None and not bucket.wait(now) and not self._together.wait(now)
        if bucket is not None and is_admitted:
            bucket.spend(now)
            self._together.spend(now)
        elif len(self._refused) < self._most or name in self._refused:
            self._refused[name] += 1
        return is_admitted

    def pop_refused(self) -> list[tuple[Name, int]]:
        """Return the number of refusals of each name since the last call, the most first."""
        found, self._refused = self._refused, Counter[Name]()
        return found.most_common()

    def _new_bucket(self, name: Name, now: float) -> TokenBucket | None:
        """Return a bucket for a name, None if as many names are remembered as may be."""
        if len(self._buckets) >= self._most:
            self._buckets = {known: bucket for known, bucket in self._buckets.items() if not bucket.is_full(now)}
        if len(self._buckets) >= self._most:
            return None
        self._buckets[name] = TokenBucket(*self._own)
        return self._buckets[name]


class LineBudget:
    """A budget for lines of the log whose number tenants decide: a rate for each namespace, and one for all."""

    def __init__(self) -> None:
        self._rate = SharedRate[str](LINES_OF_A_NAMESPACE, LINES_OF_ALL, MOST_NAMESPACES)
        self.left_out = 0
        """Lines that were left out since the last note."""
        self._next_note = 0.0

    def admit(self, namespace: str, now: float) -> bool:
        """Return whether a line may be written.  The namespace is "" if the line is about no namespace, or several."""
        is_admitted = self._rate.admit(namespace, now)
        self.left_out += not is_admitted
        return is_admitted

    def leave_out(self) -> None:
        """Count a line that is left out for another reason."""
        self.left_out += 1

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
