"""The present faults of the objects of one kind, each reported once while it lasts.

A log must not grow with how often a faulty object is written, nor with how often it is listed; so a fault is new only
if the object did not have it before.  Memory is bounded by the objects that there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.objects import ObjectKey

MOST_OF_ONE = 10
"""Faults of one object that are kept: a thousand bad endpoints are one mistake."""

MOST_AT_ONCE = 20
"""Faults that are said at once; of the others, how many."""

Key = ObjectKey | str | None


class Complaints:
    """The faults of all objects of one kind."""

    def __init__(self) -> None:
        self.count = 0
        """How many faults there are now."""
        self._known: dict[Key, Sequence[Problem]] = {}
        self._listed: set[Key] = set()
        self._fresh: list[Problem] = []
        self._unsaid = 0

    def begin(self) -> None:
        """A listing begins: objects that are not noted until it ends are gone."""
        self._listed.clear()

    def settle(self) -> None:
        """The listing ends."""
        for key in self._known.keys() - self._listed:
            self.note(key, ())

    def note(self, key: Key, problems: Sequence[Problem]) -> None:
        """What is wrong with an object as it is now: nothing, if it is gone; None is any object without a name."""
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
                    self.say(problem)

    def say(self, problem: Problem) -> None:
        """Have something said with the rest."""
        if len(self._fresh) < MOST_AT_ONCE:
            self._fresh.append(problem)
        else:
            self._unsaid += 1

    def fresh(self) -> list[Problem]:
        """What is to be said now, and never again."""
        said, self._fresh = self._fresh, []
        if self._unsaid:
            said.append(Problem("", "", "", f"and {self._unsaid} more problems like these", Code.MORE_PROBLEMS))
            self._unsaid = 0
        return said
