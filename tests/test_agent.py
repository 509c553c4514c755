"""The agent's loop, against a kernel that fails on demand, in a time that passes when nothing else is to be done."""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import selectors
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from nftproxy.addresses import Family
from nftproxy.agent import FIRST_PAUSE, LONGEST_PAUSE, Agent
from nftproxy.custody import Custody, Notice
from nftproxy.errors import Refused, Unavailable
from nftproxy.health import Health, Moment
from nftproxy.metrics import Metrics, Vitals
from nftproxy.model import EndpointSlice, Service
from nftproxy.pipeline import STEP
from nftproxy.ruleset import Commit, Installed, Transaction
from nftproxy.state import Event, Listed, Put, Removed, key_of
from tests.factories import IPV4, IPV6, Ledger, elements, node, pipeline, service, slice_of

SYNC_PERIOD, MIN_SYNC_PERIOD = 30.0, 1.0

WEB = service("shop/web")
PODS = slice_of("shop/web", ["10.1.0.4@node-a"])
MORE_PODS = slice_of("shop/web", ["10.1.0.4@node-a", "10.1.0.5@node-a"])
OTHER = service("shop/other", cluster_ips=["10.96.0.11"])
EVERYTHING: Sequence[Event] = [Put(node()), Listed(Service, (WEB,)), Listed(EndpointSlice, (PODS,))]

REFUSED = Refused("Could not process rule: No such file or directory", "add element ip nftproxy services { ... }")
UNAVAILABLE = Unavailable("libnftables has died")


# ---- a world -------------------------------------------------------------------------------------------------------


class _Skipping(selectors.SelectSelector):
    """Waits for nothing: time jumps to the end of every wait."""

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


class FakeKernel:
    """A kernel that knows names and elements (factories.Ledger) and raises what it is told to.

    Attributes:
        faults: raised one after the other by the next calls of `apply`.
        unwanted: texts that no transaction may have.
        beside: of others that commit in the moment before the next transaction, and in that after it, whether these
            touch our tables.
        deaf: raised by `read_back`, if any.
        delay: seconds that each transaction takes.
        tries: when `apply` was called.
        applied: the transactions that happened, and when they had.
    """

    def __init__(self, *faults: Exception) -> None:
        self.ledger = Ledger()
        self.faults = list(faults)
        self.unwanted: list[str] = []
        self.beside: tuple[Sequence[bool], Sequence[bool]] = ((), ())
        self.deaf: Exception | None = None
        self.delay = 0.0
        self.tries: list[float] = []
        self.applied: list[tuple[float, Transaction]] = []
        self.commits = 0
        self.notices: list[Notice] = []
        self.has_lost_some = False
        self.when_told: Callable[[], None] = lambda: None
        self.is_heard = True

    async def apply(self, transaction: Transaction) -> Commit:
        """Apply as a whole, or raise and change nothing."""
        self.tries.append(now())
        if self.faults:
            raise self.faults.pop(0)
        await asyncio.sleep(self.delay)
        self.ledger = self._after(transaction)
        self.applied.append((now(), transaction))
        (before, after), self.beside = self.beside, ((), ())
        first = self.commits + 1
        about = enumerate([*before, True, *after])
        return self.told(self.commits, *(Notice(first + n, is_about_us, "nft") for n, is_about_us in about))

    async def check(self, transaction: Transaction) -> None:
        """Raise what `apply` would."""
        self._after(transaction)

    def _after(self, transaction: Transaction) -> Ledger:
        for text in self.unwanted:
            if text in transaction.text:
                raise Refused("No such file or directory", text)
        after = copy.deepcopy(self.ledger)
        try:
            after.apply(transaction)
        except (AssertionError, KeyError) as error:
            raise Refused(str(error)) from error
        return after

    def told(self, before: int, *notices: Notice) -> Commit:
        """Commits happen, and who listens is told of them."""
        if self.is_heard:
            self.notices += notices
        self.commits = before + len(notices)
        self.when_told()
        return Commit(before, self.commits)

    def others(self, *are_about_us: bool) -> Commit:
        """Others commit, and touch our tables or don't."""
        return self.told(
            self.commits, *(Notice(self.commits + 1 + n, about, "nft") for n, about in enumerate(are_about_us))
        )

    def read(self) -> list[Notice] | None:
        """What has been told; None once if `has_lost_some`."""
        notices, self.notices = self.notices, []
        if self.has_lost_some:
            self.has_lost_some = False
            return None
        return notices

    def pause(self) -> None:
        """Nobody is told any more."""
        self.is_heard = False

    def resume(self) -> None:
        """They are told again."""
        self.is_heard = True

    async def generation(self) -> int:
        """How many transactions there were, those of others included."""
        if self.deaf:
            raise self.deaf
        return self.commits

    async def read_back(self, family: Family) -> Installed | None:
        """What is there by name."""
        if self.deaf:
            raise self.deaf
        return self.ledger.installed(family)

    @property
    def times(self) -> list[float]:
        """When transactions had happened."""
        return [when for when, _ in self.applied]

    def drop(self, family: Family, *, chain: str = "", container: str = "") -> None:
        """Let someone else delete a chain, a set or the whole table."""
        table = family.table
        self.commits += 1
        if chain:
            del self.ledger.chains[table][chain]
        elif container:
            del self.ledger.sets[table][container]
        else:
            self.ledger.apply(Transaction(f"delete table {table}\n"))


Timed = tuple[float, Sequence[Event]]


async def source(*batches: Timed) -> AsyncIterator[Sequence[Event]]:
    """Tell each batch at its time, and then nothing more."""
    for when, events in batches:
        await asyncio.sleep(when - now())
        yield events
    await asyncio.Event().wait()


async def failing(when: float) -> AsyncIterator[Sequence[Event]]:
    """A source that tells everything at once, and fails later."""
    yield EVERYTHING
    await asyncio.sleep(when)
    raise OSError("the source has gone")


class World:
    """An agent with its kernel, run for some seconds with the sources given.

    Args:
        kernel: the kernel, by default one without faults.
        tweaks: the agent's periods.
    """

    def __init__(self, kernel: FakeKernel | None = None, **tweaks: float) -> None:
        self.kernel = kernel or FakeKernel()
        self.pipeline = pipeline(node=None)
        self.ended = 0.0
        self.settled: list[float] = []
        self.vitals = Vitals(Health(SYNC_PERIOD, self.pipeline.generations), Metrics(self.pipeline), self._clocks)
        periods: dict[str, float] = {"sync_period": SYNC_PERIOD, "min_sync_period": MIN_SYNC_PERIOD}
        self._periods = periods | tweaks
        self._plans: list[tuple[float, Callable[[], object]]] = []

    async def _note_settled(self) -> None:
        self.settled.append(now())

    def _clocks(self) -> Moment:
        try:
            return Moment(now(), now())
        except RuntimeError:  # no loop runs yet
            return Moment(0.0, 0.0)

    def at(self, when: float, do: Callable[..., object], *arguments: object, **options: object) -> World:
        """Plan to call something at some time."""
        self._plans.append((when, functools.partial(do, *arguments, **options)))
        return self

    def run(self, *sources: AsyncIterator[Sequence[Event]], until: float) -> World:
        """Run the agent until it ends, or is told to stop at `until`."""

        async def main() -> None:
            custody = Custody(self.kernel)
            agent = Agent(self.pipeline, self.kernel, self.vitals, custody, self._note_settled, **self._periods)
            self.kernel.when_told = agent.noticed
            for when, do in [*self._plans, (until, agent.stop)]:
                asyncio.get_running_loop().call_at(when, do)
            try:
                await agent.run(*sources)
            finally:
                self.ended = now()

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(main())
        return self

    def assert_in_step(self) -> None:
        """The kernel holds exactly what the pipeline says."""
        for family, generation in self.pipeline.generations.items():
            assert self.kernel.ledger.held(family) == set(generation.elements())


def alternating(*, since: float, every: float, times: int) -> list[Timed]:
    """Changes of the same Service, to and fro."""
    objects = itertools.cycle([MORE_PODS, PODS])
    return [(since + every * number, [Put(next(objects))]) for number in range(times)]


# ---- the beginning -------------------------------------------------------------------------------------------------


def test_nothing_is_written_before_every_source_has_told_all() -> None:
    """The first transaction waits for the last source's first batch, and has everything."""
    slices, services = source((5, EVERYTHING[2:])), source((0, EVERYTHING[:2]), (2, [Put(OTHER)]))
    world = World().run(services, slices, until=6)
    assert world.kernel.times == [5]
    assert {"10.96.0.10", "10.96.0.11"} == world.kernel.ledger.elements[IPV4.table]["cluster-ips"].keys()
    world.assert_in_step()


def test_nothing_is_written_when_a_source_tells_nothing() -> None:
    """An agent that is stopped before every source has told leaves the kernel as it was."""
    world = World().run(source((0, EVERYTHING)), source(), until=100)
    assert world.kernel.tries == []
    assert world.ended == 100


def test_a_restart_deletes_no_table() -> None:
    """An agent that finds its own tables refills them in one transaction, without deleting one."""
    kernel = World().run(source((0, EVERYTHING)), until=1).kernel
    kernel.applied.clear()
    World(kernel).run(source((0, [*EVERYTHING, Put(MORE_PODS)])), until=1).assert_in_step()
    ((_, transaction),) = kernel.applied
    assert "delete table" not in transaction.text


def test_others_get_their_turns_while_much_is_rendered() -> None:
    """What else is on the loop, such as a probe that wants an answer, runs between the steps."""
    many = [service(f"shop/s{i}", cluster_ips=[f"10.97.{i >> 8}.{i & 255}"]) for i in range(3 * STEP)]
    world = World()
    turns: list[bool] = []

    def take_turn() -> None:
        turns.append(bool(world.pipeline.state.services) and not elements(world.pipeline, IPV4, "services"))
        if not world.kernel.times:
            asyncio.get_running_loop().call_soon(take_turn)

    world.at(1, take_turn).run(source((1, [*EVERYTHING, *map(Put, many)])), until=2)
    assert turns.count(True) >= 2
    world.assert_in_step()


# ---- changes -------------------------------------------------------------------------------------------------------


def test_the_first_change_after_a_quiet_time_is_applied_at_once() -> None:
    """A change that comes when nothing happened for a while does not wait."""
    world = World().run(source((0, EVERYTHING), (10, [Put(MORE_PODS)])), until=11)
    assert world.kernel.times == [0, 10]
    assert "flush map" not in world.kernel.applied[1][1].text
    world.assert_in_step()


def test_changes_soon_after_a_change_are_gathered() -> None:
    """What comes within the minimal period after a transaction is applied together, at its end."""
    changes: list[Timed] = [(10, [Put(MORE_PODS)]), (10.2, [Put(OTHER)]), (10.9, [Put(PODS)]), (11.5, [Put(MORE_PODS)])]
    world = World().run(source((0, EVERYTHING), *changes), until=20)
    assert world.kernel.times == [0, 10, 11, 12]
    world.assert_in_step()


def test_changes_of_all_sources_are_gathered() -> None:
    """Batches that have come together are one transaction, whichever source they came from."""
    first, second = source((0, EVERYTHING), (10, [Put(MORE_PODS)])), source((0, []), (10, [Put(OTHER)]))
    assert World().run(first, second, until=20).kernel.times == [0, 10]


def test_what_changes_no_rule_holds_nothing_up() -> None:
    """An event without consequence is no transaction, and the next change is applied at once all the same."""
    world = World().run(source((0, EVERYTHING), (10, [Put(PODS)]), (10.3, [Put(MORE_PODS)])), until=20)
    assert world.kernel.times == [0, 10.3]


def test_a_change_that_is_taken_back_is_no_transaction() -> None:
    """What comes and goes while changes are gathered never reaches the kernel."""
    removed = Removed(Service, key_of(OTHER))
    world = World().run(
        source((0, EVERYTHING), (10, [Put(MORE_PODS)]), (10.1, [Put(OTHER)]), (10.2, [removed])), until=20
    )
    assert world.kernel.times == [0, 10]


# ---- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [REFUSED, UNAVAILABLE], ids=["refused", "unavailable"])
def test_a_change_that_fails_leads_to_a_full_transaction(fault: Exception) -> None:
    """Whatever kept a change from happening, everything is loaded instead, at once."""
    kernel = FakeKernel()
    world = World(kernel).at(9, kernel.faults.append, fault)
    world.run(source((0, EVERYTHING), (10, [Put(MORE_PODS)])), until=11)
    assert kernel.tries == [0, 10, 10]
    assert "flush map ip nftproxy tcp-endpoints\n" in kernel.applied[1][1].text
    world.assert_in_step()


def test_after_a_full_transaction_changes_are_small_again() -> None:
    """Once everything was loaded again, the kernel is known, and the next change is only that."""
    kernel = FakeKernel()
    world = World(kernel).at(9, kernel.faults.append, REFUSED)
    world.run(source((0, EVERYTHING), (10, [Put(MORE_PODS)]), (20, [Put(PODS)])), until=21)
    assert "flush map" not in kernel.applied[2][1].text
    world.assert_in_step()


@pytest.mark.parametrize(("fault", "replaces"), [(REFUSED, True), (UNAVAILABLE, False)])
def test_a_load_that_is_refused_is_followed_by_a_replacement(fault: Exception, replaces: bool) -> None:
    """A table that can't be loaded over is replaced; once that was done, tables are loaded over again."""
    kernel = World().run(source((0, EVERYTHING)), until=1).kernel
    kernel.applied.clear()
    kernel.faults.append(fault)
    world = World(kernel)
    world.at(3, lambda: setattr(kernel, "commits", kernel.commits + 1))
    world.run(source((0, EVERYTHING)), until=2 * SYNC_PERIOD).assert_in_step()
    deletes = [f"delete table {IPV4.table}\n" in transaction.text for _, transaction in kernel.applied]
    assert deletes == [replaces, False]


def test_tries_come_with_growing_pauses() -> None:
    """A load that fails is tried again after 0.1 s, then after twice as long each time."""
    kernel = FakeKernel(*[UNAVAILABLE] * 8)
    World(kernel).run(source((0, EVERYTHING)), until=100).assert_in_step()
    pauses = [after - before for before, after in itertools.pairwise(kernel.tries)]
    assert pauses == pytest.approx([FIRST_PAUSE * 2**number for number in range(8)])


def test_pauses_do_not_grow_for_ever() -> None:
    """However often a load fails, the next try comes within the longest pause."""
    kernel = FakeKernel(*[REFUSED] * 20)
    World(kernel).run(source((0, EVERYTHING)), until=1000).assert_in_step()
    pauses = [after - before for before, after in itertools.pairwise(kernel.tries)]
    assert pauses[-5:] == pytest.approx([LONGEST_PAUSE] * 5)


def test_what_comes_while_a_load_fails_is_in_the_one_that_works() -> None:
    """A try has all that has come until then."""
    kernel = FakeKernel(*[UNAVAILABLE] * 5)
    world = World(kernel).run(source((0, EVERYTHING), (1, [Put(OTHER)]), (2, [Put(MORE_PODS)])), until=100)
    assert len(kernel.applied) == 1
    world.assert_in_step()


def test_a_kernel_that_can_not_be_read_is_tried_again() -> None:
    """Without knowing what is there nothing is written, and it is asked again until it tells."""
    kernel = FakeKernel()
    kernel.deaf = UNAVAILABLE
    world = World(kernel).at(5, setattr, kernel, "deaf", None).run(source((0, EVERYTHING)), until=100)
    assert len(kernel.tries) == 1
    assert kernel.tries[0] > 5
    world.assert_in_step()


# ---- what the kernel refuses for good ------------------------------------------------------------------------------

BAD = service("shop/bad", cluster_ips=["10.96.0.66"])
BAD_PODS = slice_of("shop/bad", ["10.1.0.6@node-a"])
ITS_ADDRESS = "10.96.0.66"


def aside(world: World) -> list[str]:
    """The Services that are set aside."""
    return [str(key) for key in world.pipeline.set_aside]


@pytest.mark.parametrize("when", [0, 10], ids=["at the start", "later"])
def test_a_service_that_the_kernel_refuses_is_set_aside(when: float, caplog: pytest.LogCaptureFixture) -> None:
    """All others get their rules, before and after it, and it is named with what the kernel says."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    world = World(kernel).run(source((0, EVERYTHING), (when, [Put(BAD), Put(BAD_PODS)]), (20, [Put(OTHER)])), until=21)
    assert aside(world) == ["shop/bad"]
    assert list(world.pipeline.set_aside.values()) == [f"No such file or directory\n  in: {ITS_ADDRESS}"]
    assert {"10.96.0.10", "10.96.0.11"} == kernel.ledger.elements[IPV4.table]["cluster-ips"].keys()
    world.assert_in_step()
    said = [record.getMessage() for record in caplog.records]
    assert (
        sum("Service shop/bad is set aside: the kernel refuses its rules: No such file" in each for each in said) == 1
    )
    assert world.vitals.health.status(Moment(21, 21)).is_healthy
    assert f"flush map {IPV4.table} tcp-endpoints\n" not in kernel.applied[-1][1].text


def test_what_is_there_is_not_taken_away_to_find_it() -> None:
    """Who is to blame is found without a transaction: the rules that there are stay in force until all are loaded."""
    kernel = FakeKernel()
    world = World(kernel).at(5, kernel.unwanted.append, ITS_ADDRESS)
    world.run(source((0, EVERYTHING), (10, [Put(BAD)])), until=12)
    assert len(kernel.applied) == 2
    assert f"delete table {IPV4.table}" not in kernel.applied[1][1].text


def test_several_are_set_aside_at_once() -> None:
    """Each of those that are refused is found among many."""
    services = [service(f"shop/s{number:03}", cluster_ips=[f"10.96.1.{number}"]) for number in range(200)]
    kernel = FakeKernel()
    kernel.unwanted = ["10.96.1.7 ", "10.96.1.77 ", "10.96.1.199 "]
    world = World(kernel).run(source((0, [Put(node()), Listed(Service, tuple(services))])), until=5)
    assert aside(world) == ["shop/s007", "shop/s077", "shop/s199"]
    assert len(kernel.ledger.elements[IPV4.table]["cluster-ips"]) == 197
    world.assert_in_step()


def test_who_is_set_aside_is_tried_again_when_it_changes() -> None:
    """With an address that the kernel takes it is served at once, and needs no load of everything for that."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    good = service("shop/bad", cluster_ips=["10.96.0.77"])
    events = (0, [*EVERYTHING, Put(BAD), Put(BAD_PODS)]), (10, [Put(good)])
    world = World(kernel).run(source(*events), until=11)
    assert aside(world) == []
    assert "10.96.0.77" in kernel.ledger.elements[IPV4.table]["cluster-ips"]
    assert "flush" not in kernel.applied[-1][1].text
    world.assert_in_step()


def test_a_change_that_does_not_help_costs_the_others_nothing() -> None:
    """As often as it changes it is tried, and what is refused then is that alone: nothing is loaded again."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    events: list[Timed] = [
        (0, [*EVERYTHING, Put(BAD)]),
        (10, [Put(BAD_PODS)]),
        (12, [Put(MORE_PODS)]),
        (14, [Put(OTHER)]),
    ]
    world = World(kernel).run(source(*events), until=15)
    assert aside(world) == ["shop/bad"]
    assert len(kernel.applied) == 3
    world.assert_in_step()


def test_who_is_set_aside_is_tried_again_at_each_check() -> None:
    """Once the kernel takes its rules, it has them after the next sync period, with chains that only it needs."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    many = slice_of("shop/bad", [f"10.1.0.{number}@node-a" for number in range(10, 17)])
    seen: list[str] = []
    world = World(kernel).at(2.5 * SYNC_PERIOD, kernel.unwanted.clear)
    world.at(2.5 * SYNC_PERIOD, lambda: seen.extend(aside(world)))
    world.run(source((0, [*EVERYTHING, Put(BAD), Put(many)])), until=3 * SYNC_PERIOD + 1)
    assert seen == ["shop/bad"]
    assert aside(world) == []
    assert len(kernel.ledger.elements[IPV4.table]["tcp-endpoints"]) == 8
    world.assert_in_step()


def test_a_service_that_is_set_aside_may_go() -> None:
    """Nothing of it is remembered."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    world = World(kernel).run(source((0, [*EVERYTHING, Put(BAD)]), (10, [Removed(Service, key_of(BAD))])), until=11)
    assert aside(world) == []
    world.assert_in_step()


def test_rules_that_are_refused_without_any_service_set_none_aside() -> None:
    """If it is the skeleton that is refused, nobody is to blame, and it is tried again as ever."""
    kernel = FakeKernel()
    kernel.unwanted = ["chain services"]
    world = World(kernel).at(9, kernel.unwanted.clear).run(source((0, EVERYTHING)), until=100)
    assert aside(world) == []
    world.assert_in_step()


def test_a_kernel_that_dies_while_one_is_tried_again_gets_everything() -> None:
    """What isn't known is loaded."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    world = World(kernel).at(9, kernel.unwanted.clear).at(9, kernel.faults.append, UNAVAILABLE)
    world.run(source((0, [*EVERYTHING, Put(BAD)]), (10, [Put(BAD_PODS)])), until=12)
    assert aside(world) == []
    assert "flush map" in kernel.applied[-1][1].text
    world.assert_in_step()


def test_stopping_ends_the_search() -> None:
    """Who is told to stop doesn't look for culprits any longer."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    world = World(kernel)
    checks = 0
    check = kernel.check

    async def slow(transaction: Transaction) -> None:
        nonlocal checks
        checks += 1
        await asyncio.sleep(10)
        await check(transaction)

    kernel.check = slow  # type: ignore[method-assign]
    world.run(source((0, [*EVERYTHING, Put(BAD), Put(OTHER)])), until=5)
    assert checks == 1
    assert not kernel.applied


# ---- drift ---------------------------------------------------------------------------------------------------------

DRIFTS = [
    {"family": IPV4},
    {"family": IPV6},
    {"family": IPV4, "chain": "services"},
    {"family": IPV4, "chain": "tcp-endpoints-of-1"},
    {"family": IPV6, "container": "services"},
]


@pytest.mark.parametrize("drift", DRIFTS, ids=lambda drift: "-".join(map(str, drift.values())))
def test_what_someone_else_removes_is_repaired(drift: dict[str, Any]) -> None:
    """A table, a chain or a map that has gone is back after the next periodic check."""
    world = World()
    world.at(40, world.kernel.drop, **drift).run(source((0, EVERYTHING)), until=100)
    assert world.kernel.times == [0, 60]
    world.assert_in_step()


def test_the_check_is_made_however_much_happens() -> None:
    """Changes that come all the time, and concern something else, do not put the periodic check off."""
    world = World()
    world.at(40, world.kernel.drop, IPV6).run(
        source((0, EVERYTHING), *alternating(since=1, every=10, times=10)), until=62
    )
    assert world.kernel.ledger.installed(IPV6)
    world.assert_in_step()


def test_a_change_to_what_has_gone_repairs_it() -> None:
    """A change that is refused because the table has gone brings the table back at once."""
    world = World()
    world.at(9, world.kernel.drop, IPV4).run(source((0, EVERYTHING), (10, [Put(MORE_PODS)])), until=11)
    assert world.kernel.times == [0, 10]
    world.assert_in_step()


def test_a_check_that_finds_all_in_order_writes_nothing() -> None:
    """An hour without events is an hour without transactions."""
    assert World().run(source((0, EVERYTHING)), until=3600).kernel.times == [0]


def test_a_check_that_fails_is_made_again() -> None:
    """A check that can't read the kernel changes nothing, and the next one finds what is to be found."""
    world = World()
    world.at(40, world.kernel.drop, IPV4)
    world.at(50, setattr, world.kernel, "deaf", UNAVAILABLE).at(70, setattr, world.kernel, "deaf", None)
    assert world.run(source((0, EVERYTHING)), until=100).kernel.times == [0, 90]


# ---- the end -------------------------------------------------------------------------------------------------------


def test_on_stopping_the_rules_stay() -> None:
    """Nothing is written when the agent is told to stop, and it ends at once."""
    world = World().run(source((0, EVERYTHING)), until=100)
    assert (world.kernel.times, world.ended) == ([0], 100)
    world.assert_in_step()


def test_a_transaction_under_way_is_finished() -> None:
    """An agent that is told to stop in the middle of a transaction ends after it."""
    kernel = FakeKernel()
    kernel.delay = 5
    world = World(kernel).run(source((0, EVERYTHING)), until=2)
    assert (kernel.times, world.ended) == ([5], 5)


def test_stopping_ends_the_waiting_for_more_changes() -> None:
    """The pause after a transaction does not outlast the order to stop."""
    assert World(min_sync_period=20).run(source((0, EVERYTHING)), until=3).ended == 3


def test_stopping_ends_the_tries() -> None:
    """An agent whose kernel refuses everything ends when told to, and that is no error."""
    kernel = FakeKernel(*[REFUSED] * 100)
    world = World(kernel).run(source((0, EVERYTHING)), until=50)
    assert world.ended == 50
    assert kernel.applied == []


def test_a_source_that_fails_ends_the_agent_with_its_error() -> None:
    """The error of a source is the agent's, and the rules stay."""
    world = World()
    with pytest.raises(OSError, match="the source has gone"):
        world.run(failing(10), source((0, [])), until=100)
    assert (world.kernel.times, world.ended) == ([0], 10)


def test_a_source_that_fails_before_all_have_told_ends_the_agent() -> None:
    """So it is when another source is still waited for: nothing has been written then."""
    world = World()
    with pytest.raises(OSError, match="the source has gone"):
        world.run(failing(10), source(), until=100)
    assert (world.kernel.tries, world.ended) == ([], 10)


def test_a_source_that_fails_while_the_kernel_refuses_is_heard() -> None:
    """The error of a source ends the tries too, and is the one that is told."""
    with pytest.raises(OSError, match="the source has gone"):
        World(FakeKernel(*[REFUSED] * 100)).run(failing(10), until=100)


def test_a_source_that_ends_is_the_end() -> None:
    """A source that has nothing more to tell, ever, ends the agent without an error."""

    async def ending() -> AsyncIterator[Sequence[Event]]:
        yield EVERYTHING
        await asyncio.sleep(7)

    assert World().run(ending(), until=100).ended == 7


def test_what_follows_the_state_follows_after_the_kernel() -> None:
    """Health-check ports and the like are brought up to date after each commit, and not before the first."""
    world = World().run(source((1, EVERYTHING), (5, [Put(slice_of(endpoints=["10.1.0.9@node-a"]))])), until=9)
    assert world.settled == world.kernel.times == [1, 5]


def test_health_tells_the_truth_about_the_kernel() -> None:
    """While the kernel refuses, a change waits unapplied, and after 2 x syncPeriod the proxy is not healthy."""
    world = World(FakeKernel(*[Refused("no")] * 1000))
    seen: list[bool] = []
    for when in (SYNC_PERIOD, 2 * SYNC_PERIOD + 1):
        world.at(when, lambda: seen.append(world.vitals.health.status(Moment(now(), now())).is_healthy))
    world.run(source((0, EVERYTHING)), until=3 * SYNC_PERIOD)
    assert seen == [True, False]


# ---- others --------------------------------------------------------------------------------------------------------


def intrude(world: World, *are_about_us: bool) -> Callable[[], Commit]:
    """Let others commit, and if that is about us, take a table away."""

    def commit() -> Commit:
        if any(are_about_us) and world.kernel.ledger.installed(IPV4):
            world.kernel.ledger.apply(Transaction(f"delete table {IPV4.table}\n"))
        return world.kernel.others(*are_about_us)

    return commit


def test_what_others_take_away_is_back_at_once() -> None:
    """Nothing waits for the periodic check where the kernel tells that somebody touched our tables; once is enough."""
    world = World()
    world.at(3, intrude(world, False, True, False)).run(source((0, EVERYTHING)), until=3 * SYNC_PERIOD)
    assert world.kernel.times == [0, 3]
    world.assert_in_step()


@pytest.mark.parametrize("beside", [([True], []), ([], [True]), ([True], [True])], ids=["before", "after", "both"])
def test_what_others_take_away_beside_a_change_is_back_at_once(beside: tuple[list[bool], list[bool]]) -> None:
    """Harm in the very moment of a change of ours doesn't wait for the periodic check either."""
    world = World()
    world.at(9, setattr, world.kernel, "beside", beside)
    world.run(source((0, EVERYTHING), (10, [Put(OTHER)])), until=SYNC_PERIOD - 1)
    assert world.kernel.times == pytest.approx([0, 10, 11])
    world.assert_in_step()


def test_other_tables_are_others_affair() -> None:
    """Whatever others commit to their own tables, however often, and beside our own changes, nothing is loaded."""
    world = World()
    for tenth in range(900):
        world.at(tenth / 10 + 0.05, intrude(world, False))
    world.run(source((0, EVERYTHING), *alternating(since=1, every=5, times=10)), until=100)
    assert world.kernel.times == [0, *range(1, 51, 5)]


def test_who_fights_us_gets_one_load_a_second() -> None:
    """However often others touch our tables, loads have a second between them."""
    world = World()
    for tenth in range(100):
        world.at(tenth / 10 + 0.05, intrude(world, True))
    world.run(source((0, EVERYTHING)), until=20)
    assert world.kernel.times == pytest.approx(range(11), abs=0.2)
    world.assert_in_step()


def test_what_could_not_be_heard_is_looked_at() -> None:
    """Where there was too much to hear, everything is loaded at once, and after that only changes."""
    world = World()
    world.at(3, setattr, world.kernel, "has_lost_some", True).at(3.1, intrude(world, False))
    world.at(10, intrude(world, False)).run(source((0, EVERYTHING)), until=100)
    assert world.kernel.times == [0, 3.1]


def test_what_nobody_told_leads_to_a_full_load() -> None:
    """A generation that was not told may be about us, so everything is loaded at the next check; once."""
    world = World()
    world.at(3, lambda: setattr(world.kernel, "commits", world.kernel.commits + 1))
    world.run(source((0, EVERYTHING)), until=4 * SYNC_PERIOD)
    assert world.kernel.times == [0, SYNC_PERIOD]


def test_a_change_does_not_hide_what_nobody_told() -> None:
    """What others committed before a change of ours is noticed all the same."""
    world = World()
    world.at(3, lambda: setattr(world.kernel, "commits", world.kernel.commits + 1))
    world.run(source((0, EVERYTHING), (5, [Put(slice_of(endpoints=["10.1.0.9@node-a"]))])), until=2 * SYNC_PERIOD - 1)
    assert world.kernel.times == [0, 5, SYNC_PERIOD]
