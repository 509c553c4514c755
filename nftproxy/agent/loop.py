"""The node agent's loop: events in, transactions into the kernel, until it is stopped.

One loop, with every reason to wake it in one place: events, other programs' commits, the periodic check, the end of a
pause, the signal to stop.  Each round takes all events that have come, turns them into one transaction, and applies it.

* Nothing is written before every source has delivered its first listing: a half-seen cluster deletes nothing.
* The first change after a quiet time is applied at once; changes within `min_sync_period` of the last are gathered.
* The periodic check runs every `sync_period`, however much happens in between, and at once when another program
  changes our tables.
* What the kernel holds counts as known only after a commit.  Any doubt (a refusal, a dead library, a table that has
  changed under us) means: the next transaction is a full one, retried with growing pauses until it goes in
  (loading.py).
* The two families share transactions as long as the kernel takes them.  Where it doesn't, each goes on by itself, so
  that what is refused for one never delays the other.
* On stopping, the rules stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

from nftproxy.agent.inbox import Inbox
from nftproxy.agent.loading import KernelSide, Loader, now
from nftproxy.agent.quarantine import MOST_RETRIED
from nftproxy.agent.vitals import Vitals
from nftproxy.kernel.drift import Custody
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.events import Event
from nftproxy.model.steps import Steps
from nftproxy.pipeline import Pipeline
from nftproxy.rules.ruleset import Generation
from nftproxy.rules.transaction import Installed, Transaction, join

log = logging.getLogger(__name__)

Settle = Callable[[Collection[Family]], Awaitable[None]]

FIRST_NOTE, LONGEST_NOTE = 5.0, 300.0
"""Seconds after which the log says what is still waited for at the start: at first, and at the most."""


class Agent:
    """Keeps the kernel's rules as the events say."""

    def __init__(
        self,
        pipeline: Pipeline,
        kernel: KernelSide,
        vitals: Vitals,
        custody: Custody,
        when_settled: Settle,
        *,
        sync_period: float,
        min_sync_period: float,
    ) -> None:
        """Both periods are in seconds (nftables.syncPeriod and nftables.minSyncPeriod).

        `vitals` gets all that is to be reported, for health and metrics.  `custody` knows whether others have touched
        our tables; call `noticed` when there are notifications for it.  `when_settled` is awaited after each round in
        which the kernel has come to hold what the events ask for, with the families in which it does: what else follows
        the cluster's state, follows there.
        """
        self._pipeline = pipeline
        self._kernel = kernel
        self._vitals = vitals
        self._when_settled = when_settled
        self._sync_period = sync_period
        self._min_sync_period = min_sync_period
        self.inbox = Inbox()
        self._wake = asyncio.Event()
        self._custody = custody
        self._check_due = self._rest_until = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._loader = Loader(pipeline, kernel, vitals, custody, self._stopping.is_set)
        pipeline.lap = vitals.lap

    async def run(self, sources: Mapping[str, AsyncIterator[Sequence[Event]]]) -> None:
        """Follow the sources, by name, until one ends or fails, or `stop` is called.

        The first batch of each must be all that it has: nothing is written before.
        """
        ready = {name: asyncio.Event() for name in sources}
        readers = [asyncio.create_task(self._read(source, ready[name])) for name, source in sources.items()]
        self._loader.begin()
        try:
            await self._all_ready(ready)
            self._plan_check()
            if not self._stopping.is_set() and await self._begin():
                self._rest_until = now() + self._min_sync_period
                await self._rest()
            while not self._stopping.is_set():
                self._wake.clear()
                if await self._sync():
                    self._rest_until = now() + self._min_sync_period
                self._look()  # after a commit: notifications that came during it wake nobody any more
                await self._until_woken()
                await self._rest()
        finally:
            self._loader.close()
            if self._alarm is not None:
                self._alarm.cancel()
            for reader in readers:
                reader.cancel()
            results = await asyncio.gather(*readers, return_exceptions=True)
        if self._loader.missing:
            missing = " and ".join(self._loader.missing)
            log.warning(
                "stopping before the rules of %(families)s were loaded",
                {"families": missing},
                extra={"code": Code.STOPPED_EARLY},
            )
        for result in results:
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """End `run` after the transaction that is under way; the rules stay in the kernel."""
        self._stopping.set()
        self._wake.set()

    def noticed(self) -> None:
        """Take in the kernel's notifications of commits, and wake the loop to look at them.

        During a commit of ours it isn't woken, as it looks at them after that.
        """
        self._custody.listen()
        if not self._custody.is_committing:
            self._wake.set()

    async def _read(self, source: AsyncIterator[Sequence[Event]], ready: asyncio.Event) -> None:
        try:
            async for events in source:
                self.inbox.add(events)
                self._vitals.queued(events)
                ready.set()
                if not self._wake.is_set():
                    self._wake.set()
                    await asyncio.sleep(0)  # a change is on its way before this looks for the next one
        finally:
            self.stop()

    async def _all_ready(self, ready: Mapping[str, asyncio.Event]) -> None:
        """Wait for every source; what is waited for is in health and metrics, and after a while in the log."""
        began, note = now(), FIRST_NOTE
        while not self._stopping.is_set():
            waiting = [name for name, event in ready.items() if not event.is_set()]
            self._vitals.waits_for(waiting)
            if not waiting:
                return
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), max(0.0, began + note - now()))
            except TimeoutError:
                text = "no rules are loaded yet: waiting for the first listing of %(sources)s"
                log.warning(text, {"sources": ", ".join(waiting)}, extra={"code": Code.WAITING_FOR_LISTING})
                note += min(note, LONGEST_NOTE)

    async def _rest(self) -> None:
        """Gather what comes within `min_sync_period` of the last transaction."""
        if now() < self._rest_until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._rest_until):
                    await self._stopping.wait()

    async def _until_woken(self) -> None:
        """Wait for a reason to go on; meanwhile, or when it comes too late, make the periodic check that is due."""
        self._wake_at(min(self._check_due, self._loader.due))
        await self._wake.wait()
        if now() >= self._check_due and not self._stopping.is_set():
            self._plan_check()
            await self._check()

    def _wake_at(self, due: float) -> None:
        """Wake the loop at that time, and not at the one that it was to be woken at before.

        Nearly always that is the same, that of the next periodic check: so a change needs no timer of its own.
        """
        if self._alarm is not None and self._alarm.when() != due:
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._wake.set()

    def _plan_check(self) -> None:
        self._check_due = now() + self._sync_period

    def _look(self) -> None:
        """If others have touched our tables, check them as soon as a load may follow the last one."""
        if self._loader.known and (reason := self._custody.alarm()):
            log.warning(
                "our tables will be loaded again: %(reason)s", {"reason": reason}, extra={"code": Code.TABLES_TOUCHED}
            )
            self._check_due = min(self._check_due, max(now(), self._loader.quiet_until))

    async def _begin(self) -> bool:
        """The first round where no rules of ours are in force; whether the kernel has taken them."""
        if not await self._loader.finds_nothing_in_force():
            return False
        events = self.inbox.take()
        self._vitals.taken()
        has_loaded = await self._loader.load_in_pieces(events)
        if has_loaded:
            await self._settle()
        return has_loaded

    async def _sync(self) -> bool:
        """One round: everything that has come, as one transaction; whether the kernel had any work."""
        events, changes = await self._take()
        applied = await self._change({each: changes[each] for each in self._loader.known & changes.keys()})
        if self._loader.known and (events or applied):
            # also if no rule of a family has to change
            self._vitals.applied(len(applied.text), self._loader.known, full=False)
        has_loaded = await self._loader.load_what_is_due()
        if self._loader.known and (events or has_loaded):
            await self._loader.retry_changed()
            await self._settle()
        return bool(applied) or has_loaded

    async def _take(self) -> tuple[list[Event], dict[Family, Transaction]]:
        """All events that have come, and the transactions that they ask for; others on the loop get their turns."""
        events = self.inbox.take()
        self._vitals.taken()
        steps = Steps(self._pipeline.applying(events, self._loader.known))
        for _ in steps:
            with self._vitals.interrupted():
                await asyncio.sleep(0)
        self._loader.note(self._pipeline.take_updated())
        return events, steps.result

    async def _change(self, changes: Mapping[Family, Transaction]) -> Transaction:
        """Apply a change, and return it; after a failure it isn't known what the kernel holds."""
        transaction = join(changes.values())
        if not transaction:
            return transaction
        try:
            await self._loader.commit(transaction, changes.keys())
        except (Refused, Unavailable) as error:
            is_refused = isinstance(error, Refused)
            code = Code.CHANGE_REFUSED if is_refused else Code.CHANGE_FAILED
            what = {
                "what": "the kernel refuses a change" if is_refused else "a change could not be applied",
                "error": error,
            }
            log.warning("%(what)s, loading everything instead: %(error)s", what, extra={"code": code})
            self._vitals.failed(changes.keys(), str(error), full=False)
            self._loader.lost(changes.keys())
            return Transaction()
        return transaction

    async def _settle(self) -> None:
        """Let follow what follows the rules, as far as the kernel still holds them."""
        if known := self._loader.known:
            await self._when_settled(known)

    async def _check(self) -> None:
        """Load everything if it isn't known that others have left our tables alone.

        A load looks at every element anyway.  Names that are missing are logged; they count as damage, as does whatever
        another program is known to have changed.
        """
        known = self._loader.known
        try:
            if not known:
                return
            if self._custody.is_intact(await self._kernel.generation()):
                self._vitals.checked(known)
                if await self._loader.retry_some(MOST_RETRIED):
                    await self._settle()
                return
            found = {family: await self._kernel.read_back(family) for family in known}
        except Unavailable as error:
            log.warning(
                "the periodic check failed, the next is made when it is due: %(error)s",
                {"error": error},
                extra={"code": Code.CHECK_FAILED},
            )
            return
        harmed = self._custody.harmed
        self._loader.lost(known)
        for family in known:
            is_whole = _has_all(found[family], self._pipeline.generations[family])
            if not is_whole:
                log.warning(
                    "table %(table)s is damaged, loading everything",
                    {"table": family.table},
                    extra={"code": Code.TABLE_DAMAGED},
                )
            if not is_whole or family in harmed:
                self._vitals.damaged(family)


def _has_all(installed: Installed | None, generation: Generation) -> bool:
    if installed is None:
        return False
    present = {(container.kind, container.name) for container in installed.containers}
    return present >= generation.declarations.keys()
