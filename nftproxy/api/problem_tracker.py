"""The present faults of the objects of a kind.  Each is reported once while it lasts.

A log must not grow with the number of times that a faulty object is written or listed.  So a fault is new only if the
object didn't have it before.  Memory is bounded by the objects that exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.objects import ObjectKey

MOST_OF_ONE = 10
"""Faults of a single object that are tracked: a thousand bad endpoints are a single mistake."""

MOST_AT_ONCE = 20
"""Faults that are reported at once.  Of the rest, only the number is reported."""

Key = ObjectKey | str | None


class ProblemTracker:
    """Tracks the faults of all objects of a kind."""

    def __init__(self) -> None:
        self.count = 0
        """The number of present faults."""
        self._known: dict[Key, Sequence[Problem]] = {}
        self._listed: set[Key] = set()
        self._fresh: list[Problem] = []
        self._unsaid = 0

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
        old = self._known.pop(key, ())
        kept = problems[:MOST_OF_ONE]
        self.count += len(kept) - len(old)
        if kept:
            self._known[key] = kept
            self._listed.add(key)
            for problem in kept:
                if problem not in old:
                    self.report(problem)

    def report(self, problem: Problem) -> None:
        """Report a problem with the next new faults."""
        if len(self._fresh) < MOST_AT_ONCE:
            self._fresh.append(problem)
        else:
            self._unsaid += 1

    def take_new(self) -> list[Problem]:
        """Return the new problems, each once."""
        said, self._fresh = self._fresh, []
        if self._unsaid:
            said.append(Problem("", "", "", f"and {self._unsaid} more problems like these", Code.MORE_PROBLEMS))
            self._unsaid = 0
        return said
