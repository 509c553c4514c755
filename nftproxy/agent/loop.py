"""The node agent's loop: events in, transactions into the kernel, until told to stop.

One loop, and every reason to wake it in sight: events, others' commits, the periodic check, the end of a pause, the
signal to stop.  Each round takes all events that have come, turns them into one transaction, and applies it.

* Nothing is written before every source has told all it has: a half-seen cluster deletes nothing.
* The first change after a quiet time is applied at once; changes within `min_sync_period` of the last are gathered.
* The periodic check is made every `sync_period`, however much happens in between, and at once when somebody else
  touches our tables.
* What the kernel holds counts as known only after a commit.  Any doubt (a refusal, a dead library, a table that has
  changed under us) means: the next transaction is a full one, tried again with growing pauses until it goes in.  Where
  that is refused, the next one replaces our tables: somebody may have declared a set of ours in another way.  Where
  that is refused too, those Services are found that it is refused for, and set aside: all others get their rules.
  Who is set aside is tried again when it changes, and every `sync_period`.
* On stopping, the rules stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Iterable, Sequence
from enum import IntEnum
from typing import Protocol

import tenacity

from nftproxy.agent.quarantine import find_culprits
from nftproxy.agent.vitals import Vitals
from nftproxy.kernel.drift import Custody
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.events import Event
from nftproxy.model.objects import ObjectKey
from nftproxy.pipeline import Pipeline
from nftproxy.rules.ruleset import Generation
from nftproxy.rules.transaction import Commit, Installed, Transaction

log = logging.getLogger(__name__)
FIRST_PAUSE = 0.1
"""Seconds before a failed transaction is tried again; doubles from there (client-go's limiters start as low)."""
LONGEST_PAUSE = 30.0
"""Seconds at the most between two tries: no longer than the syncPeriod of a default configuration."""

MOST_AGAIN = 20
"""Services that were set aside and are tried again at a periodic check."""

SHORTEST_QUIET, QUIET = 1.0, 4.0
"""How long after a load what others do may not cause the next: so many times as long as that took, and the least in
seconds.  However often somebody changes our tables, to mend them takes a fifth of a CPU."""


class Remedy(IntEnum):
    """What a load does beside loading; the next of these where it is refused, and then again the first."""

    NOTHING = 0
    REPLACE = 1
    SET_ASIDE = 2


class KernelSide(Protocol):
    """What the agent needs of the kernel (libnftables.py has it; the agent's tests have one that fails on demand)."""

    async def apply(self, transaction: Transaction) -> Commit:
        """Apply a transaction as a whole, and tell the generations around it; raises Refused or Unavailable."""

    async def check(self, transaction: Transaction) -> None:
        """Raise Refused if the kernel would refuse a transaction, or Unavailable; nothing happens."""

    async def generation(self) -> int:
        """The ruleset's generation; raises Unavailable."""

    async def read_back(self, family: Family) -> Installed | None:
        """Our table of one family by name, None if there is none; raises Unavailable."""


class Agent:
    """Keeps the kernel's rules as the events say."""

    def __init__(
        self,
        pipeline: Pipeline,
        kernel: KernelSide,
        vitals: Vitals,
        custody: Custody,
        when_settled: Callable[[], Awaitable[None]],
        *,
        sync_period: float,
        min_sync_period: float,
    ) -> None:
        """Both periods are in seconds (nftables.syncPeriod and nftables.minSyncPeriod).

        `vitals` is told of all work, for health and metrics.  `custody` knows whether others have touched our tables;
        call `noticed` when it has something to hear.  `when_settled` is awaited after each round in which the
        kernel has come to hold what the events ask for: what else follows the cluster's state, follows there.
        """
        self._pipeline = pipeline
        self._kernel = kernel
        self._vitals = vitals
        self._when_settled = when_settled
        self._sync_period = sync_period
        self._min_sync_period = min_sync_period
        self._pending: list[Event] = []
        self._wake = asyncio.Event()
        self._is_known = False
        self._refusals = 0  # of attempts to load everything, since one was not
        self._custody = custody
        self._check_due = 0.0
        self._quiet_until = 0.0
        self._stopping = asyncio.Event()

    async def run(self, *sources: AsyncIterator[Sequence[Event]]) -> None:
        """Follow the sources until one ends or fails, or `stop` is called.

        The first batch of each must be all that it has to tell: nothing is written before.
        """
        ready = [asyncio.Event() for _ in sources]
        readers = [asyncio.create_task(self._read(*pair)) for pair in zip(sources, ready, strict=True)]
        try:
            await self._all_ready(ready)
            self._plan_check()
            while not self._stopping.is_set():
                self._wake.clear()
                if await self._sync():
                    await self._pause(self._min_sync_period)
                self._look()  # after a commit: what was told during it wakes nobody any more
                await self._until_woken()
        finally:
            for reader in readers:
                reader.cancel()
            results = await asyncio.gather(*readers, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    def stop(self) -> None:
        """End `run` after the transaction that is under way; the rules stay in the kernel."""
        self._stopping.set()
        self._wake.set()

    def noticed(self) -> None:
        """Take in what the kernel tells of commits, and wake the loop to look at it."""
        self._custody.listen()
        self._wake.set()

    async def _read(self, source: AsyncIterator[Sequence[Event]], ready: asyncio.Event) -> None:
        try:
            async for events in source:
                self._pending.extend(events)
                self._vitals.queued(events)
                ready.set()
                self._wake.set()
        finally:
            self.stop()

    async def _all_ready(self, ready: Sequence[asyncio.Event]) -> None:
        while not self._stopping.is_set() and not all(event.is_set() for event in ready):
            self._wake.clear()
            await self._wake.wait()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _until_woken(self) -> None:
        """Wait for a reason to go on; meanwhile, or when it comes too late, make the periodic check that is due."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.0, self._check_due - _now()))
        if _now() >= self._check_due and not self._stopping.is_set():
            self._plan_check()
            await self._check()

    def _plan_check(self) -> None:
        self._check_due = _now() + self._sync_period

    def _look(self) -> None:
        """If others have touched our tables, check them as soon as a load may follow the last one."""
        if self._is_known and (reason := self._custody.alarm()):
            log.warning("our tables are looked at: %s", reason)
            self._check_due = min(self._check_due, max(_now(), self._quiet_until))

    async def _sync(self) -> bool:
        """One round: everything that has come, as one transaction; whether there was any."""
        events, transaction = await self._take()
        has_work = bool(transaction) or not self._is_known
        if self._is_known and transaction:
            await self._change(transaction)
        elif self._is_known and events:
            self._vitals.applied(transaction, full=False)  # they alter no rule, and need not wait for one
        if not self._is_known:
            await self._load()
        if self._is_known and (events or has_work):
            await self._try_again(self._pipeline.accepted())
            await self._when_settled()
        return has_work

    async def _change(self, transaction: Transaction) -> None:
        """Apply a change; after a refusal it isn't known what the kernel holds."""
        try:
            await self._commit(transaction)
            self._vitals.applied(transaction, full=False)
        except (Refused, Unavailable) as error:
            log.warning("a change was refused, loading everything instead: %s", error)
            self._vitals.failed(full=False)
            self._is_known = False

    async def _commit(self, transaction: Transaction) -> None:
        with self._custody.during(transaction):
            self._custody.changed(await self._kernel.apply(transaction))

    async def _take(self) -> tuple[list[Event], Transaction]:
        """All events that have come, and the transaction that they ask for; others on the loop get their turns."""
        events, self._pending = self._pending, []
        self._vitals.taken()
        steps = self._pipeline.applying(events)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return events, end.value
            await asyncio.sleep(0)

    async def _load(self) -> None:
        """Bring the kernel to the present generation whatever it holds, trying until it works or `stop` is called."""
        try:
            async for attempt in tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception_type((Refused, Unavailable)),
                wait=tenacity.wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE),
                stop=lambda _: self._stopping.is_set(),
                sleep=self._pause,
                before_sleep=self._note_failure,
                reraise=True,
            ):
                with attempt:
                    await self._load_once()
        except (Refused, Unavailable) as error:
            log.error("loading the rules failed, and this is told to stop: %s", error)

    async def _load_once(self) -> None:
        await self._take()
        remedy = Remedy(self._refusals % len(Remedy))
        if remedy is Remedy.SET_ASIDE:
            await self._set_aside()
        installed = {family: await self._kernel.read_back(family) for family in self._pipeline.generations}
        if remedy is Remedy.REPLACE:
            installed = {family: found and Installed() for family, found in installed.items()}
        transaction = self._pipeline.full_transaction(installed)
        began = _now()
        with self._custody.during(transaction):
            self._custody.loaded(await self._kernel.apply(transaction))
        self._quiet_until = _now() + max(SHORTEST_QUIET, QUIET * (_now() - began))
        self._is_known = True
        self._refusals = 0
        self._vitals.applied(transaction, full=True)
        counts = (generation.element_count() for generation in self._pipeline.generations.values())
        log.info("loaded the rules: %(elements)d elements", {"elements": sum(counts)})

    def _note_failure(self, state: tenacity.RetryCallState) -> None:
        self._vitals.failed(full=True)
        error = state.outcome.exception() if state.outcome is not None else None
        self._refusals = self._refusals + 1 if isinstance(error, Refused) else 0
        log.error("loading the rules failed, trying again: %s", error)

    async def _set_aside(self) -> None:
        """Find the Services that rules are refused for, and leave them out.

        Raises:
            Refused: rules are refused that have no Service at all.
            Unavailable: the kernel can't be asked.
        """
        if await self._would_take(()):
            return
        for suspects in self._pipeline.suspects():
            if await self._would_take(suspects):
                break
        else:
            raise Refused("rules are refused also without any Service")
        self._pipeline.leave_out(await self._found(find_culprits(suspects)))

    async def _found(self, search: Generator[Collection[ObjectKey], bool, list[ObjectKey]]) -> list[ObjectKey]:
        """What a search finds whose questions are put to the kernel."""
        try:
            left_out = next(search)
            while True:
                left_out = search.send(await self._would_take(left_out))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # a StopIteration's value has no type

    async def _would_take(self, left_out: Collection[ObjectKey]) -> bool:
        """Whether the kernel would take rules without these Services."""
        if self._stopping.is_set():
            raise Unavailable("told to stop")
        try:
            await self._kernel.check(self._pipeline.trial(left_out))
        except Refused:
            return False
        return True

    async def _try_again(self, services: Iterable[ObjectKey]) -> None:
        """Let Services in again, one by one; those that the kernel still refuses stay aside, and it is told why."""
        for service in services:
            known = self._pipeline.set_aside[service]
            transaction = self._pipeline.let_in(service)
            try:
                await self._commit(transaction)
            except Refused as error:
                self._pipeline.keep_out(service, str(error))
                if str(error) != known:
                    log.error("Service %s is set aside: the kernel refuses its rules: %s", service, error)
            except Unavailable as error:
                log.warning("a change was refused, loading everything instead: %s", error)
                self._is_known = False
                self._wake.set()
                return
            else:
                log.info("Service %s is no longer set aside", service)

    async def _check(self) -> None:
        """Load everything if it isn't known that others have left our tables alone.

        To look whether they are as they were costs as much as to load them.  Names that are missing are told, and
        counted as damage.
        """
        try:
            if self._custody.is_intact(await self._kernel.generation()):
                self._vitals.checked()
                if self._pipeline.set_aside:
                    await self._try_again(list(self._pipeline.set_aside)[:MOST_AGAIN])
                    await self._when_settled()
                return
            found = {family: await self._kernel.read_back(family) for family in self._pipeline.generations}
        except Unavailable as error:
            log.warning("the periodic check failed: %s", error)
            return
        self._is_known = False
        self._wake.set()
        for family, generation in self._pipeline.generations.items():
            if not _has_all(found[family], generation):
                log.warning("table %s is not as it was left, loading everything", family.table)
                self._vitals.damaged(family)


def _now() -> float:
    """The loop's own time, in seconds."""
    return asyncio.get_running_loop().time()


def _has_all(installed: Installed | None, generation: Generation) -> bool:
    if installed is None:
        return False
    present = {(container.kind, container.name) for container in installed.containers}
    return present >= generation.declarations.keys()
