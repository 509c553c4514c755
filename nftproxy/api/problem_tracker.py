"""The present faults of the objects of a kind.  Each is reported once while it lasts.

A log must not grow with the number of times that a faulty object is written or listed.  So a fault is new only if the
object didn't have it before, and an object has a limit of reported faults in a while, since a tenant may write another
fault each time.  A namespace has a limit for all its objects, and so have all namespaces, since a tenant may give each
object a new name.  Namespaces share all limits (model/fairness.py).  Faults beyond a limit are counted, and the count
is reported.  Memory is bounded by the objects that exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nftproxy.model.codes import NOTES, Code
from nftproxy.model.errors import Problem
from nftproxy.model.fairness import LineBudget, SharedRoom
from nftproxy.model.objects import ObjectKey

MOST_OF_ONE = 10
"""Faults of a single object that are tracked: a thousand bad endpoints are a single mistake."""

WHILE = 60.0
"""Seconds in which an object has at most `MOST_OF_ONE` faults reported."""

MOST_WINDOWS = 4096
"""Objects whose reported faults are counted at a time.  A further object waits until another's time is over, unless its
namespace has fewer than its share."""

MOST_AT_ONCE = 20
"""Faults that are reported at once.  Further faults are only counted."""

Key = ObjectKey | str | None


class _Fresh(NamedTuple):
    """A new problem of an object, with the number of its report."""

    number: int
    key: Key
    problem: Problem


class _Window(NamedTuple):
    """The faults of an object since a moment: how many were reported, how many weren't, and the object's name."""

    since: float
    reported: int
    left_out: int
    name: str


class ProblemTracker:
    """Tracks the faults of all objects of a kind."""

    def __init__(self) -> None:
        self.count = 0
        """The number of present faults.  Notes don't count."""
        self.is_idle = True
        """Whether there is no fault, and nothing to report."""
        self._known: dict[Key, Sequence[Problem]] = {}
        self._listed: set[Key] = set()
        self._fresh = SharedRoom[_Fresh]()
        self._reports = 0
        self._windows: dict[Key, _Window] = {}
        """The oldest is first."""
        self._window_room = SharedRoom[Key]()
        self._budget = LineBudget()

    def begin_listing(self) -> None:
        """Begin a listing: objects that are not recorded until it ends are gone."""
        self._listed.clear()

    def end_listing(self) -> None:
        """Drop the faults of all objects that the listing didn't have."""
        for key in self._known.keys() - self._listed:
            self.record(key, ())

    def record(self, key: Key, problems: Sequence[Problem]) -> None:
        """Record the present faults of an object, none if it is gone.  None stands for any object without a name."""
        if not problems and key not in self._known:
            return
        self.is_idle = False
        old = self._known.pop(key, ())
        kept = sorted(problems, key=_is_note)[:MOST_OF_ONE]  # stable: faults first
        self.count += _costly(kept) - _costly(old)
        if kept:
            self._known[key] = kept
            self._listed.add(key)
            for problem in kept:
                if problem not in old:
                    self.report(problem, key)

    def report(self, problem: Problem, key: Key = None) -> None:
        """Report a problem of an object with the next new faults."""
        self.is_idle = False
        namespace = _namespace(key)
        if (evicted := self._fresh.to_evict(namespace, MOST_AT_ONCE)) is not None:
            self._fresh.remove(_namespace(evicted.key), evicted)
            self._budget.leave_out()
        if len(self._fresh) < MOST_AT_ONCE:
            self._reports += 1
            self._fresh.add(namespace, _Fresh(self._reports, key, problem))
        else:
            self._budget.leave_out()

    def pop_new(self, now: float) -> list[Problem]:
        """Return the new problems, each once, and the number of problems that were left out.

        Args:
            now: seconds of a clock that never goes back.
        """
        fresh, self._fresh = sorted(self._fresh), SharedRoom[_Fresh]()
        within = [
            *self._ended_windows(now),
            *((each.key, each.problem) for each in fresh if self._counts(each.key, each.problem, now)),
        ]
        reported = [each for key, each in within if self._budget.admit(_namespace(key), now)]
        if note := self._budget.note("problems", now):
            reported.append(Problem("", "", "", note, Code.MORE_PROBLEMS))
        self.is_idle = not (self._known or self._windows or self._budget.left_out)
        return reported

    def _counts(self, key: Key, problem: Problem, now: float) -> bool:
        """Count a problem of an object, and return whether it is within the object's limit."""
        window = self._windows.get(key, _Window(now, 0, 0, problem.object))
        if key not in self._windows and not self._has_room(key):
            self._budget.leave_out()
            return False
        is_within = window.reported < MOST_OF_ONE
        self._windows[key] = window._replace(
            reported=window.reported + is_within, left_out=window.left_out + (not is_within)
        )
        return is_within

    def _has_room(self, key: Key) -> bool:
        """Return whether there is room for the window of a further object, which may be another's."""
        namespace = _namespace(key)
        evicted = self._window_room.to_evict(namespace, MOST_WINDOWS)
        if evicted is not None:
            self._budget.leave_out(self._forget(evicted).left_out)
        if len(self._windows) >= MOST_WINDOWS:
            return False
        self._window_room.add(namespace, key)
        return True

    def _forget(self, key: Key) -> _Window:
        self._window_room.remove(_namespace(key), key)
        return self._windows.pop(key)

    def _ended_windows(self, now: float) -> list[tuple[Key, Problem]]:
        """Forget the windows that are over.  Return a problem for each of these that has left problems out."""
        reported: list[tuple[Key, Problem]] = []
        while self._windows:
            key, window = next(iter(self._windows.items()))
            if now - window.since < WHILE:
                break
            self._forget(key)
            if window.left_out:
                text = f"and {window.left_out} more problems, as it was written again and again"
                reported.append((key, Problem("", window.name, "", text, Code.MORE_PROBLEMS)))
        return reported


def _namespace(key: Key) -> str:
    """Return the namespace of an object, "" if it has none."""
    return key.namespace if isinstance(key, ObjectKey) else ""


def _costly(problems: Sequence[Problem]) -> int:
    """Return the number of problems that cost a part of an object."""
    return sum(not _is_note(problem) for problem in problems)


def _is_note(problem: Problem) -> bool:
    return problem.code in NOTES
