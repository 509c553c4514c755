"""An agent in virtual time, and its kernel, which fails on demand."""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import selectors
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence

from nftproxy.agent.loop import SyncLoop
from nftproxy.agent.reporting.health import Health
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.sync_reporter import Clocks, SyncReporter
from nftproxy.agent.sync.inbox import Inbox
from nftproxy.kernel.child_process import ChildDied
from nftproxy.kernel.drift import CommitNotice, TableWatch
from nftproxy.kernel.threads import AsyncKernel
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.events import Event, Listed, Put
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.rules.ruleset import Generation
from nftproxy.rules.transaction import Commit, Installed, Transaction
from tests.support.factories import Ledger, node, pipeline, service, slice_of

SYNC_PERIOD, MIN_SYNC_PERIOD = 30.0, 1.0

WEB = service("shop/web")
PODS = slice_of("shop/web", ["10.1.0.4@node-a"])
MORE_PODS = slice_of("shop/web", ["10.1.0.4@node-a", "10.1.0.5@node-a"])
OTHER = service("shop/other", cluster_ips=["10.96.0.11"])
EVERYTHING: Sequence[Event] = [Put(node()), Listed(Service, (WEB,)), Listed(EndpointSlice, (PODS,))]

REFUSED = Refused("Could not process rule: No such file or directory", "add element ip nftproxy services { ... }")
UNAVAILABLE = Unavailable("libnftables has died")


class _Skipping(selectors.SelectSelector):
    """A selector that never waits: time jumps to the end of every wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everyone waits, and nothing will ever happen"
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which an hour passes at once, and always in the same way."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._skipping.now


def now() -> float:
    """The time in the running loop."""
    return round(asyncio.get_running_loop().time(), 6)


def _time() -> float:
    try:
        return now()
    except RuntimeError:  # no loop runs yet
        return 0.0


class FakeKernel(AsyncKernel):
    """A kernel that knows names and elements (factories.Ledger), and raises the exceptions that a test gave it."""

    def __init__(self, *faults: Exception) -> None:
        self.ledger = Ledger()
        self.faults = list(faults)
        self.unwanted: list[str] = []
        self.statement_of: dict[str, str] = {}
        """The statement that an error names for an unwanted text, by default the text itself."""
        self.checks: list[float] = []
        self.dies_for = ""
        self.parts = 1
        """The number of commits that each transaction takes."""
        self.beside: tuple[Sequence[bool], Sequence[bool]] = ((), ())
        self.deaf: Exception | None = None
        self.delay = 0.0
        self.is_lethal = False
        self.child_checks: list[float] = []
        self.tries: list[float] = []
        self.applied: list[tuple[float, Transaction]] = []
        self.commits = 0
        self.notices: list[CommitNotice] = []
        self.has_lost_some = False
        self.when_told: Callable[[], None] = lambda: None
        self.after_comparing: Callable[[], object] = lambda: None
        self.is_heard = True
        self._last: asyncio.Future[None] | None = None
        self.has_read_ahead = set[Family]()

    async def apply(self, transaction: Transaction) -> Commit:
        """Apply as a whole, or raise and change nothing, after all that came before."""
        self.tries.append(now())
        before, own = self._last, asyncio.get_running_loop().create_future()
        self._last = own
        try:
            if before and not before.done():
                await asyncio.shield(before)
            return await self._apply(transaction)
        finally:
            own.set_result(None)

    async def _apply(self, transaction: Transaction) -> Commit:
        if self.faults:
            raise self.faults.pop(0)
        if self.dies_for and self.dies_for in transaction.text:
            raise UNAVAILABLE
        await asyncio.sleep(self.delay)
        self.ledger = self._after(transaction)
        self.applied.append((now(), transaction))
        (before, after), self.beside = self.beside, ((), ())
        first = self.commits + 1
        about = enumerate([*before, *[True] * self.parts, *after])
        told = self.told(self.commits, *(CommitNotice(first + n, _about(each), "nft") for n, each in about))
        return Commit(told.before, told.after, self.parts)

    async def check_in_child(self, transaction: Transaction) -> None:
        """Die on demand, or raise the error that `apply` would raise."""
        self.child_checks.append(now())
        if self.is_lethal:
            raise ChildDied("the process that used libnftables was killed by SIGSEGV")
        await self.check(transaction)

    async def check(self, transaction: Transaction) -> None:
        """Raise the error that `apply` would raise."""
        self.checks.append(now())
        self._after(transaction)

    def _after(self, transaction: Transaction) -> Ledger:
        for text in self.unwanted:
            if text in transaction.text:
                raise Refused("No such file or directory", self.statement_of.get(text, text))
        after = copy.deepcopy(self.ledger)
        try:
            after.apply(transaction)
        except (AssertionError, KeyError) as error:
            raise Refused(str(error)) from error
        return after

    def told(self, before: int, *notices: CommitNotice) -> Commit:
        """Commit, and notify listeners."""
        if self.is_heard:
            self.notices += notices
        self.commits = before + len(notices)
        self.when_told()
        return Commit(before, self.commits)

    def others(self, *are_about_us: bool) -> Commit:
        """Let other programs commit, and touch our tables or not."""
        return self.told(
            self.commits,
            *(CommitNotice(self.commits + 1 + n, _about(about), "nft") for n, about in enumerate(are_about_us)),
        )

    def read(self) -> list[CommitNotice] | None:
        """The notifications so far.  None once, if `has_lost_some`."""
        notices, self.notices = self.notices, []
        if self.has_lost_some:
            self.has_lost_some = False
            return None
        return notices

    def pause(self) -> None:
        """Nobody is notified any more."""
        self.is_heard = False

    def resume(self) -> None:
        """Listeners are notified again."""
        self.is_heard = True

    async def generation(self) -> int:
        """The number of transactions, including commits of other programs."""
        if self.deaf:
            raise self.deaf
        return self.commits

    async def read_back(self, family: Family) -> Installed | None:
        """The objects in the kernel by name."""
        if self.deaf:
            raise self.deaf
        return self.ledger.installed(family)

    async def read_ahead(self, families: Iterable[Family]) -> None:
        """Cache the present sets, which only `has_read_ahead` shows."""
        self.has_read_ahead = set(families)

    async def compare(self, installed: Installed, generation: Generation) -> Installed:
        """The differences of every set that no packet writes."""
        found = self.ledger.compared(installed, generation)
        then, self.after_comparing = self.after_comparing, lambda: None
        then()
        return found

    @property
    def times(self) -> list[float]:
        """The times at which transactions had happened."""
        return [when for when, _ in self.applied]

    def drop(self, family: Family, *, chain: str = "", container: str = "") -> None:
        """Let another program delete a chain, a set or the whole table."""
        table = family.table
        self.commits += 1
        if chain:
            del self.ledger.chains[table][chain]
        elif container:
            del self.ledger.sets[table][container]
        else:
            self.ledger.apply(Transaction(f"delete table {table}\n"))


def _about(is_about_us: bool) -> frozenset[Family]:
    return frozenset(Family if is_about_us else ())


Timed = tuple[float, Sequence[Event]]


async def source(*batches: Timed) -> AsyncGenerator[Sequence[Event]]:
    """Yield each batch at its time, and then nothing more."""
    for when, events in batches:
        await asyncio.sleep(when - now())
        yield events
    await asyncio.Event().wait()


async def failing(when: float) -> AsyncGenerator[Sequence[Event]]:
    """A source that yields everything at once, and fails later."""
    yield EVERYTHING
    await asyncio.sleep(when)
    raise OSError("the source has gone")


class World:
    """An agent with its kernel, run for some seconds with the sources given.

    Args:
        kernel: the kernel, by default without faults.
        tweaks: the agent's periods.
    """

    def __init__(self, kernel: FakeKernel | None = None, **tweaks: float) -> None:
        self.kernel = kernel or FakeKernel()
        self.pipeline = pipeline(node=None)
        self.ended = 0.0
        self._agent: SyncLoop | None = None
        self.settled: list[tuple[float, frozenset[Family]]] = []
        self.settle_again: Iterator[float] = iter(())
        self.reporter = SyncReporter(
            Health(SYNC_PERIOD, self.pipeline.generations), Metrics(), clocks=Clocks(_time, _time)
        )
        periods: dict[str, float] = {"sync_period": SYNC_PERIOD, "min_sync_period": MIN_SYNC_PERIOD}
        self._periods = periods | tweaks
        self.processor_time: Callable[[], float] = lambda: 0.0
        self._plans: list[tuple[float, Callable[[], object]]] = []

    @property
    def inbox(self) -> Inbox:
        """The agent's inbox."""
        assert self._agent is not None
        return self._agent.inbox

    async def _note_settled(self, families: Collection[Family]) -> float:
        self.settled.append((now(), frozenset(families)))
        return next(self.settle_again, float("inf"))

    def at(self, when: float, do: Callable[..., object], *arguments: object, **options: object) -> World:
        """Plan to call something at some time."""
        self._plans.append((when, functools.partial(do, *arguments, **options)))
        return self

    def stop(self) -> None:
        """Stop the agent."""
        assert self._agent is not None
        self._agent.stop()

    def run(self, *sources: AsyncGenerator[Sequence[Event]], until: float) -> World:
        """Run the agent until it ends, or is stopped at `until`."""

        async def main() -> None:
            table_watch = TableWatch(self.kernel)
            agent = self._agent = SyncLoop(
                self.pipeline,
                self.kernel,
                self.reporter,
                table_watch,
                self._note_settled,
                sync_period=self._periods["sync_period"],
                min_sync_period=self._periods["min_sync_period"],
                processor_time=lambda: self.processor_time(),
            )
            self.kernel.when_told = agent.read_commits
            for when, do in [*self._plans, (until, agent.stop)]:
                asyncio.get_running_loop().call_at(when, do)
            try:
                await agent.run({f"source {number}": each for number, each in enumerate(sources)})
            finally:
                self.ended = now()

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(main())
        return self

    def assert_in_step(self) -> None:
        """The kernel holds exactly the pipeline's tables."""
        for family, generation in self.pipeline.generations.items():
            assert self.kernel.ledger.held(family) == set(generation.elements())


def alternating(*, since: float, every: float, times: int) -> list[Timed]:
    """Changes of the same Service, to and fro."""
    objects = itertools.cycle([MORE_PODS, PODS])
    return [(since + every * number, [Put(next(objects))]) for number in range(times)]
