"""A first load in pieces: rendered Services go into the kernel while the next are rendered.

While no rules of ours are in force, no connection depends on our tables, so they may grow in many transactions.  Base
chains, and with them all hooks, come in the last transaction, which alone brings the rules into force.  This has two
uses:

* The kernel's thread works without the interpreter's lock, so a second processor loads while Python renders.
* A small piece needs little memory.

A small cluster fits into a single piece, and so into a single transaction.  An agent that ends in between leaves tables
without hooks, which no packet passes.  The next agent sees that by `Installed.has_hooks`, and replaces them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Collection, Iterable

from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.kernel.drift import LARGE, TableWatch
from nftproxy.kernel.threads import AsyncKernel
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.stages import Stage
from nftproxy.rules.pieces import pieces_of
from nftproxy.rules.transaction import Commit, Transaction, delete_transaction, join

LOAD_PIECE = 512 * 1024
"""Characters of a piece, some 11,600 elements: a piece of this size is sent.

A longer transaction is cut into small pieces, which are gathered again: a single Service port may come to 5 MB.  At the
end of each transaction, of any size, the kernel waits some 15 ms for all processors."""


class PiecewiseLoad:
    """Loads tables by successive transactions, with the hooks in the last.

    Attributes:
        size: the characters of all transactions so far.
    """

    def __init__(
        self, made: Iterable[Transaction], kernel: AsyncKernel, reporter: SyncReporter, table_watch: TableWatch
    ) -> None:
        self.size = 0
        self._made = made
        self._kernel = kernel
        self._reporter = reporter
        self._table_watch = table_watch
        self._gathered: list[Transaction] = []
        self._under_way: list[asyncio.Future[Commit]] = []

    async def load(self, families: Collection[Family]) -> None:
        """Load the tables of these families.

        All transactions are made, even if the kernel refuses an early one.

        Raises:
            Refused, Unavailable: as the kernel does.  The tables are deleted, if the kernel accepts that.
        """
        try:
            with contextlib.ExitStack() as stack:
                await self._apply_all_but_the_last(stack)
                last = self._take_piece()
                if not self._under_way:
                    stack.enter_context(self._table_watch.committing(len(last.text)))
                commits = await self._commits()
                with self._reporter.committing(last, families):  # only the hooks: the kernel has the rest
                    commits.append(await self._kernel.apply(last))
                self._table_watch.record_load(Commit.of_several(commits), families)
        except (Refused, Unavailable):
            await self._undo(families)
            raise
        finally:
            self._cancel()

    async def _apply_all_but_the_last(self, stack: contextlib.ExitStack) -> None:
        """Send each piece as soon as it is full.  The rest stays gathered: it is the last piece."""
        size = 0
        for made in itertools.chain.from_iterable(map(_split, self._made)):
            if size >= LOAD_PIECE:  # and there is more
                if not self._under_way:
                    stack.enter_context(self._table_watch.committing(LARGE))
                self._under_way.append(asyncio.ensure_future(self._kernel.apply(self._take_piece())))
                size = 0
            self._gathered.append(made)
            size += len(made.text)
            with self._reporter.interrupted():
                await asyncio.sleep(0)

    def _take_piece(self) -> Transaction:
        piece = join(self._gathered)
        self._gathered = []
        self.size += len(piece.text)
        return piece

    async def _commits(self) -> list[Commit]:
        """Wait for the pieces that are under way."""
        self._reporter.lap()
        try:
            return await asyncio.gather(*self._under_way)
        finally:
            self._reporter.lap(Stage.COMMIT)

    def _cancel(self) -> None:
        for each in self._under_way:
            each.cancel()

    async def _undo(self, families: Collection[Family]) -> None:
        """Delete incomplete tables.  If that fails they do no harm without hooks, and the next load replaces them."""
        if self._under_way:
            self._cancel()
            with contextlib.suppress(Refused, Unavailable):
                await self._kernel.apply(join(map(delete_transaction, families)))


def _split(made: Transaction) -> list[Transaction]:
    return [made] if len(made.text) <= LOAD_PIECE else pieces_of(made)
