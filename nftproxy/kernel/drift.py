"""Whether our tables are as we left them, known from the kernel's notifications of every commit.

Each commit is a new generation of the ruleset, and the kernel tells its messages, then its number, to who has joined a
multicast group (NFNLGRP_NFTABLES).  We know the numbers of our own; one of somebody else's matters only if a message of
it names one of our tables.  So `left` goes on from generation to generation, past our own and past those that touch
other tables, and stops where somebody touched ours.

* Notifications are queued before the commit is done, so what `listen` reads after one of ours has it.
* Where some were lost (the queue was full), or not listened to, or a commit of ours can't be told from another's that
  came at the same time, it isn't known, and `left` stops too.
* While somebody listens, the kernel makes messages of all elements before it is done: a set of 200,000 that was emptied
  and filled in one transaction took 3 GB and 5 s more (6.18).  That is what our full transactions do, so we don't
  listen to large ones of our own.  Those of others can't be known in advance.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from nftproxy.kernel.nftables_netlink import (
    BUFFER_SIZE,
    FAMILY_NUMBER,
    GENERAL,
    HEADER,
    NETLINK_NETFILTER,
    SUBSYSTEM,
    attributes_of,
    messages_of,
)
from nftproxy.model.addresses import TABLE
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.rules.ruleset import Commit, Transaction

NEW_GENERATION = SUBSYSTEM << 8 | 15  # NFT_MSG_NEWGEN
GENERATION_ID, GENERATION_NAME = 1, 3  # NFTA_GEN_ID, NFTA_GEN_PROC_NAME
TABLE_NAME = 1  # NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_SET_ELEM_LIST_TABLE and so on: the same for all messages
SOL_NETLINK, ADD_MEMBERSHIP, DROP_MEMBERSHIP, GROUP = 270, 1, 2, 7  # NETLINK_*, NFNLGRP_NFTABLES
SO_RCVBUFFORCE = 33
QUEUE_SIZE = 4 << 20
"""Bytes that may wait to be read: commits of some 20,000 elements at once."""
LARGE = 64 * 1024
"""Characters of a transaction, some 1,500 elements, from which on it isn't listened to."""

AT_ONCE = "somebody has changed them in the same moment as we"
TOO_MUCH = "too much was changed at once to follow"


class Notice(NamedTuple):
    """A generation of the ruleset: whether its commit touched our tables, and the name of the process that made it."""

    generation: int
    is_about_us: bool
    who: str = ""


class Hearing(Protocol):
    """What tells of commits; the one that asks the kernel is `Notifications`."""

    def read(self) -> list[Notice] | None:
        """What was told since; None if some of it was lost."""

    def pause(self) -> None:
        """Don't listen."""

    def resume(self) -> None:
        """Listen again."""


class Custody:
    """Follows who commits what; for one thread."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._left: int | None = None
        self._own: set[int] = set()
        self._notices: dict[int, Notice] = {}
        self._doubt = ""  # why it isn't known how our tables are, which nobody has been told yet
        self._is_committing = False

    @contextlib.contextmanager
    def during(self, transaction: Transaction) -> Iterator[None]:
        """Around a transaction of ours; to a large one we don't listen.  A refusal changes nothing; else, if it fails,
        nothing is known.
        """
        is_large = len(transaction.text) >= LARGE
        if is_large:
            self._hearing.pause()
        self._is_committing = True
        try:
            yield
        except Refused:
            raise
        except BaseException:
            self._left = None
            self._notices.clear()
            raise
        finally:
            self._is_committing = False
            if is_large:
                self._hearing.resume()

    def loaded(self, commit: Commit) -> None:
        """Our tables are as they should be after this full transaction, and nobody touched them since."""
        self.listen()
        self._doubt = ""
        self._left, self._own = self._own_generation(commit), set()
        self._notices = {each: notice for each, notice in self._notices.items() if each > (self._left or each)}

    def changed(self, commit: Commit) -> None:
        """If our tables were as we left them, they are after this change."""
        self.listen()
        own = self._own_generation(commit)
        if own is None:
            self._left = None
        elif self._left is not None:
            self._own.add(own)
            self._go_on()

    def listen(self) -> None:
        """Take in what has been told."""
        notices = self._hearing.read()
        if notices is None:
            self._left, self._doubt = None, TOO_MUCH
        elif self._left is not None or self._is_committing:
            self._notices |= {notice.generation: notice for notice in notices}

    def is_intact(self, generation: int) -> bool:
        """Whether it is known that our tables are, in this generation of the ruleset, as we left them."""
        self._go_on()
        return generation == self._left

    def alarm(self) -> str:
        """Why our tables must be looked at now, told once; "" if they needn't be."""
        self.listen()
        intruder = self._go_on()
        if intruder is not None:
            self._left, self._doubt = None, f"{intruder.who or 'somebody'} has changed them"
        reason, self._doubt = self._doubt, ""
        return reason

    def _own_generation(self, commit: Commit) -> int | None:
        """The generation that a commit of ours made; None if that can't be told.

        Where two are about us, somebody has touched our tables, before us or after.  Where nobody listened, others may
        have done so, or just as well have kept to theirs: that is left to the periodic check.
        """
        if commit.is_alone:
            return commit.after
        about_us = [
            generation
            for generation in range(commit.before + 1, commit.after + 1)
            if generation in self._notices and self._notices[generation].is_about_us
        ]
        if len(about_us) > 1:
            self._doubt = AT_ONCE
        return about_us[0] if len(about_us) == 1 else None

    def _go_on(self) -> Notice | None:
        """Go on past our own generations and those that left us alone; who stands in the way, if anyone does."""
        while self._left is not None:
            following = self._left + 1
            notice = self._notices.get(following)
            if following not in self._own and (notice is None or notice.is_about_us):
                return notice
            self._left = following
            self._own.discard(following)
            self._notices.pop(following, None)
        return None


class Notifications:
    """What the kernel tells of commits in the network namespace of the thread that makes this.

    Raises:
        Unavailable: the kernel has no nftables, or there is no permission.
    """

    def __init__(self) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._is_about_us = False
        try:
            self._socket = socket.socket(socket.AF_NETLINK, kind, NETLINK_NETFILTER)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, QUEUE_SIZE)
            self._socket.bind((0, 0))  # one without a number hears nothing
            self.resume()
        except OSError as error:
            raise Unavailable(f"the kernel doesn't tell of changes to nftables: {error.strerror}") from error

    def fileno(self) -> int:
        """For who waits for notifications."""
        return self._socket.fileno()

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    def pause(self) -> None:
        """Leave the group."""
        self._socket.setsockopt(SOL_NETLINK, DROP_MEMBERSHIP, GROUP)

    def resume(self) -> None:
        """Join the group."""
        self._socket.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP)

    def read(self) -> list[Notice] | None:
        """What was told since; None if some of it was lost."""
        found: list[Notice] = []
        is_whole = True
        while True:
            try:
                data = self._socket.recv(BUFFER_SIZE)
            except BlockingIOError:
                return found if is_whole else None
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                is_whole = False
            else:
                found += self._notices(data)

    def _notices(self, data: bytes) -> Iterator[Notice]:
        """The generations that end in these bytes; a commit's other messages may have come with earlier ones."""
        if not _may_be_about_us(data):
            return
        for kind, _, body in messages_of(data):
            attributes = attributes_of(body[GENERAL.size :])
            if kind == NEW_GENERATION:
                held = dict(attributes)
                who = held.get(GENERATION_NAME, b"").rstrip(b"\0").decode(errors="replace")
                number = int.from_bytes(held[GENERATION_ID], "big")
                yield Notice(number, self._is_about_us, who if who.isprintable() else repr(who))
                self._is_about_us = False
            elif not self._is_about_us and body[0] in FAMILY_NUMBER.values():
                self._is_about_us = next(attributes, None) == _OUR_TABLE


_OUR_TABLE = TABLE_NAME, TABLE.encode() + b"\0"


def _may_be_about_us(data: bytes) -> bool:
    """Whether these bytes have to be read: they name our table, or begin with a generation."""
    return _OUR_TABLE[1] in data or HEADER.unpack_from(data)[1] == NEW_GENERATION
