"""Makes the kernel hold the generations, whatever it holds now, and whatever it refuses.

All families are loaded in one transaction; the first time, where nothing of ours is in force, in pieces (pieces.py).
If the kernel refuses that, each is loaded by itself from then on, and retried with growing pauses until the kernel
accepts it; the other doesn't wait for it.  What else a retry does depends on how often the kernel has refused the
family in a row:

* It loads again, as another program may have changed the table meanwhile.
* It replaces the table: another program may have declared a set of ours differently.
* It finds the Services whose rules the kernel refuses, and quarantines them (quarantine.py): all others get theirs.

libnftables runs in this process, and dies of some things that it finds in the kernel.  So before the first load, while
the cluster is being listed, another process tries whether it does.

Before any retry the kernel is asked whether it would take the table without any Service.  If it wouldn't, as when the
table is another program's own, that costs as little as this question, however many Services there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import IntEnum
from typing import Protocol

from nftproxy.agent.pieces import Pieces
from nftproxy.agent.quarantine import Quarantine
from nftproxy.agent.vitals import Vitals
from nftproxy.kernel.drift import Custody
from nftproxy.kernel.netns import ChildDied
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.events import Event
from nftproxy.model.objects import ObjectKey
from nftproxy.model.stages import Stage
from nftproxy.pipeline import Pipeline
from nftproxy.rules.ruleset import Generation
from nftproxy.rules.transaction import Commit, Installed, Transaction, join

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
"""Seconds before a failed load is retried; doubles from there (client-go's limiters start as low)."""
LONGEST_PAUSE = 30.0
"""Seconds at the most between two tries: no longer than the syncPeriod of a default configuration."""

SHORTEST_QUIET, QUIET = 1.0, 4.0
"""How long after a load what others do may not cause the next: so many times as long as that took, and the least in
seconds.  However often somebody changes our tables, mending them takes a fifth of a CPU."""


class Remedy(IntEnum):
    """What a load does beside loading; the next of these where it is refused, and then again the first."""

    NOTHING = 0
    REPLACE = 1
    QUARANTINE = 2


class KernelSide(Protocol):
    """What the agent needs of the kernel (libnftables.py has it; the agent's tests have one that fails on demand)."""

    async def apply(self, transaction: Transaction) -> Commit:
        """Apply a transaction as a whole, and return the generations around it; raises Refused or Unavailable."""

    async def check(self, transaction: Transaction) -> None:
        """Raise Refused if the kernel would refuse a transaction, or Unavailable; nothing happens."""

    async def rehearse(self, transaction: Transaction) -> None:
        """Let a process check a transaction that may die of it; raises ChildDied, Refused or Unavailable."""

    async def generation(self) -> int:
        """The ruleset's generation; raises Unavailable."""

    async def read_back(self, family: Family) -> Installed | None:
        """Our table of one family by name, None if there is none; raises Unavailable."""

    async def read_ahead(self, families: Collection[Family]) -> None:
        """Read what `compare` needs, before there is anything to compare it with; raises nothing."""

    async def compare(self, installed: Installed, generation: Generation) -> Installed:
        """The same with what its sets differ in from a generation, as far as that can be known."""


class _Table:
    """How far the loading of one family has come."""

    def __init__(self, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        self.family = quarantine.family
        self.name = FAMILY_NAMES[self.family]
        self.is_known = False
        self.due = 0.0
        self.failures = 0  # in a row, of attempts to load it by itself
        self.refusals = 0  # in a row, of the same

    def failed(self, *, was_refused: bool) -> float:
        """An attempt has failed; the seconds until the next."""
        pause = min(FIRST_PAUSE * 2.0 ** min(self.failures, 10), LONGEST_PAUSE)
        self.failures += 1
        self.refusals = self.refusals + 1 if was_refused else 0
        self.due = now() + pause
        return pause


class Loader:
    """Loads tables, applies changes to them, and knows which of them hold what they should."""

    def __init__(
        self,
        pipeline: Pipeline,
        kernel: KernelSide,
        vitals: Vitals,
        custody: Custody,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._pipeline = pipeline
        self._kernel = kernel
        self._vitals = vitals
        self._custody = custody
        self._is_stopping = is_stopping
        self._tables = {family: _Table(Quarantine(pipeline, family)) for family in pipeline.generations}
        self._rehearsal: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._has_loaded = False
        self._is_refused_together = False
        self._installed: dict[Family, Installed | None] = {}
        self.quiet_until = 0.0

    @property
    def known(self) -> set[Family]:
        """The families of which it is known that the kernel holds what it should."""
        return {table.family for table in self._tables.values() if table.is_known}

    @property
    def due(self) -> float:
        """When the next load is due, by the loop's time; infinite if all families are known."""
        return min((table.due for table in self._tables.values() if not table.is_known), default=float("inf"))

    @property
    def missing(self) -> list[str]:
        """The names of the families that are not known."""
        return [table.name for table in self._tables.values() if not table.is_known]

    def note(self, updated: Collection[ObjectKey]) -> None:
        """These Services have changed."""
        for table in self._tables.values():
            table.quarantine.note(updated)

    def lost(self, families: Iterable[Family]) -> None:
        """It isn't known any more what these families hold: load them at once."""
        families = list(families)
        self._custody.lost(families)
        for family in families:
            self._tables[family].is_known = False
            self._tables[family].due = now()

    async def commit(self, transaction: Transaction, families: Collection[Family]) -> None:
        """Apply a change of known families.

        Raises:
            Refused, Unavailable: as the kernel does.
        """
        with self._custody.during(len(transaction.text)):
            with self._vitals.committing(transaction, families):
                commit = await self._kernel.apply(transaction)
            self._custody.changed(commit, families)

    async def finds_nothing_in_force(self) -> bool:
        """Whether the kernel has no table of ours with hooks; what an interrupted first load has left has none."""
        try:
            await self._survive()
            self._installed = {family: await self._kernel.read_back(family) for family in self._tables}
        except Unavailable as error:
            self._note_failure(list(self._tables.values()), error)
            return False
        return not any(found and found.has_hooks for found in self._installed.values())

    async def load_in_pieces(self, events: Iterable[Event]) -> bool:
        """Load all families where nothing of ours is in force: what is rendered goes into the kernel meanwhile.

        If the kernel doesn't take it, nothing of it stays, and `load_what_is_due` goes on; returns whether it does.
        """
        tables, began = list(self._tables.values()), now()
        self._rehearsal = None
        pieces = Pieces(self._pipeline.filling(events, self._installed), self._kernel, self._vitals, self._custody)
        try:
            await pieces.load(self._tables.keys())
        except (Refused, Unavailable) as error:
            if isinstance(error, Refused) and len(tables) > 1:
                self._note_refused_together(error)
            else:
                self._note_failure(tables, error)
            return False
        finally:
            self.note(self._pipeline.take_updated())
        self._has_been_loaded(tables, pieces.size, now() - began)
        return True

    async def load_what_is_due(self) -> bool:
        """Try to load every family that is due; whether any has been loaded."""
        due = [table for table in self._tables.values() if not table.is_known and table.due <= now()]
        if len(due) > 1 and not any(table.refusals for table in due) and not self._is_refused_together:
            try:
                await self._load(due)
            except Refused as error:
                self._note_refused_together(error)
            except Unavailable as error:
                self._note_failure(due, error)
        self._is_refused_together = False
        for table in due:
            if not table.is_known and table.due <= now() and not self._is_stopping():
                await self._try([table])
        return any(table.is_known for table in due)

    async def _try(self, tables: Sequence[_Table]) -> None:
        try:
            await self._load(tables)
        except (Refused, Unavailable) as error:
            self._note_failure(tables, error)

    def begin(self) -> None:
        """Do ahead of the first load what doesn't depend on what is to be loaded."""
        self.rehearse()
        self._reading = asyncio.create_task(self._kernel.read_ahead(self._tables.keys()))

    def rehearse(self) -> asyncio.Task[None]:
        """Begin to find out, in a process that may die, whether libnftables survives what is in the kernel."""
        families = self._pipeline.generations
        trials = (self._pipeline.trial(family, self._pipeline.contributors(family)) for family in families)
        self._rehearsal = asyncio.create_task(self._kernel.rehearse(join(trials)))
        return self._rehearsal

    def close(self) -> None:
        """Wait for nothing that was begun."""
        for task in filter(None, (self._rehearsal, self._reading)):
            task.cancel()

    async def _survive(self) -> None:
        """Raise ChildDied rather than be killed: nobody would know what by, and a restart would be the next death.

        A rehearsal is good for one load: by the next one the kernel may hold something else.
        """
        if self._has_loaded:
            return
        try:
            await (self._rehearsal or self.rehearse())
        except ChildDied:
            self._rehearsal = None
            raise
        except (Refused, Unavailable) as error:
            log.debug("the load was rehearsed, and will say itself what is wrong: %(error)s", {"error": error})

    async def _load(self, tables: Sequence[_Table]) -> None:
        """Bring the kernel to the present generation of some families, in one transaction."""
        await self._survive()
        self._rehearsal = None
        installed = {table.family: await self._found(table) for table in tables}
        began = now()
        self._vitals.lap()
        with self._custody.watching():
            generation = await self._kernel.generation()
            installed = {family: await self._compared(family, found) for family, found in installed.items()}
            transaction = join(self._pipeline.load(family, found) for family, found in installed.items())
            self._vitals.lap(Stage.DIFF)
            with self._custody.during(len(transaction.text)):
                with self._vitals.committing(transaction, installed):
                    commit = await self._kernel.apply(transaction)
                self._custody.loaded(_since(generation, commit, installed.values()), installed.keys())
        self._has_been_loaded(tables, len(transaction.text), now() - began)

    def _has_been_loaded(self, tables: Sequence[_Table], size: int, seconds: float) -> None:
        self.quiet_until = now() + max(SHORTEST_QUIET, QUIET * seconds)
        self._has_loaded = True
        for table in tables:
            table.is_known = True
            table.refusals = table.failures = 0
        self._vitals.applied(size, self.known, full=True)
        self._report_load(tables)

    def _report_load(self, tables: Sequence[_Table]) -> None:
        count = sum(self._pipeline.generations[table.family].element_count() for table in tables)
        if len(tables) == len(self._tables):
            log.info("loaded the rules: %(elements)d elements", {"elements": count})
        else:
            which = " and ".join(table.name for table in tables)
            log.info("loaded the rules of %(families)s: %(elements)d elements", {"families": which, "elements": count})

    async def _found(self, table: _Table) -> Installed | None:
        """What the load is to assume of a table, after the remedy for what it has been refused for."""
        if table.refusals:
            everyone = self._pipeline.contributors(table.family)
            await self._kernel.check(self._pipeline.trial(table.family, everyone))
        remedy = Remedy(table.refusals % len(Remedy))
        if remedy is Remedy.QUARANTINE:
            await self._quarantine_culprits(table.quarantine)
        installed = await self._kernel.read_back(table.family)
        return installed and Installed() if remedy is Remedy.REPLACE else installed

    async def _compared(self, family: Family, found: Installed | None) -> Installed | None:
        """With what its elements differ in, if the table stays where it is."""
        generation = self._pipeline.refilled(family, found)
        return await self._kernel.compare(found, generation) if found and generation else found

    def _note_refused_together(self, error: Refused) -> None:
        self._is_refused_together = True
        text = "the kernel refuses the rules of all families together, loading each by itself: %(error)s"
        log.warning(text, {"error": error}, extra={"code": Code.FAMILIES_REFUSED_TOGETHER})

    def _note_failure(self, tables: Sequence[_Table], error: Refused | Unavailable) -> None:
        self._vitals.failed([table.family for table in tables], str(error), full=True)
        for table in tables:
            pause = table.failed(was_refused=isinstance(error, Refused))
            text = "loading the rules of %(family)s failed, retrying in %(seconds).1f s: %(error)s"
            log.error(text, {"family": table.name, "seconds": pause, "error": error}, extra={"code": Code.LOAD_FAILED})

    async def _quarantine_culprits(self, quarantine: Quarantine) -> None:
        """Find the Services that rules are refused for, and leave them out."""
        search = quarantine.search()
        with contextlib.suppress(StopIteration):
            question = next(search)
            while True:
                question = search.send(await self._would_take(question))
        self.note(self._pipeline.take_updated())

    async def _would_take(self, transaction: Transaction) -> bool:
        if self._is_stopping():
            raise Unavailable("the agent is stopping")
        try:
            await self._kernel.check(transaction)
        except Refused:
            return False
        return True

    async def retry_changed(self) -> None:
        """Retry the quarantined Services that have changed since, where the kernel holds all other rules."""
        for family in self.known:
            await self._retry(family, self._tables[family].quarantine.accepted())

    async def retry_some(self, most: int) -> bool:
        """Retry some quarantined Services, whether or not they have changed; returns whether there were any."""
        quarantined = {family: list(self._tables[family].quarantine.reasons)[:most] for family in self.known}
        for family, services in quarantined.items():
            await self._retry(family, services)
        return any(quarantined.values())

    async def _retry(self, family: Family, services: Sequence[ObjectKey]) -> None:
        """Let Services in again, one by one; the kernel may still refuse one, which then stays and is logged."""
        quarantine = self._tables[family].quarantine
        for service in services:
            before = quarantine.reasons[service]
            transaction = quarantine.retry(service)
            try:
                await self.commit(transaction, [family])
            except Refused as error:
                quarantine.keep(service, str(error))
                self._vitals.refused([family], f"Service {service}: {error}")
                if str(error) != before:
                    text = "Service %(service)s is quarantined for %(family)s: the kernel refuses its rules: %(error)s"
                    what = {"service": service, "family": FAMILY_NAMES[family], "error": error}
                    log.error(text, what, extra={"code": Code.QUARANTINED})
            except Unavailable as error:
                text = "retrying Service %(service)s failed, loading everything instead: %(error)s"
                log.warning(text, {"service": service, "error": error}, extra={"code": Code.CHANGE_FAILED})
                self.lost([family])
                return
            else:
                text = "the kernel accepts the rules of Service %(service)s for %(family)s again"
                log.info(text, {"service": service, "family": FAMILY_NAMES[family]})


def _since(generation: int, commit: Commit, installed: Iterable[Installed | None]) -> Commit:
    """A load that depends on what sets held in a generation, from that one on; any other as it is."""
    depends = any(each and each.differences for each in installed)
    return Commit(generation, commit.after) if depends else commit


def now() -> float:
    """The loop's own time, in seconds."""
    return asyncio.get_running_loop().time()
