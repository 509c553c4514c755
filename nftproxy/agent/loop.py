"""The node agent's loop: events in, transactions into the kernel, until it is stopped.

A single loop, with every reason to wake it in the same place: events, other programs' commits, the periodic check, the
end of a pause, the signal to stop.  Each round takes all events that have come, and applies them as a transaction.

* Nothing is written before every source has delivered its first listing: a half-seen cluster deletes nothing.
* The first change after a quiet time is applied at once.  Changes within `min_sync_period` of the last are gathered.
* The periodic check runs every `sync_period`, however much happens in between, and at once when another program
  changes our tables.
* The kernel's contents count as known only after a commit.  After any doubt (a refusal, a dead library, a table that
  another program changed) the next transaction is a full load, retried with backoff until the kernel accepts it
  (loading.py).
* Small changes come before large ones, which wait for their turns (turns.py), and go between their parts (rounds.py).
* The two families share transactions as long as the kernel accepts them.  After a refusal each family is loaded by
  itself, so that a refusal for one family never delays the other.
* On stopping, the rules stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence

from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.agent.sync.inbox import Inbox
from nftproxy.agent.sync.loading import Loader, now
from nftproxy.agent.sync.quarantine import MOST_RETRIED
from nftproxy.agent.sync.rounds import Rounds
from nftproxy.agent.sync.turns import Expense, Turns, displaced
from nftproxy.kernel.drift import TableWatch
from nftproxy.kernel.process_resources import trim_memory
from nftproxy.kernel.threads import AsyncKernel
from nftproxy.logs import warn
from nftproxy.model.addresses import Family
from nftproxy.model.backoff import Backoff
from nftproxy.model.codes import Code
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, ObjectKey, Service
from nftproxy.model.texts import first_of
from nftproxy.pipeline import Pipeline
from nftproxy.rules.ruleset import Generation
from nftproxy.rules.transaction import Installed

log = logging.getLogger(__name__)

Settle = Callable[[Collection[Family]], Awaitable[float]]

BETWEEN_NOTES = Backoff(5.0, 300.0)
"""The pauses before log lines about the listings that are missing at the start."""

SHORT_REST = 0.01
"""Seconds between transactions of changes that were gathered together: the default of `nftables.minSyncPeriod`."""

EXPENSE_EVERY = 60.0
"""Least seconds between two log lines about large changes."""


class SyncLoop:
    """Keeps the kernel's rules in step with the events."""

    def __init__(
        self,
        pipeline: Pipeline,
        kernel: AsyncKernel,
        reporter: SyncReporter,
        table_watch: TableWatch,
        when_settled: Settle,
        *,
        sync_period: float,
        min_sync_period: float,
        processor_time: Callable[[], float] = time.process_time,
    ) -> None:
        """Both periods are in seconds (nftables.syncPeriod and nftables.minSyncPeriod).

        `reporter` passes the loop's work on to health and metrics.  `table_watch` tells whether another program touched
        our tables: call `read_commits` when it has notifications.  `when_settled` is awaited after each round, with the
        families for which the kernel now holds the rules for the events, and returns the time at which it must be
        called again, even if nothing changes (followers.py).
        `processor_time` returns the seconds that this process has computed.
        """
        self._pipeline = pipeline
        self._kernel = kernel
        self._reporter = reporter
        self._when_settled = when_settled
        self._sync_period = sync_period
        self._min_sync_period = min_sync_period
        self.inbox = Inbox()
        self._wake = asyncio.Event()
        self._table_watch = table_watch
        self._check_due = self._rest_until = 0.0
        self._processor_time = processor_time
        self._turns = Turns(pipeline.size_of)
        self._turn_due = self._settle_due = float("inf")
        self._has_postponed = False
        self._has_news = self._has_let_in = False
        self._spent_beside = 0.0
        """The seconds that small changes took between the parts of the present change."""
        self._expected: dict[ObjectKey, tuple[list[Service | EndpointSlice], int]] = {}
        """The elements that waiting Services may come to, each with the objects that have changed."""
        self._expenses = ExpenseLog()
        self._alarm: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._now: Callable[[], float] = now
        self._loader = Loader(pipeline, kernel, reporter, table_watch, self._stopping.is_set)
        self._rounds = Rounds(pipeline, self._loader, reporter)
        pipeline.lap = reporter.lap

    async def run(self, sources: Mapping[str, AsyncGenerator[Sequence[Event]]]) -> None:
        """Follow the sources, by name, until one ends or fails, or `stop` is called.

        The first batch of each source must be its whole listing.  Nothing is written before all have come.

        Raises:
            RuntimeError: a source was cancelled, and not by this method.
        """
        self._now = asyncio.get_running_loop().time  # asking for the loop is a system call each time
        ready = {name: asyncio.Event() for name in sources}
        readers = [asyncio.create_task(self._read(source, ready[name])) for name, source in sources.items()]
        self._loader.start()
        try:
            await self._all_ready(ready)
            self._plan_check()
            if not self._stopping.is_set() and await self._begin():
                self._rest_until = self._now() + self._min_sync_period
                await self._rest()
            while not self._stopping.is_set():
                self._wake.clear()
                if await self._sync():
                    self._rest_until = self._now() + self._rest_after()
                self._react_to_drift()  # after a commit: notifications that came during it wake nobody any more
                await self._until_woken()
                await self._rest()
        finally:
            self._loader.close()
            if self._alarm is not None:
                self._alarm.cancel()
            cancelled = [name for name, reader in zip(sources, readers, strict=True) if reader.cancelled()]
            for reader in readers:
                reader.cancel()
            results = await asyncio.gather(*readers, return_exceptions=True)
        if self._loader.missing:
            missing = " and ".join(self._loader.missing)
            warn(Code.STOPPED_EARLY, "stopping before the rules of %(families)s were loaded", families=missing)
        for result in results:
            if isinstance(result, Exception):
                raise result
        if cancelled:  # a defect, which must not look like the end of an agent that was stopped
            raise RuntimeError(f"cancelled, and not by the agent: {', '.join(cancelled)}")

    def _rest_after(self) -> float:
        """Return the seconds to wait after a transaction.  Changes whose turn has come are gathered already."""
        is_gathered = self._has_postponed and self._turn_due <= self._now()
        return min(SHORT_REST, self._min_sync_period) if is_gathered else self._min_sync_period

    def stop(self) -> None:
        """End `run` after the transaction that is under way.  The rules stay in the kernel."""
        self._stopping.set()
        self._wake.set()

    def read_commits(self) -> None:
        """Read the kernel's notifications of commits, and wake the loop to judge them.

        During a commit of ours the loop isn't woken: it judges them after the commit.
        """
        self._table_watch.read_notices()
        if not self._table_watch.is_committing:
            self._wake.set()

    async def _read(self, source: AsyncGenerator[Sequence[Event]], ready: asyncio.Event) -> None:
        try:
            async with contextlib.aclosing(source):  # even if it waits between two batches: its connections end here
                async for events in source:
                    self.inbox.add(events, self._now())
                    self._has_news = True
                    self._reporter.queued(events)
                    del events  # a listing is large, and the next event may be long in coming
                    ready.set()
                    if not self._wake.is_set():
                        self._wake.set()
                        await asyncio.sleep(0)  # let the loop apply this change before the next event is read
        finally:
            self.stop()

    async def _all_ready(self, ready: Mapping[str, asyncio.Event]) -> None:
        """Wait for every source.  Health, metrics, and after a while the log name the missing listings."""
        notes, due = 1, self._now() + BETWEEN_NOTES.pause(1)
        while not self._stopping.is_set():
            waiting = [name for name, event in ready.items() if not event.is_set()]
            self._reporter.waits_for(waiting)
            if not waiting:
                return
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), max(0.0, due - self._now()))
            except TimeoutError:
                text = "no rules are loaded yet: waiting for the first listing of %(sources)s"
                warn(Code.WAITING_FOR_LISTING, text, sources=", ".join(waiting))
                notes += 1
                due += BETWEEN_NOTES.pause(notes)

    async def _rest(self) -> None:
        """Wait until `min_sync_period` after the last transaction, while events gather."""
        if self._now() < self._rest_until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._rest_until):
                    await self._stopping.wait()

    async def _until_woken(self) -> None:
        """Wait for a reason to go on, and make the periodic check if it is due by then."""
        settle_due = self._settle_due if self._loader.known else float("inf")
        self._wake_at(min(self._check_due, self._loader.due, self._turn_due, settle_due))
        await self._wake.wait()
        if self._now() >= self._check_due and not self._stopping.is_set():
            self._plan_check()
            await self._check()

    def _wake_at(self, due: float) -> None:
        """Set the loop's alarm to a time.

        Usually the alarm is already set to the time of the next periodic check, and stays.  So a change needs no new
        timer.
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
        self._check_due = self._now() + self._sync_period

    def _react_to_drift(self) -> None:
        """If another program touched our tables, make the check due as soon as a load may follow the last one."""
        if self._loader.known and (reason := self._table_watch.reason_to_load()):
            warn(Code.TABLES_TOUCHED, "our tables will be loaded again: %(reason)s", reason=reason)
            self._check_due = min(self._check_due, max(self._now(), self._loader.quiet_until))

    async def _begin(self) -> bool:
        """Make the first load, in pieces, if no rules of ours are in force.  Return whether the kernel accepted it."""
        if not await self._loader.finds_nothing_in_force():
            return False
        events = self.inbox.pop_all()
        self._reporter.taken()
        has_loaded = await self._loader.load_in_pieces(events)
        self._reporter.ingested()
        if has_loaded:
            await self._settle()
        return has_loaded

    async def _sync(self) -> bool:
        """Apply the events whose turn it is.  Return whether the kernel had any work."""
        has_let_in, self._has_let_in = self._has_let_in, False
        began, events = self._processor_time(), self._next_events()
        self._reporter.taken()
        size, general = 0, [each for each in events if _concerns_all(each)]
        if general:  # by themselves, as they have no parts, and their cost is nobody's
            size = await self._rounds.apply(general)
            began = self._processor_time()
        self._spent_beside = 0.0
        own = [each for each in events if not _concerns_all(each)] if general else events
        if own or not general:
            size += await self._rounds.apply(own, self._let_others_in)
        self._reporter.ingested()
        if failure := self._rounds.pop_failure():
            await self._report_failed_change(failure.families, failure.error)
            self._loader.mark_unknown(failure.families)
        spent = self._processor_time() - began - self._spent_beside
        if expense := self._turns.charge(spent, self._now()):
            self._expenses.record(expense, self._now())
        waiting = self.inbox.waiting(self._pipeline.state.service_of)
        self._turn_due = self._turns.next_due(waiting, self._now(), self._coming(waiting)) if waiting else float("inf")
        if self._loader.known and (events or size or waiting or has_let_in):
            # even if no rule of a family has to change
            self._reporter.applied(size, self._loader.known, full=False)
        has_loaded = await self._loader.load_what_is_due()
        if self._loader.known and (events or has_loaded or self._settle_due <= self._now()):
            await self._loader.retry_changed()
            await self._settle()
        if any(isinstance(each, Listed) for each in general):
            events.clear()  # most objects were known, and stay as they were
            general.clear()
            trim_memory()
        return bool(size) or has_loaded

    async def _let_others_in(self) -> None:
        """Apply small changes of other namespaces that have come while a change is being made in parts."""
        if not self._has_news or not self._pipeline.is_compiling:
            return
        self._has_news = False
        began, service_of = self._processor_time(), self._pipeline.state.service_of
        waiting = self.inbox.waiting_endpoints(service_of)
        chosen = self._turns.choose_beside(waiting, self._now(), self._expected_sizes(waiting))
        if chosen:
            events = self.inbox.pop_of(chosen, service_of)
            size = await self._rounds.apply(events)
            self._reporter.applied_between(events, size, self._loader.known)
            self._has_let_in = True
        spent = self._processor_time() - began
        self._turns.charge_beside(spent if chosen else 0.0, self._now())
        self._spent_beside += spent

    def _next_events(self) -> list[Event]:
        """Take the events whose turn it is from the inbox."""
        state = self._pipeline.state
        waiting = self.inbox.waiting(state.service_of)
        chosen = self._turns.choose(waiting, self._now(), self.inbox.deleted(), self._coming(waiting))
        taken = set(chosen)
        postponed = {key: since for key, since in waiting.items() if key not in taken}
        events = self.inbox.pop_except(postponed.keys(), state.service_of)
        self._reporter.postponed(postponed, self._now())
        self._has_postponed = bool(postponed)
        if not postponed:
            return events
        coming = [event.object for event in events if isinstance(event, Put) and isinstance(event.object, Service)]
        gone = displaced(coming, self.inbox.services(), state.services) if coming else []
        return [*(Removed(Service, key) for key in gone), *events]

    def _coming(self, waiting: Collection[ObjectKey]) -> dict[ObjectKey, int]:
        """Return the elements that waiting Services may come to.  A single Service needs no turn."""
        if len(waiting) <= 1:
            self._expected = {}
            return {}
        return self._expected_sizes(waiting)

    def _expected_sizes(self, waiting: Collection[ObjectKey]) -> dict[ObjectKey, int]:
        known, self._expected = self._expected, {}
        objects = self.inbox.objects_by_service()
        for key in waiting:
            changed = objects.get(key, [])
            before = known.get(key)
            if before is None or before[0] != changed:
                before = changed, self._pipeline.state.expected_size(key, changed)
            self._expected[key] = before
        return {key: size for key, (_, size) in self._expected.items()}

    async def _report_failed_change(self, families: Collection[Family], error: Refused | Unavailable) -> None:
        """Report a change that was not applied.  A Service that its refusal names is quarantined if it is the cause."""
        self._reporter.failed(families, str(error), full=False)
        if isinstance(error, Unavailable):
            text = "a change could not be applied, loading everything instead: %(error)s"
            warn(Code.CHANGE_FAILED, text, of="", error=error)
            return
        culprit = await self._loader.quarantine_named(families, error)
        rest = f"everything but Service {culprit}" if culprit else "everything instead"
        text = "the kernel refuses a change, loading %(rest)s: %(error)s"
        warn(Code.CHANGE_REFUSED, text, of=culprit.namespace if culprit else "", rest=rest, error=error)

    async def _settle(self) -> None:
        """Call `when_settled` with the families whose rules the kernel still holds."""
        if known := self._loader.known:
            self._settle_due = await self._when_settled(known)

    async def _check(self) -> None:
        """Load everything unless it is certain that no other program touched our tables.

        A load compares every element anyway.  Missing names are logged.  They count as damage, and so does any change
        that another program is known to have made.
        """
        known = self._loader.known
        try:
            if not known:
                return
            self._table_watch.read_notices()  # of commits while this process was stopped, or just before
            self._react_to_drift()
            if self._table_watch.is_intact(await self._kernel.generation()):
                self._reporter.checked(known)
                if await self._loader.retry_some(MOST_RETRIED):
                    await self._settle()
                return
            found = {family: await self._kernel.read_back(family) for family in known}
        except Unavailable as error:
            warn(
                Code.CHECK_FAILED, "the periodic check failed; the next check follows as usual: %(error)s", error=error
            )
            return
        missing = {family: _missing(found[family], self._pipeline.generations[family]) for family in known}
        harmed = {family for family in known if missing[family] or family in self._table_watch.harmed}
        self._loader.mark_unknown(known, by_others=harmed, is_check=True)
        for family in harmed:
            if missing[family]:
                text = "table %(table)s is damaged, loading everything: %(missing)s missing"
                warn(Code.TABLE_DAMAGED, text, table=family.table, missing=missing[family])
            self._reporter.damaged(family)


def _concerns_all(event: Event) -> bool:
    """Return whether the cost of an event isn't that of a Service: a listing, the Node, this machine's addresses."""
    match event:
        case Put(object=Service() | EndpointSlice()):
            return False
        case Removed(kind=kind):
            return kind not in (Service, EndpointSlice)
    return True


class ExpenseLog:
    """Logs large changes, with at most a line in `EXPENSE_EVERY` seconds."""

    def __init__(self) -> None:
        self._next = float("-inf")

    def record(self, expense: Expense, at: float) -> None:
        """Log a large change, unless another was logged a short while ago."""
        if at >= self._next:
            self._next = at + EXPENSE_EVERY
            warn(
                Code.CHANGES_POSTPONED,
                "a change of Service %(service)s took %(seconds).1f s: the next change of that kind in its namespace "
                "waits for %(rest).0f s, and others go first",
                service=expense.service,
                seconds=expense.seconds,
                rest=expense.rest,
            )


def _missing(installed: Installed | None, generation: Generation) -> str:
    """Return the declarations that the kernel lacks, "" if it has all."""
    if installed is None:
        return "all of it is"
    present = {(container.kind, container.name) for container in installed.containers}
    names = [f"{kind.value} {name}" for kind, name in generation.declarations if (kind, name) not in present]
    return f"{first_of(names)} {'are' if len(names) > 1 else 'is'}" if names else ""
