"""Makes the kernel hold the generations, from any state of its tables and after any refusal.

All families are loaded in one transaction, or in pieces while no rules of ours are in force (piecewise_load.py).  If
the kernel refuses the transaction, each family is loaded by itself from then on, and retried with backoff until the
kernel accepts it.  The other family doesn't wait for it.  The extra step of a retry depends on the number of refusals
in a row:

* Load again, as another program may have changed the table meanwhile.
* Replace the table, as another program may have declared a set of ours differently.
* Find the Services whose rules the kernel refuses, and quarantine them (quarantine.py).  All other Services get rules.

If a refusal names an element, its Service is tried alone before all that.  If the kernel refuses it alone, the next
load is without it.

libnftables runs in this process.  It sees our tables only, but a newer nft may have added a set to one that crashes it.
So before the first load, while the cluster is being listed, a child process tries whether it crashes.

Before any retry the kernel checks the table without any Service.  If it refuses even that, for example because another
program owns the table, the retry ends there: it costs the same however many Services there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from enum import IntEnum
from typing import TypeGuard

import msgspec

from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.agent.sync.piecewise_load import LOAD_PIECE, PiecewiseLoad
from nftproxy.agent.sync.quarantine import Quarantine
from nftproxy.kernel.child_process import ChildDied
from nftproxy.kernel.drift import TableWatch
from nftproxy.kernel.threads import AsyncKernel
from nftproxy.logs import inform, warn
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.backoff import Backoff
from nftproxy.model.codes import Code
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.events import Event
from nftproxy.model.fairness import first_in_turn
from nftproxy.model.objects import ObjectKey
from nftproxy.model.stages import Stage
from nftproxy.model.texts import first_of
from nftproxy.pipeline import Pipeline
from nftproxy.rules.pieces import PIECE, pieces_of, split_refill
from nftproxy.rules.ruleset import Element
from nftproxy.rules.transaction import Commit, Installed, Transaction, join

log = logging.getLogger(__name__)

BACKOFF = Backoff(0.1, 30.0)
"""The pauses before retries of a load: client-go's limiters start as low, and the longest is the default syncPeriod."""

SHORTEST_QUIET, QUIET = 1.0, 4.0
"""Changes by other programs cause no load until `QUIET` times the duration of the last load have passed, and at least
`SHORTEST_QUIET` seconds.  So repairs take at most a fifth of a CPU, however often our tables are changed."""


BUFFER_FOR_TEXT = 2
"""A transaction fits into one message if `net.core.wmem_max` has this number of bytes for each of its characters.

The kernel doubles it.  A character of declarations becomes 3 bytes, of elements up to 2.6 (`cluster-ips`)."""

MOST_NAMED = 3
"""Refusals of a load in a row of which each may quarantine the Service that it names.  Many are found sooner by
bisection, since each of these refusals costs a load."""


class Remedy(IntEnum):
    """The extra step before a load.  Each refusal in a row moves on to the next step, then wraps around."""

    NOTHING = 0
    REPLACE = 1
    QUARANTINE = 2


_REPLACED = Installed()
"""A table that the kernel has refused to load over, so that it is replaced."""


class _Table:
    """The progress of loading a family."""

    def __init__(self, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        self.family = quarantine.family
        self.name = FAMILY_NAMES[self.family]
        self.is_harmed = False  # another program has changed the table since it was known
        self.is_suspect = False  # another program may have done so, and no change of the cluster has come since
        self.due = 0.0
        self.failures = 0  # in a row, of attempts to load it by itself
        self.refusals = 0  # in a row, of the same

    def failed(self, *, was_refused: bool) -> float:
        """Note a failed attempt, and return the seconds until the next."""
        self.failures += 1
        pause = BACKOFF.pause(self.failures)
        self.refusals = self.refusals + 1 if was_refused else 0
        self.due = now() + pause
        return pause


class Loader:
    """Loads tables, applies changes to them, and keeps account of the families with known tables."""

    def __init__(
        self,
        pipeline: Pipeline,
        kernel: AsyncKernel,
        reporter: SyncReporter,
        table_watch: TableWatch,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._pipeline = pipeline
        self._kernel = kernel
        self._reporter = reporter
        self._table_watch = table_watch
        self._is_stopping = is_stopping
        self._tables = {family: _Table(Quarantine(pipeline, family)) for family in pipeline.generations}
        self.known = frozenset[Family]()
        """The families with tables that are known to hold the pipeline's generation."""
        self._child_check: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._has_loaded = False
        self._is_refused_together = False
        self._installed: dict[Family, Installed | None] = {}
        self._updated = set[ObjectKey]()
        """Services that have changed since they were passed to the quarantines."""
        self.quiet_until = 0.0

    @property
    def due(self) -> float:
        """The loop's time when the next load is due, infinite if all families are known."""
        return min([table.due for table in self._unknown()], default=float("inf"))

    @property
    def missing(self) -> list[str]:
        """The names of the families that are not known."""
        return [table.name for table in self._unknown()]

    def _unknown(self) -> list[_Table]:
        if len(self.known) == len(self._tables):  # as before nearly every change
            return []
        return [table for family, table in self._tables.items() if family not in self.known]

    def record_updates(self, updated: Set[ObjectKey]) -> None:
        """Note Services that have changed."""
        self._updated |= updated
        for table in self._tables.values():
            table.is_suspect = table.is_suspect and not updated
        if self._unknown():
            self._inform_quarantines()

    def _inform_quarantines(self) -> None:
        """Pass changed Services on to the quarantines, which needn't know while the kernel holds all rules."""
        updated, self._updated = self._updated, set()
        for table in self._tables.values():
            table.quarantine.record_updates(updated)

    def mark_unknown(
        self, families: Iterable[Family], by_others: Collection[Family] = (), *, is_check: bool = False
    ) -> None:
        """Count these families' tables as unknown, and make their load due at once.

        `by_others` has the families whose tables other programs have changed.  Their next load logs its repairs.
        `is_check` says that the kernel should hold the rules of all families.  So if no change of the cluster comes
        before the load, each difference that it finds is another program's.
        """
        families = frozenset(families)
        self._table_watch.unwatch(families)
        self.known -= families
        for family in families:
            self._tables[family].is_harmed = family in by_others
            self._tables[family].is_suspect = is_check
            self._tables[family].due = now()

    async def commit(self, transaction: Transaction, families: Collection[Family]) -> None:
        """Apply a change to known families, a large change in pieces.

        If the kernel refuses a later piece, it holds the pieces before, and the families count as unknown.

        Raises:
            Refused, Unavailable: as the kernel does.
        """
        is_large = len(transaction.text) > PIECE
        for number, piece in enumerate(pieces_of(transaction) if is_large else [transaction]):
            with self._table_watch.committing(len(piece.text)):
                try:
                    with self._reporter.committing(piece, families):
                        commit = await self._kernel.apply(piece)
                except Refused:
                    if number:
                        self.mark_unknown(families)
                    raise
                self._table_watch.record_change(commit, families)

    async def finds_nothing_in_force(self) -> bool:
        """Return whether the kernel has no table of ours with hooks.  An interrupted first load leaves none."""
        try:
            await self._check_first_load()
            self._installed = {family: await self._kernel.read_back(family) for family in self._tables}
        except Unavailable as error:
            self._report_failure(list(self._tables.values()), error)
            return False
        return not any(found and found.has_hooks for found in self._installed.values())

    async def load_in_pieces(self, events: Iterable[Event]) -> bool:
        """Load all families while no rules of ours are in force, in pieces.

        Return whether the kernel accepted the load.  If not, its tables are deleted, and `load_what_is_due` goes on.
        """
        tables, began = list(self._tables.values()), now()
        self._child_check = None
        pieces = PiecewiseLoad(
            self._pipeline.fill_in_steps(events, self._installed), self._kernel, self._reporter, self._table_watch
        )
        try:
            await pieces.load(self._tables.keys())
        except (Refused, Unavailable) as error:
            if isinstance(error, Refused) and await self.quarantine_named(self._tables, error):
                return False
            if isinstance(error, Refused) and len(tables) > 1:
                self._report_refused_together(error)
            else:
                self._report_failure(tables, error)
            return False
        finally:
            self.record_updates(self._pipeline.pop_updated())
        self._has_been_loaded(tables, pieces.size, now() - began)
        return True

    async def load_what_is_due(self) -> bool:
        """Try to load every family that is due.  Return whether any was loaded."""
        due = [table for table in self._unknown() if table.due <= now()]
        if not due:
            return False
        if len(due) > 1 and not any(table.refusals for table in due) and not self._is_refused_together:
            try:
                await self._load_without_named(due)
            except Refused as error:
                self._report_refused_together(error)
            except Unavailable as error:
                self._report_failure(due, error)
        self._is_refused_together = False
        for table in due:
            if table.family not in self.known and table.due <= now() and not self._is_stopping():
                await self._try([table])
        return any(table.family in self.known for table in due)

    async def _try(self, tables: Sequence[_Table]) -> None:
        try:
            await self._load_without_named(tables)
        except (Refused, Unavailable) as error:
            self._report_failure(tables, error)

    async def _load_without_named(self, tables: Sequence[_Table]) -> None:
        """Load some families, again without the Service that a refusal names, up to `MOST_NAMED` times."""
        for _ in range(MOST_NAMED):
            try:
                return await self._load(tables)
            except Refused as error:
                if not await self.quarantine_named([table.family for table in tables], error):
                    raise
        return await self._load(tables)

    def start(self) -> None:
        """Start the steps of the first load that don't depend on the cluster: the child's check and the read-ahead."""
        self.check_in_child()
        self._reading = asyncio.create_task(self._kernel.read_ahead(self._tables.keys()))

    def check_in_child(self) -> asyncio.Task[None]:
        """Start a child process that shows whether libnftables survives the kernel's present tables."""
        families = self._pipeline.generations
        trials = (self._pipeline.trial(family, self._pipeline.contributors(family)) for family in families)
        self._child_check = asyncio.create_task(self._kernel.check_in_child(join(trials)))
        return self._child_check

    def close(self) -> None:
        """Cancel the check in a child process and the read-ahead."""
        for task in filter(None, (self._child_check, self._reading)):
            task.cancel()

    async def _check_first_load(self) -> None:
        """Raise ChildDied instead of crashing inside libnftables.

        A crash leaves no diagnosis, and the restarted agent would crash again.  The child's check is good for a single
        load: by the next load the kernel may hold other tables.
        """
        if self._has_loaded:
            return
        try:
            await (self._child_check or self.check_in_child())
        except ChildDied:
            self._child_check = None
            raise
        except (Refused, Unavailable) as error:
            log.debug(
                "the load failed in a child process, and the load itself will report the reason: %(error)s",
                {"error": error},
            )

    async def _load(self, tables: Sequence[_Table]) -> None:
        """Load the present generation of some families, in a single transaction unless much differs."""
        await self._check_first_load()
        self._child_check = None
        installed = {table.family: await self._found(table) for table in tables}
        began = now()
        self._reporter.lap()
        with self._table_watch.preparing():
            generation = await self._kernel.generation()
            installed = {family: await self._compared(family, found) for family, found in installed.items()}
            transactions = self._load_transactions(installed)
            size = sum(len(each.text) for each in transactions)
            self._reporter.lap(Stage.DIFF)
            with self._table_watch.committing(size):
                commits = []
                for transaction in transactions:
                    with self._reporter.committing(transaction, installed):
                        commits.append(await self._kernel.apply(transaction))
                self._table_watch.record_load(_since(generation, commits, installed.values()), installed.keys())
        self._report_gap(installed, commits, size)
        for table in tables:
            self._report_repair(table, installed[table.family])
        self._has_been_loaded(tables, size, now() - began)

    def _report_gap(self, installed: Mapping[Family, Installed | None], commits: Iterable[Commit], size: int) -> None:
        """Log that tables were replaced by several commits, although they were sent as one transaction."""
        most = max(each.count for each in commits)
        if most <= 1:
            return
        replaced = [
            family.table
            for family, found in installed.items()
            if found and found.has_hooks and not self._pipeline.refilled(family, found)
        ]
        if replaced:
            warn(
                Code.REPLACED_IN_PARTS,
                "%(tables)s were replaced in %(parts)d parts, between which packets met only some of the rules: "
                "set net.core.wmem_max=%(bytes)d on the machine, outside of this user namespace, to avoid that",
                tables=" and ".join(replaced),
                parts=most,
                bytes=size * BUFFER_FOR_TEXT,
            )

    def _report_repair(self, table: _Table, installed: Installed | None) -> None:
        """Log the elements that a load has repaired, if another program had changed them.

        If nobody has noticed the cause, the repair is counted here.
        """
        differences = installed.differences.values() if installed and (table.is_harmed or table.is_suspect) else ()
        missing = [_in_words(element) for each in differences for element in each.missing]
        surplus = [_in_words(element) for each in differences for element in each.surplus]
        if missing or surplus:
            warn(
                Code.TABLE_DAMAGED,
                "table %(table)s had other elements, which are repaired: added %(missing)s; deleted %(surplus)s",
                table=table.family.table,
                missing=first_of(missing) or "none",
                surplus=first_of(surplus) or "none",
            )
            if not table.is_harmed:
                self._reporter.damaged(table.family)
        table.is_harmed = table.is_suspect = False

    def _load_transactions(self, installed: Mapping[Family, Installed | None]) -> list[Transaction]:
        """The transactions of a load: a single one, with pieces before and after it if much differs in a table."""
        split = {family: split_refill(family, found) for family, found in installed.items() if _differs_much(found)}
        rest = join(
            self._pipeline.load(family, split[family].installed if family in split else found)
            for family, found in installed.items()
        )
        return [
            *itertools.chain.from_iterable(each.early for each in split.values()),
            rest,
            *itertools.chain.from_iterable(each.late for each in split.values()),
        ]

    def _has_been_loaded(self, tables: Sequence[_Table], size: int, seconds: float) -> None:
        self.quiet_until = now() + max(SHORTEST_QUIET, QUIET * seconds)
        self._has_loaded = True
        self.known |= {table.family for table in tables}
        for table in tables:
            table.refusals = table.failures = 0
        self._reporter.applied(size, self.known, full=True)
        self._report_load(tables)

    def _report_load(self, tables: Sequence[_Table]) -> None:
        count = sum(self._pipeline.generations[table.family].element_count() for table in tables)
        if len(tables) == len(self._tables):
            inform("loaded the rules: %(elements)d elements", of="", elements=count)
        else:
            which = " and ".join(table.name for table in tables)
            inform("loaded the rules of %(families)s: %(elements)d elements", of="", families=which, elements=count)

    async def _found(self, table: _Table) -> Installed | None:
        """Take the remedy that is due, and return the table that the load must assume."""
        if table.refusals:
            everyone = self._pipeline.contributors(table.family)
            await self._kernel.check(self._pipeline.trial(table.family, everyone))
        remedy = Remedy(table.refusals % len(Remedy))
        if remedy is Remedy.QUARANTINE:
            await self._quarantine_culprits(table.quarantine)
        installed = await self._kernel.read_back(table.family)
        return installed and _REPLACED if remedy is Remedy.REPLACE else installed

    async def _compared(self, family: Family, found: Installed | None) -> Installed | None:
        """Add the differing elements to a table that isn't replaced."""
        generation = self._pipeline.refilled(family, found)
        return await self._kernel.compare(found, generation) if found and generation else found

    def _report_refused_together(self, error: Refused) -> None:
        self._is_refused_together = True
        text = "the kernel refuses the rules of all families together, loading each by itself: %(error)s"
        warn(Code.FAMILIES_REFUSED_TOGETHER, text, error=error)

    def _report_failure(self, tables: Sequence[_Table], error: Refused | Unavailable) -> None:
        self._reporter.failed([table.family for table in tables], str(error), full=True)
        for table in tables:
            pause = table.failed(was_refused=isinstance(error, Refused))
            text = "loading the rules of %(family)s failed, retrying in %(seconds).1f s: %(error)s"
            warn(Code.LOAD_FAILED, text, level=logging.ERROR, family=table.name, seconds=pause, error=error)

    async def quarantine_named(self, families: Iterable[Family], error: Refused) -> ObjectKey | None:
        """Quarantine the Service that a refusal names, if the kernel refuses it alone, too.  Return it.

        A Service that only another Service, or another program's damage, makes impossible is accepted alone.
        """
        for quarantine in (self._tables[family].quarantine for family in families):
            if not (service := quarantine.named(error.statement)):
                continue
            refusal = await self._refusal(quarantine.alone(service))
            if refusal is None or quarantine.named(refusal.statement) != service:
                return None
            self._inform_quarantines()
            quarantine.withhold(service, str(refusal))
            self.record_updates(self._pipeline.pop_updated())
            self._reporter.refused([quarantine.family], f"Service {service}: {refusal}")
            _report_quarantined(service, quarantine.family, refusal)
            return service
        return None

    async def _refusal(self, transaction: Transaction) -> Refused | None:
        """Return the kernel's refusal of a transaction in a dry run.  None if it accepts it, or can't be asked."""
        try:
            await self._kernel.check(transaction)
        except Refused as error:
            return error
        except Unavailable:
            pass
        return None

    async def _quarantine_culprits(self, quarantine: Quarantine) -> None:
        """Find the Services whose rules the kernel refuses, and quarantine them."""
        self._inform_quarantines()
        search = quarantine.search()
        with contextlib.suppress(StopIteration):
            question = next(search)
            while True:
                question = search.send(await self._would_take(question))
        self.record_updates(self._pipeline.pop_updated())

    async def _would_take(self, transaction: Transaction) -> bool:
        if self._is_stopping():
            raise Unavailable("the agent is stopping")
        try:
            await self._kernel.check(transaction)
        except Refused:
            return False
        return True

    async def retry_changed(self) -> None:
        """Retry quarantined Services that have changed, in families whose other rules the kernel holds."""
        for table in self._tables.values():
            if table.family not in self.known or table.quarantine.unproven or self._pipeline.withheld[table.family]:
                break
        else:  # as after nearly every change
            self._updated.clear()
            return
        self._inform_quarantines()
        for family in self.known:
            if changed := self._tables[family].quarantine.accepted():
                await self._retry(family, changed)

    async def retry_some(self, most: int) -> bool:
        """Retry up to `most` quarantined Services of each family, by turns of namespaces.  Return whether any."""
        quarantined = {
            family: first_in_turn(self._tables[family].quarantine.reasons, lambda each: each.namespace, most)
            for family in self.known
        }
        for family, services in quarantined.items():
            await self._retry(family, services)
        return any(quarantined.values())

    async def _retry(self, family: Family, services: Sequence[ObjectKey]) -> None:
        """Let Services in again, each by itself.  A Service that the kernel still refuses stays quarantined.

        The rest aren't retried once the table is unknown.
        """
        quarantine = self._tables[family].quarantine
        for service in services:
            before = quarantine.reasons[service]
            transaction = quarantine.retry(service)
            try:
                await self.commit(transaction, [family])
            except Refused as error:
                quarantine.keep(service, str(error))
                self._reporter.refused([family], f"Service {service}: {error}")
                if str(error) != before:
                    _report_quarantined(service, family, error)
                if family not in self.known:
                    return
            except Unavailable as error:
                text = "retrying Service %(service)s failed, loading everything instead: %(error)s"
                warn(Code.CHANGE_FAILED, text, of=service.namespace, service=service, error=error)
                self.mark_unknown([family])
                return
            else:
                text = "the kernel accepts the rules of Service %(service)s for %(family)s again"
                inform(text, of=service.namespace, service=service, family=FAMILY_NAMES[family])


def _differs_much(found: Installed | None) -> TypeGuard[Installed]:
    """True if a single transaction with the differences of a table would be long."""
    differences = found.differences.values() if found else ()
    elements = itertools.chain.from_iterable((*each.surplus, *each.missing) for each in differences)
    return sum(len(each.text) for each in elements) > LOAD_PIECE


def _since(generation: int, commits: Sequence[Commit], installed: Iterable[Installed | None]) -> Commit:
    """Return a load's commits as one, which begins at `generation` if the load sent differences computed there."""
    commit = Commit.of_several(commits)
    depends = any(each and each.differences for each in installed)
    return msgspec.structs.replace(commit, before=generation) if depends else commit


def _report_quarantined(service: ObjectKey, family: Family, error: Refused) -> None:
    text = "Service %(service)s is quarantined for %(family)s: the kernel refuses its rules: %(error)s"
    name = FAMILY_NAMES[family]
    of = service.namespace
    warn(Code.QUARANTINED, text, of=of, level=logging.ERROR, service=service, family=name, error=error)


def _in_words(element: Element) -> str:
    return f"{element.container} {{ {element.text} }}"


def now() -> float:
    """Return the loop's time in seconds."""
    return asyncio.get_running_loop().time()
