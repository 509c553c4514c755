"""Whether our tables are as we left them, known from the kernel's notifications of every commit.

The kernel sends the messages of a commit, and then the number of the generation that it made, to all members of a
multicast group (NFNLGRP_NFTABLES).  `CommitListener` reads two facts: the number, and whether a message names our
tables.  While a listener has joined, the kernel makes messages of all elements before a commit is done.  A set of
200,000 that was emptied and filled in one transaction took 3 GB and 5 s more (6.18).

`TableWatch` knows the numbers of our own commits.  Another program's commit matters only if its messages name a table
of ours.  So `_left` advances from generation to generation, past our own commits and past commits to other tables.  It
stops at a commit that touched ours.

* Only tables that we hold count. A table that we failed to load may be another program's, which may change it freely.
* Notifications are queued before the commit is done, so a read after one of our commits includes its notification.
* If notifications were lost (the queue was full) or not listened to, the state is unknown and `_left` stops. It also
  stops if our commit can't be distinguished from another program's at the same time.
* Listening is paused during our own large transactions. Those of other programs can't be known in advance.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from nftproxy.kernel.nfnetlink.modules import reason
from nftproxy.kernel.nfnetlink.sockets import ADD_MEMBERSHIP, BUFFER_SIZE, DROP_MEMBERSHIP, SOL_NETLINK, open_listener
from nftproxy.model.addresses import TABLE, Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.netlink import nf_tables as nft
from nftproxy.netlink.codec import (
    FAMILY_OF_NUMBER,
    GENERAL,
    HEADER,
    Attributes,
    attribute_map,
    attribute_pattern,
    number_of,
    text_of,
)
from nftproxy.rules.transaction import Commit

NEW_GENERATION = nft.SUBSYSTEM << 8 | nft.NEW_GENERATION
GROUP = 7  # NFNLGRP_NFTABLES
QUEUE_SIZE = 4 << 20
"""Bytes that may wait to be read: commits of some 20,000 elements at once."""


class CommitNotice(NamedTuple):
    """A generation of the ruleset: the families of our tables that its commit touched, and the program behind it.

    `program` is its name and its process number on this machine, "" if unknown.
    """

    generation: int
    families: frozenset[Family]
    program: str = ""


class CommitListener:
    """Reads the kernel's notifications of commits in the network namespace of the thread that makes this.

    Raises:
        Unavailable: the kernel has no nftables, or permission is missing.
    """

    def __init__(self) -> None:
        self._families = set[Family]()
        try:
            self._socket = open_listener(QUEUE_SIZE)
            self.resume()
        except OSError as error:
            raise _silent(error) from error

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def pause(self) -> None:
        """Leave the group.  Raises Unavailable."""
        self._set(DROP_MEMBERSHIP)

    def resume(self) -> None:
        """Join the group.  Raises Unavailable."""
        self._set(ADD_MEMBERSHIP)

    def _set(self, membership: int) -> None:
        try:
            self._socket.setsockopt(SOL_NETLINK, membership, GROUP)
        except OSError as error:
            raise _silent(error) from error

    def read(self) -> list[CommitNotice] | None:
        """Return the notifications since the last call, or None if notifications were lost."""
        found: list[CommitNotice] = []
        is_whole = True
        while True:
            try:
                data = self._socket.recv(BUFFER_SIZE)
            except BlockingIOError:
                return found if is_whole else None
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # then there is more to read
                    return None
                is_whole = False
            else:
                found += self._notices(data)

    def _notices(self, data: bytes) -> Iterator[CommitNotice]:
        """Yield the generation that these bytes are about.  Earlier bytes may have other messages of the same commit.

        The kernel sends the message of a generation by itself (nf_tables_gen_notify), after all others of its commit.
        """
        _, kind, *_ = HEADER.unpack_from(data)
        if kind == NEW_GENERATION:
            held = attribute_map(data, HEADER.size + GENERAL.size)
            yield CommitNotice(number_of(held[nft.GENERATION_ID]), frozenset(self._families), _program(held))
            self._families.clear()
        elif _NAME in data:  # else the pattern takes ten times as long
            self._families.update(FAMILY_OF_NUMBER[number] for (number,) in set(_ABOUT_OUR_TABLE.findall(data)))


def _silent(error: OSError) -> Unavailable:
    return Unavailable(f"the kernel doesn't notify of changes to nftables: {reason(error, 'nf_tables')}")


def _program(held: Attributes) -> str:
    name = text_of(held.get(nft.GENERATION_PROGRAM, b""))
    if not name:
        return ""
    process = number_of(held.get(nft.GENERATION_PROCESS, b""))
    return f"{name if name.isprintable() else repr(name)}{f' (process {process})' if process else ''}"


_NAME = TABLE.encode() + b"\0"
_ABOUT_OUR_TABLE = re.compile(
    b"([" + bytes(FAMILY_OF_NUMBER) + rb"])\0.." + attribute_pattern(len(_NAME), nft.OF_TABLE) + _NAME, re.DOTALL
)
"""The beginning of the body of a message about a table of ours: `GENERAL`, and the name as its first attribute."""


LARGE = 64 * 1024
"""Listening is paused during transactions of so many characters or more: some 1,500 elements."""

CHANGED_MEANWHILE = "another program has changed them at the same time"
TOO_MUCH = "too much has changed at once to follow"


class CommitSource(Protocol):
    """Reports commits: a `CommitListener`, or a stand-in of the tests."""

    def read(self) -> list[CommitNotice] | None:
        """Return the commits since the last call, or None if notifications were lost."""

    def pause(self) -> None:
        """Stop listening."""

    def resume(self) -> None:
        """Listen again."""


class TableWatch:
    """Tracks which program commits to our tables.  Use it in one thread only."""

    def __init__(self, commits: CommitSource) -> None:
        self._commits = commits
        self.harmed = frozenset[Family]()
        """The families whose tables another program is known to have changed since they were loaded."""
        self._held = frozenset[Family]()  # the families whose tables we watch
        self._left: int | None = None
        self._own: set[int] = set()
        self._notices: dict[int, CommitNotice] = {}
        self._doubt = ""  # why the tables' state is unknown, until reason_to_load returns it
        self.is_committing = False
        self._is_deaf = False

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Wrap the steps that a transaction of ours depends on.  Commits of other programs meanwhile are remembered."""
        self.is_committing = True
        try:
            yield
        finally:
            self.is_committing = False

    @contextlib.contextmanager
    def committing(self, size: int) -> Iterator[None]:
        """Wrap our own transactions (`size` characters), and pause listening during large ones.

        After a refusal the tables are as before.  After any other failure their state is unknown.
        """
        is_large = size >= LARGE
        if is_large:
            self._commits.pause()
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
                self._commits.resume()

    def unwatch(self, families: Iterable[Family]) -> None:
        """Stop watching the tables of these families, whose state is unknown, until they are loaded."""
        self._held -= frozenset(families)
        self.harmed &= self._held

    def record_load(self, commit: Commit, families: Iterable[Family]) -> None:
        """Record that a full transaction has loaded the tables of these families.

        `commit` begins at the generation in which the tables were compared, if that counts.
        """
        families = frozenset(families)
        if self._held - families:
            self.record_change(commit, families)
        else:
            self.read_notices()
            self._doubt = ""
            self._left, self._own = self._own_generation(commit, families), set()
            self._notices = {each: notice for each, notice in self._notices.items() if each > (self._left or each)}
        self._held |= families

    def record_change(self, commit: Commit, families: Iterable[Family]) -> None:
        """Record a transaction about some families: tables that were intact before are intact after it."""
        self.read_notices()
        own = self._own_generation(commit, frozenset(families))
        if own is None:
            self._left = None
        elif self._left is not None:
            self._own.add(own)
            self._advance()

    def read_notices(self) -> None:
        """Read the notifications that have arrived."""
        notices = self._commits.read()
        if notices is None:
            self._left, self._doubt = None, TOO_MUCH
        elif self._left is not None or self.is_committing:
            self._notices |= {notice.generation: notice for notice in notices}

    def is_intact(self, generation: int) -> bool:
        """True if the tables that we watch are certainly unchanged since our last commit, as of this generation."""
        self._advance()
        return generation == self._left

    def reason_to_load(self) -> str:
        """Return why our tables must be compared now, once for each reason, or "" if they needn't be.

        It judges the notifications that were read.  The event loop reads all others as they arrive (`read_notices`).
        """
        intruder = self._advance()
        if intruder is not None:
            self.harmed |= intruder.families & self._held
            self._left, self._doubt = None, f"{intruder.program or 'another program'} has changed them"
        reason, self._doubt = self._doubt, ""
        return reason

    def _own_generation(self, commit: Commit, families: frozenset[Family]) -> int | None:
        """Return the last generation that our commit made, or None if it is unknown.

        Two commits to our tables at once, or one while listening was paused, mean that another program has touched our
        tables, before our commit or after it.  If other programs committed while listening was paused, they may have
        left our tables alone.  Then the periodic check decides.
        """
        if commit.is_alone:
            if commit.count > 1:
                self._own.update(range(commit.before + 1, commit.after))
            return commit.after
        about_us = [
            generation
            for generation in range(commit.before + 1, commit.after + 1)
            if generation in self._notices and self._notices[generation].families & families
        ]
        expected = 0 if self._is_deaf else 1  # our own, unless listening was paused
        if len(about_us) > expected:
            self._doubt = CHANGED_MEANWHILE
            return None
        return about_us[0] if about_us else None

    def _advance(self) -> CommitNotice | None:
        """Advance past our own commits and past commits to other tables.  Return the first other commit, if any."""
        while self._left is not None:
            following = self._left + 1
            notice = self._notices.get(following)
            if following not in self._own and (notice is None or notice.families & self._held):
                return notice
            self._left = following
            self._own.discard(following)
            self._notices.pop(following, None)
        return None
