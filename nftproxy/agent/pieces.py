"""A first load in pieces: what has been rendered goes into the kernel while the next Services are rendered.

Where nothing of ours is in force nobody depends on our tables, so they may grow in many transactions.  Base chains, and
with them all hooks, come in the last, which alone brings the rules into force.  This has two uses:

* libnftables works in its own thread without the interpreter's lock, so a second processor loads while Python renders.
* libnftables takes some 45 bytes of memory for each byte of text, and a small text needs little of it.

What fits into one piece is one transaction.  An agent that ends in between leaves tables without hooks, which no packet
passes; `Installed.has_hooks` shows them to the next one, which replaces them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from typing import Protocol

from nftproxy.agent.vitals import Vitals
from nftproxy.kernel.drift import LARGE, Custody
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.stages import Stage
from nftproxy.rules.transaction import Commit, Transaction, delete_transaction, join

PIECE = 128 * 1024
"""Characters of a transaction, some 2,900 elements, from which on it doesn't wait for more.

libnftables and kernel take less time for 10,000 Services of 10 endpoints in small pieces (1.7 s of CPU in pieces of
64 KiB, 2.0 s in pieces of 256 KiB, 2.4 s in one)."""


class Applies(Protocol):
    """What takes the pieces."""

    async def apply(self, transaction: Transaction) -> Commit:
        """Apply a transaction, after all that it was given before; raises Refused or Unavailable."""


class Pieces:
    """Loads tables that have no hooks by transactions that come one by one, the hooks in the last of them.

    Attributes:
        size: how many characters that was.
    """

    def __init__(self, made: Iterable[Transaction], kernel: Applies, vitals: Vitals, custody: Custody) -> None:
        self.size = 0
        self._made = made
        self._kernel = kernel
        self._vitals = vitals
        self._custody = custody
        self._gathered: list[Transaction] = []
        self._under_way: list[asyncio.Future[Commit]] = []

    async def load(self, families: Collection[Family]) -> None:
        """Load all of it, into the tables of these families.

        All transactions are made, even if the kernel refuses an early one.

        Raises:
            Refused, Unavailable: as the kernel does; nothing stays, as far as the kernel takes that.
        """
        try:
            with contextlib.ExitStack() as stack:
                await self._apply_all_but_the_last(stack)
                last = self._taken()
                if not self._under_way:
                    stack.enter_context(self._custody.during(len(last.text)))
                commits = await self._commits()
                with self._vitals.committing(last, families):  # the others are in the kernel: these are the hooks
                    commits.append(await self._kernel.apply(last))
                self._custody.loaded(Commit.of_several(commits), families)
        except (Refused, Unavailable):
            await self._undo(families)
            raise
        finally:
            self._cancel()

    async def _apply_all_but_the_last(self, stack: contextlib.ExitStack) -> None:
        """Let the kernel begin with each piece when it is there; what is gathered at the end is the last."""
        size = 0
        for made in self._made:
            if size >= PIECE:  # and there is one more
                if not self._under_way:
                    stack.enter_context(self._custody.during(LARGE))
                self._under_way.append(asyncio.ensure_future(self._kernel.apply(self._taken())))
                size = 0
            self._gathered.append(made)
            size += len(made.text)
            with self._vitals.interrupted():
                await asyncio.sleep(0)

    def _taken(self) -> Transaction:
        piece = join(self._gathered)
        self._gathered = []
        self.size += len(piece.text)
        return piece

    async def _commits(self) -> list[Commit]:
        """Wait for all that is under way."""
        self._vitals.lap()
        try:
            return await asyncio.gather(*self._under_way)
        finally:
            self._vitals.lap(Stage.COMMIT)

    def _cancel(self) -> None:
        for each in self._under_way:
            each.cancel()

    async def _undo(self, families: Collection[Family]) -> None:
        """Leave no table behind that isn't whole; without hooks it harms nobody, and the next load replaces it."""
        if self._under_way:
            self._cancel()
            with contextlib.suppress(Refused, Unavailable):
                await self._kernel.apply(join(map(delete_transaction, families)))
