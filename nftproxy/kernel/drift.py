"""Whether our tables are as we left them, known from the kernel's notifications of every commit.

Each commit is a new generation of the ruleset, and the kernel notifies us of it (notifications.py).  We know the
numbers of our own; one of somebody else's matters only if a message of it names one of our tables.  So `left` goes on
from generation to generation, past our own and past those that touch other tables, and stops where somebody touched
ours.

* Only tables that we hold count: one that we failed to load may be somebody else's, who may do there as they like.
* Notifications are queued before the commit is done, so what `listen` reads after one of ours has it.
* Where some were lost (the queue was full), or not listened to, or a commit of ours can't be distinguished from
  another's that came at the same time, it isn't known, and `left` stops too.
* Listening to a large transaction is expensive (notifications.py says how much), so we don't listen to large ones of
  our own.  Those of others can't be known in advance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Protocol

from nftproxy.kernel.notifications import Notice
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused
from nftproxy.rules.transaction import Commit

LARGE = 64 * 1024
"""Characters of a transaction, some 1,500 elements, from which on it isn't listened to."""

AT_ONCE = "another program has changed them at the same time as this one"
TOO_MUCH = "too much has changed at once to follow"


class Hearing(Protocol):
    """What reports commits: `notifications.Notifications`, or a stand-in of the tests."""

    def read(self) -> list[Notice] | None:
        """The commits since the last call; None if notifications were lost."""

    def pause(self) -> None:
        """Don't listen."""

    def resume(self) -> None:
        """Listen again."""


class Custody:
    """Follows who commits what; for one thread."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self.harmed = frozenset[Family]()
        """The families whose tables another program is known to have changed since they were loaded."""
        self._held = frozenset[Family]()  # the families whose tables are ours to watch over
        self._left: int | None = None
        self._own: set[int] = set()
        self._notices: dict[int, Notice] = {}
        self._doubt = ""  # why it isn't known how our tables are, which nobody has asked for yet
        self.is_committing = False
        self._is_deaf = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around what a transaction of ours depends on, up to that: what others commit meanwhile is kept for it."""
        self.is_committing = True
        try:
            yield
        finally:
            self.is_committing = False

    @contextlib.contextmanager
    def during(self, size: int) -> Iterator[None]:
        """Around transactions of ours of so many characters; to many we don't listen.  A refusal changes nothing; else,
        if it fails, nothing is known.
        """
        is_large = size >= LARGE
        if is_large:
            self._hearing.pause()
        self.is_committing, self._is_deaf = True, is_large
        try:
            yield
        except Refused:
            raise
        except BaseException:
            self._left = None
            self._notices.clear()
            raise
        finally:
            self.is_committing = self._is_deaf = False
            if is_large:
                self._hearing.resume()

    def lost(self, families: Iterable[Family]) -> None:
        """It isn't known any more what these families' tables hold; until they are loaded, nobody need watch them."""
        self._held -= frozenset(families)
        self.harmed &= self._held

    def loaded(self, commit: Commit, families: Iterable[Family]) -> None:
        """The tables of these families are as they should be after this full transaction.

        `commit` begins where it was known what they held, if that counts.
        """
        families = frozenset(families)
        if self._held - families:
            self.changed(commit, families)
        else:
            self.listen()
            self._doubt = ""
            self._left, self._own = self._own_generation(commit, families), set()
            self._notices = {each: notice for each, notice in self._notices.items() if each > (self._left or each)}
        self._held |= families

    def changed(self, commit: Commit, families: Iterable[Family]) -> None:
        """If our tables were as we left them, they are after this transaction about some families."""
        self.listen()
        own = self._own_generation(commit, frozenset(families))
        if own is None:
            self._left = None
        elif self._left is not None:
            self._own.add(own)
            self._go_on()

    def listen(self) -> None:
        """Take in the notifications that have come."""
        notices = self._hearing.read()
        if notices is None:
            self._left, self._doubt = None, TOO_MUCH
        elif self._left is not None or self.is_committing:
            self._notices |= {notice.generation: notice for notice in notices}

    def is_intact(self, generation: int) -> bool:
        """Whether it is known that the tables we hold are, in this generation of the ruleset, as we left them."""
        self._go_on()
        return generation == self._left

    def alarm(self) -> str:
        """Why our tables must be looked at now, once for each reason; "" if they needn't be."""
        self.listen()
        intruder = self._go_on()
        if intruder is not None:
            self.harmed |= intruder.families & self._held
            self._left, self._doubt = None, f"{intruder.who or 'another program'} has changed them"
        reason, self._doubt = self._doubt, ""
        return reason

    def _own_generation(self, commit: Commit, families: frozenset[Family]) -> int | None:
        """The generation that a commit of ours made; None if that isn't known.

        Where two are about us, or one though we didn't listen to our own, somebody has touched our tables, before us or
        after.  Where nobody listened, others may have done so, or just as well have kept to theirs: that is left to the
        periodic check.
        """
        if commit.is_alone:
            return commit.after
        about_us = [
            generation
            for generation in range(commit.before + 1, commit.after + 1)
            if generation in self._notices and self._notices[generation].families & families
        ]
        expected = 0 if self._is_deaf else 1  # our own, unless we didn't listen
        if len(about_us) > expected:
            self._doubt = AT_ONCE
            return None
        return about_us[0] if about_us else None

    def _go_on(self) -> Notice | None:
        """Go on past our own generations and those that left us alone; who stands in the way, if anyone does."""
        while self._left is not None:
            following = self._left + 1
            notice = self._notices.get(following)
            if following not in self._own and (notice is None or notice.families & self._held):
                return notice
            self._left = following
            self._own.discard(following)
            self._notices.pop(following, None)
        return None
