"""The agent's loop: when it writes, how it handles failures, and how it ends."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from nftproxy.agent.loop import SyncLoop
from nftproxy.agent.reporting.health import Moment
from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.agent.sync.loading import BACKOFF
from nftproxy.api.reflector import Reflector
from nftproxy.api.resources import resources
from nftproxy.kernel.drift import CommitNotice
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.events import Event, Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, Service, key_of
from nftproxy.pipeline import STEP
from nftproxy.rules.transaction import Commit, Transaction
from tests.agent.world import (
    EVERYTHING,
    MORE_PODS,
    OTHER,
    PODS,
    REFUSED,
    SYNC_PERIOD,
    UNAVAILABLE,
    FakeKernel,
    Timed,
    VirtualLoop,
    World,
    alternating,
    failing,
    now,
    source,
)
from tests.support import objects
from tests.support.factories import IPV4, IPV6, elements, node, pipeline, service, slice_of
from tests.support.lists import receive_list

# ---- the beginning -------------------------------------------------------------------------------------------------


def test_nothing_is_written_before_every_source_is_complete() -> None:
    """The first transaction waits for the last source's first batch, and has everything."""
    slices, services = source((5, EVERYTHING[2:])), source((0, EVERYTHING[:2]), (2, [Put(OTHER)]))
    world = World().run(services, slices, until=6)
    assert world.kernel.times == [5]
    assert {"10.96.0.10", "10.96.0.11"} == world.kernel.ledger.elements[IPV4.table]["cluster-ips"].keys()
    world.assert_in_step()


def test_nothing_is_written_if_a_source_stays_silent() -> None:
    """An agent that is stopped before every source has reported leaves the kernel as it was."""
    world = World().run(source((0, EVERYTHING)), source(), until=100)
    assert world.kernel.tries == []
    assert world.ended == 100


def test_a_restart_deletes_no_table() -> None:
    """An agent that finds its own tables refills them in a single transaction, without deleting a table."""
    kernel = World().run(source((0, EVERYTHING)), until=1).kernel
    kernel.applied.clear()
    World(kernel).run(source((0, [*EVERYTHING, Put(MORE_PODS)])), until=1).assert_in_step()
    ((_, transaction),) = kernel.applied
    assert "delete table" not in transaction.text


def test_rendering_yields_to_other_tasks() -> None:
    """Other tasks on the loop, such as the answer to a probe, run between the steps of rendering."""
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


def test_the_commit_stage_has_the_kernels_time() -> None:
    """The seconds that the kernel takes for a load and for a change are those of the stage `commit`."""
    world = World(kernel := FakeKernel())
    kernel.delay = 2.0
    world.run(source((0, EVERYTHING), (10, [Put(MORE_PODS)])), until=20)
    text = world.reporter.scrape().decode()
    name = "nftproxy_sync_stage_duration_seconds"
    for kind in ("full", "change"):
        assert f'{name}_sum{{kind="{kind}",stage="commit"}} 2.0' in text
        assert f'{name}_sum{{kind="{kind}",stage="diff"}} 0.0' in text


def test_a_change_is_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the notification of our own commit nor the gathering period after it makes another round."""
    rounds: list[float] = []
    taken = SyncReporter.taken

    def note(reporter: SyncReporter) -> None:
        rounds.append(now())
        taken(reporter)

    monkeypatch.setattr(SyncReporter, "taken", note)
    World().run(source((0, EVERYTHING), *alternating(since=2, every=2, times=5)), until=11)
    assert rounds[-5:] == [2, 4, 6, 8, 10]


def test_a_change_is_on_its_way_before_its_source_is_asked_for_more() -> None:
    """The wait for the source's next change is set up only after the kernel has this change."""
    world = World()
    tries: list[float] = []

    async def changes() -> AsyncGenerator[Sequence[Event]]:
        yield EVERYTHING
        await asyncio.sleep(10)
        yield [Put(MORE_PODS)]
        tries.extend(world.kernel.tries)
        await asyncio.Event().wait()

    world.run(changes(), until=11)
    assert tries == [0, 10]


def test_a_listing_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a listing of known objects the loop keeps none of the new ones, and gives their memory back."""
    given: list[Sequence[Event]] = []
    trims: list[float] = []
    monkeypatch.setattr("nftproxy.agent.loop.trim_memory", lambda: trims.append(now()))

    async def listings() -> AsyncGenerator[Sequence[Event]]:
        yield EVERYTHING
        await asyncio.sleep(10)
        given.append([Listed(Service, (OTHER,))])
        yield given[0]
        await asyncio.sleep(10)
        yield [Put(MORE_PODS)]
        await asyncio.Event().wait()

    held: list[int] = []
    alone: list[Sequence[Event]] = [[]]
    World().at(15, lambda: held.append(sys.getrefcount(given[0]))).run(listings(), until=25)
    assert held == [sys.getrefcount(alone[0])]
    assert trims == [10]


def test_changes_make_no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many changes come, the timer that wakes the agent for its periodic check is made once for each check."""
    made: list[float] = []
    call_at = VirtualLoop.call_at

    def note(loop: VirtualLoop, when: float, callback: Callable[..., object], *arguments: Any, **options: Any) -> Any:
        if getattr(callback, "__self__", None).__class__ is SyncLoop:
            made.append(round(when, 6))
        return call_at(loop, when, callback, *arguments, **options)

    monkeypatch.setattr(VirtualLoop, "call_at", note)
    World().run(source((0, EVERYTHING), *alternating(since=2, every=2, times=40)), until=85)
    ending, *checks = made
    assert (ending, checks) == (85, [SYNC_PERIOD, 2 * SYNC_PERIOD, 3 * SYNC_PERIOD])


def test_changes_soon_after_a_change_are_gathered() -> None:
    """Changes within the minimal period after a transaction are applied together, at its end."""
    changes: list[Timed] = [(10, [Put(MORE_PODS)]), (10.2, [Put(OTHER)]), (10.9, [Put(PODS)]), (11.5, [Put(MORE_PODS)])]
    world = World().run(source((0, EVERYTHING), *changes), until=20)
    assert world.kernel.times == [0, 10, 11, 12]
    world.assert_in_step()


def test_changes_of_all_sources_are_gathered() -> None:
    """Batches that have come together are a single transaction, from any source."""
    first, second = source((0, EVERYTHING), (10, [Put(MORE_PODS)])), source((0, []), (10, [Put(OTHER)]))
    assert World().run(first, second, until=20).kernel.times == [0, 10]


def test_an_event_without_effect_delays_no_change() -> None:
    """An event without consequence is no transaction, and the next change is applied at once all the same."""
    world = World().run(source((0, EVERYTHING), (10, [Put(PODS)]), (10.3, [Put(MORE_PODS)])), until=20)
    assert world.kernel.times == [0, 10.3]


def test_a_change_that_is_taken_back_is_no_transaction() -> None:
    """A change that is undone while changes are gathered never reaches the kernel."""
    removed = Removed(Service, key_of(OTHER))
    world = World().run(
        source((0, EVERYTHING), (10, [Put(MORE_PODS)]), (10.1, [Put(OTHER)]), (10.2, [removed])), until=20
    )
    assert world.kernel.times == [0, 10]


# ---- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [REFUSED, UNAVAILABLE], ids=["refused", "unavailable"])
def test_a_change_that_fails_leads_to_a_full_transaction(fault: Exception) -> None:
    """A change that fails for any reason leads to a full load at once."""
    kernel = FakeKernel()
    world = World(kernel).at(9, kernel.faults.append, fault)
    world.run(source((0, EVERYTHING), (10, [Put(MORE_PODS)])), until=11)
    assert kernel.tries == [0, 10, 10]
    assert "flush chain ip nftproxy services\n" in kernel.applied[1][1].text
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
    """A table that can't be loaded over is replaced, and the next load loads over tables again."""
    kernel = World().run(source((0, EVERYTHING)), until=1).kernel
    kernel.applied.clear()
    kernel.faults += [fault] * 3  # both together, and each by itself
    world = World(kernel)
    world.at(3, lambda: setattr(kernel, "commits", kernel.commits + 1))
    world.run(source((0, EVERYTHING)), until=2 * SYNC_PERIOD).assert_in_step()
    for family in Family:
        loads = [transaction.text for _, transaction in kernel.applied if f"table {family.table}\n" in transaction.text]
        assert [f"delete table {family.table}\n" in text for text in loads] == [replaces, False]


def test_tries_come_with_growing_pauses() -> None:
    """A load that fails is tried again after 0.1 s, then after twice as long each time."""
    kernel = FakeKernel(*[UNAVAILABLE] * 8)
    World(kernel).run(source((0, EVERYTHING)), until=100).assert_in_step()
    pauses = [after - before for before, after in itertools.pairwise(kernel.tries)]
    assert pauses == pytest.approx([BACKOFF.first * 2**number for number in range(8)])


def test_pauses_do_not_grow_for_ever() -> None:
    """However often a load fails, the next try comes within the longest pause."""
    kernel = FakeKernel(*[REFUSED] * 41)
    World(kernel).run(source((0, EVERYTHING)), until=1000).assert_in_step()
    pauses = [after - before for before, after in itertools.pairwise(sorted(set(kernel.tries)))]
    assert pauses[-5:] == pytest.approx([BACKOFF.longest] * 5)


def test_a_retry_has_all_changes_since_the_failure() -> None:
    """A retry contains all changes that have come until then."""
    kernel = FakeKernel(*[UNAVAILABLE] * 5)
    world = World(kernel).run(source((0, EVERYTHING), (1, [Put(OTHER)]), (2, [Put(MORE_PODS)])), until=100)
    assert len(kernel.applied) == 1
    world.assert_in_step()


def test_a_kernel_that_can_not_be_read_is_tried_again() -> None:
    """Nothing is written until the kernel's tables can be read, and the reading is retried."""
    kernel = FakeKernel()
    kernel.deaf = UNAVAILABLE
    world = World(kernel).at(5, setattr, kernel, "deaf", None).run(source((0, EVERYTHING)), until=100)
    assert len(kernel.tries) == 1
    assert kernel.tries[0] > 5
    world.assert_in_step()


# ---- the end -------------------------------------------------------------------------------------------------------


def test_on_stopping_the_rules_stay() -> None:
    """Nothing is written when the agent is stopped, and it ends at once."""
    world = World().run(source((0, EVERYTHING)), until=100)
    assert (world.kernel.times, world.ended) == ([0], 100)
    world.assert_in_step()


def test_a_transaction_under_way_is_finished() -> None:
    """An agent that is stopped in the middle of a transaction ends after it."""
    kernel = FakeKernel()
    kernel.delay = 5
    world = World(kernel).run(source((0, EVERYTHING)), until=2)
    assert (kernel.times, world.ended) == ([5], 5)


def test_stopping_ends_the_waiting_for_more_changes() -> None:
    """The pause after a transaction does not outlast the order to stop."""
    assert World(min_sync_period=20).run(source((0, EVERYTHING)), until=3).ended == 3


def test_stopping_ends_the_tries() -> None:
    """An agent whose kernel refuses everything ends when it is stopped, and that is no error."""
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


def test_a_failing_source_ends_an_agent_that_still_waits() -> None:
    """A source's error also ends the agent while another source is awaited, and nothing has been written then."""
    world = World()
    with pytest.raises(OSError, match="the source has gone"):
        world.run(failing(10), source(), until=100)
    assert (world.kernel.tries, world.ended) == ([], 10)


def test_a_source_that_fails_while_the_kernel_refuses_is_heard() -> None:
    """A source's error ends the retries too, and is the error that is raised."""
    with pytest.raises(OSError, match="the source has gone"):
        World(FakeKernel(*[REFUSED] * 100)).run(failing(10), until=100)


def test_a_source_that_ends_ends_the_agent() -> None:
    """A source that has nothing more to tell, ever, ends the agent without an error."""

    async def ending() -> AsyncGenerator[Sequence[Event]]:
        yield EVERYTHING
        await asyncio.sleep(7)

    assert World().run(ending(), until=100).ended == 7


def test_a_source_that_is_cancelled_ends_the_agent_with_an_error() -> None:
    """A source that somebody else cancels ends the agent with an error that names it, and never as if by SIGTERM."""

    async def cancelled() -> AsyncGenerator[Sequence[Event]]:
        yield EVERYTHING
        await asyncio.sleep(7)
        raise asyncio.CancelledError

    world = World()
    with pytest.raises(RuntimeError, match=r"^cancelled, and not by the agent: source 1$"):
        world.run(source((0, [])), cancelled(), until=100)
    assert (world.kernel.times, world.ended) == ([0], 7)


def test_every_source_is_closed_at_the_end() -> None:
    """A source is closed even if the agent is stopped between two of its batches.

    Otherwise its connection to the API server is closed only with the event loop, at the same time as the generators
    below it, which Python refuses with a traceback.
    """
    world = World()
    closed: list[float] = []

    async def stopping() -> AsyncGenerator[Sequence[Event]]:
        try:
            yield EVERYTHING
            await asyncio.sleep(7)
            asyncio.get_running_loop().call_soon(world.stop)
            yield [Put(OTHER)]
        finally:
            closed.append(world.ended)

    assert world.run(stopping(), until=100).ended == 7
    assert closed == [0.0], "it was closed before the agent had ended"


def test_followers_run_after_each_commit() -> None:
    """Health-check ports and the like are brought up to date after each commit, and not before the first."""
    world = World().run(source((1, EVERYTHING), (5, [Put(slice_of(endpoints=["10.1.0.9@node-a"]))])), until=9)
    assert world.kernel.times == [1, 5]
    assert world.settled == [(1, frozenset(Family)), (5, frozenset(Family))]


def test_followers_run_again_when_they_ask_for_it() -> None:
    """They run once more at the time that they have named, although nothing changes, and no more without another."""
    world = World()
    world.settle_again = iter([4.0])
    world.run(source((1, EVERYTHING)), until=9)
    assert world.settled == [(1, frozenset(Family)), (4, frozenset(Family))]


def test_followers_wait_while_the_kernel_refuses() -> None:
    """A time that they have named is no reason to go on while no rules are known to be in force."""
    world = World(FakeKernel())
    world.settle_again = iter([4.0])
    world.at(1.5, lambda: world.kernel.faults.extend([Unavailable("no")] * 1000))
    world.run(source((1, EVERYTHING), (2, [Put(node(internal_ips=["192.168.0.3", "fd00::3"]))])), until=9)
    assert world.settled == [(1, frozenset(Family))]


def test_health_follows_the_kernels_refusals() -> None:
    """While the kernel refuses, the proxy isn't healthy, and after 2 x syncPeriod it counts as dead."""
    world = World(FakeKernel(*[Refused("no")] * 1000))
    seen: list[tuple[bool, bool]] = []

    def look() -> None:
        status = world.reporter.status()
        seen.append((status.is_healthy, status.is_alive))

    for when in (1, SYNC_PERIOD, 2 * SYNC_PERIOD + 1):
        world.at(when, look)
    world.run(source((0, EVERYTHING)), until=3 * SYNC_PERIOD)
    assert seen == [(False, True), (False, True), (False, False)]


# ---- the beginning, and its reports ----------------------------------------------------------------------------------


def test_the_missing_source_is_named_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    """Health, metrics and the log name the source that hasn't delivered, the log with backoff."""
    world = World()
    seen: list[tuple[str, ...]] = []
    for when in (1, 8, 3601):
        world.at(when, lambda: seen.append(world.reporter.status().waiting))
    world.at(9, lambda: seen.append((world.reporter.scrape().decode(),)))
    world.run(source((0, EVERYTHING)), source((7, [])), source((3600, [])), until=3602)
    loads = ("the first load of IPv4", "the first load of IPv6")
    assert seen[0] == ("the first listing of source 1", "the first listing of source 2", *loads)
    assert seen[1] == ("the first listing of source 2", *loads)
    assert 'nftproxy_waiting{for="the first listing of source 2"} 1.0\n' in seen[2][0]
    assert seen[3] == ()
    assert "nftproxy_waiting{" not in world.reporter.scrape().decode()
    notes = [record.getMessage() for record in caplog.records if "no rules are loaded yet" in record.getMessage()]
    assert notes[0] == "no rules are loaded yet: waiting for the first listing of source 1, source 2"
    assert notes[1:] == ["no rules are loaded yet: waiting for the first listing of source 2"] * (len(notes) - 1)
    assert 10 < len(notes) < 25


def test_nothing_grows_while_something_is_waited_for() -> None:
    """While a source is awaited, changing objects are kept once, and objects that come and go aren't kept."""
    world = World()
    sizes: list[int] = []

    async def busy() -> AsyncGenerator[Sequence[Event]]:
        yield EVERYTHING
        for number in range(2000):
            await asyncio.sleep(0.001)
            fleeting = service(f"shop/fleeting-{number}")
            yield [Put(PODS), Put(MORE_PODS), Put(fleeting), Removed(Service, fleeting.key)]
            sizes.append(len(world.inbox))
        await asyncio.Event().wait()

    world.run(busy(), source((10, [])), until=11).assert_in_step()
    assert max(sizes) == min(sizes) == 3
    assert len(world.kernel.applied) == 1


# ---- the two families ------------------------------------------------------------------------------------------------

DUAL = service("shop/dual", cluster_ips=["10.96.0.20", "fd00:96::20"])


def test_refused_ipv6_rules_do_not_delay_ipv4() -> None:
    """IPv4 is served from the start and gets small transactions and their followers while IPv6 is refused."""
    kernel = FakeKernel()
    kernel.unwanted = ["table ip6 nftproxy"]
    world = World(kernel)
    changes: list[Timed] = [(10, [Put(OTHER)]), (20, [Put(MORE_PODS)]), (2 * SYNC_PERIOD + 1, [Put(DUAL)])]
    world.run(source((0, EVERYTHING), *changes), until=3 * SYNC_PERIOD)
    assert kernel.times == [0, 10, 20, 61]
    assert all("flush map" not in transaction.text for _, transaction in kernel.applied)
    assert [families for _, families in world.settled] == [frozenset({IPV4})] * 4
    assert kernel.ledger.held(IPV4) == set(world.pipeline.generations[IPV4].elements())
    status = world.reporter.health.status(Moment(3 * SYNC_PERIOD, 0))
    assert (status.is_healthy, status.is_alive, status.serves([IPV4])) == (False, True, True)
    assert status.waiting == ("the first load of IPv6",)


def test_a_family_that_is_refused_later_leaves_the_other_alone() -> None:
    """A table that another program has taken is retried by itself, and loaded once it can be."""
    kernel = FakeKernel()
    world = World(kernel).at(5, kernel.unwanted.append, "table ip6 nftproxy").at(100, kernel.unwanted.clear)
    world.at(5, kernel.unwanted.append, "element ip6 nftproxy")
    world.run(source((0, EVERYTHING), (10, [Put(DUAL)]), (20, [Put(OTHER)])), until=200).assert_in_step()
    before = [(when, transaction.text) for when, transaction in kernel.applied if when < 100]
    assert [when for when, _ in before] == [0, 10, 20]
    after = [transaction.text for when, transaction in kernel.applied if when >= 100]
    assert len(after) == 1
    assert "ip nftproxy" not in after[0]


def test_commits_to_a_refused_familys_table_cause_no_load() -> None:
    """Where the kernel refuses a family, commits to its table are no reason to load the other again."""
    kernel = FakeKernel()
    kernel.unwanted = ["table ip6 nftproxy"]
    world = World(kernel)
    for second in range(1, 50):
        world.at(
            second, lambda: kernel.told(kernel.commits, CommitNotice(kernel.commits + 1, frozenset({IPV6}), "nft"))
        )
    world.run(source((0, EVERYTHING)), until=50)
    assert kernel.times == [0]


def test_a_family_that_is_refused_costs_one_small_question() -> None:
    """A retry of a refused family first tries the table alone, however many Services there are."""
    kernel = FakeKernel()
    kernel.unwanted = ["table ip6 nftproxy"]
    many = [service(f"shop/s{number}", cluster_ips=[f"fd00:96::{number}"]) for number in range(1, 1_000)]
    asked: list[int] = []
    check = kernel.check

    async def measured(transaction: Transaction) -> None:
        asked.append(len(transaction.text))
        await check(transaction)

    kernel.check = measured  # type: ignore[method-assign]
    World(kernel).run(source((0, [*EVERYTHING, *map(Put, many)])), until=1000)
    whole = len(pipeline(*many).load(IPV6, None).text)
    assert len(asked) > 30
    assert max(asked) < whole / 2
    assert len(kernel.tries) == 3, "together, and each by itself, once"


# ---- rules of a failed transaction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [10, SYNC_PERIOD], ids=["after a change", "at a check"])
def test_nothing_follows_rules_that_the_kernel_may_not_hold(when: float, caplog: pytest.LogCaptureFixture) -> None:
    """If the kernel side dies while a Service is retried, what follows the rules waits for the load."""
    kernel = FakeKernel()
    kernel.unwanted = ["10.96.0.11"]
    world = World(kernel)
    world.at(when - 1, kernel.unwanted.clear).at(when - 1, setattr, kernel, "dies_for", "10.96.0.11")
    world.at(when + 5, setattr, kernel, "dies_for", "")
    world.run(source((0, [*EVERYTHING, Put(OTHER)]), (10, [Put(slice_of("shop/other"))])), until=when + 40)
    world.assert_in_step()
    assert not [at for at, families in world.settled if when <= at < when + 5 and IPV4 in families]
    assert [at for at, families in world.settled if at >= when + 5 and IPV4 in families]
    assert not [record for record in caplog.records if "libnftables has died" in record.msg and "refuse" in record.msg]


# ---- transactions that would kill this process -----------------------------------------------------------------------


def test_a_load_that_would_crash_the_agent_is_not_applied(caplog: pytest.LogCaptureFixture) -> None:
    """A transaction that kills another process is a named fault, retried with backoff until it succeeds."""
    kernel = FakeKernel()
    kernel.is_lethal = True
    world = World(kernel).at(10, setattr, kernel, "is_lethal", False)
    seen: list[tuple[str, ...]] = []
    world.at(9, lambda: seen.append(world.reporter.status().waiting))
    world.run(source((0, EVERYTHING)), until=30).assert_in_step()
    assert seen == [("the first load of IPv4", "the first load of IPv6")]
    assert kernel.tries == [kernel.child_checks[-1]]
    assert kernel.tries[0] > 10
    pauses = [after - before for before, after in itertools.pairwise(kernel.child_checks[1:])]
    assert pauses == pytest.approx([BACKOFF.first * 2 ** (number + 1) for number in range(len(pauses))])
    assert "loading the rules of IPv4 failed, retrying in 0.1 s: the process that used libnftables was killed by" in (
        caplog.text
    )


def test_only_the_first_load_is_tried_in_a_child() -> None:
    """Once this process has survived a load, no further load is tried in a child process."""
    world = World()
    world.at(40, world.kernel.drop, IPV4).run(source((0, EVERYTHING), (5, [Put(OTHER)])), until=100)
    assert world.kernel.times == [0, 5, 60]
    assert world.kernel.child_checks == [0]


def test_a_start_over_rules_is_tried_in_a_child_once() -> None:
    """A check in a child during the listing isn't repeated, and the present rules are read meanwhile."""
    first = World()
    first.run(source((0, EVERYTHING)), until=1)
    kernel = first.kernel
    kernel.child_checks.clear()
    kernel.has_read_ahead.clear()
    seen: list[set[Family]] = []
    again = World(kernel).at(4, lambda: seen.append(kernel.has_read_ahead))
    again.run(source((5, EVERYTHING)), until=10).assert_in_step()
    assert kernel.child_checks == [0]
    assert kernel.times == [0, 5]
    assert seen == [{IPV4, IPV6}]


# ---- the cost of a change ------------------------------------------------------------------------------------------

MOST_CALLS = 1_370
"""Most function calls, built-in functions included, for a replaced endpoint of ten, from the line of a watch to the end
of the round: without HTTP and the kernel.  Python 3.11 takes 1,334, and later versions take fewer."""


class QuickKernel(FakeKernel):
    """A kernel that accepts each change without a look."""

    async def apply(self, transaction: Transaction) -> Commit:
        """Count a commit."""
        if self.commits < 2:
            return await super().apply(transaction)
        self.applied.append((now(), transaction))
        self.commits += 1
        return Commit(self.commits - 1, self.commits)


def test_a_change_takes_few_calls() -> None:
    """From the line of a watch to the end of the round, a replaced endpoint of ten takes a bounded number of calls."""
    calls = Counter[str]()
    slices = Reflector(next(each for each in resources("node-a") if each.kind.name == "EndpointSlice"))
    slices.request(0.0, 0.0)
    empty = {"apiVersion": "discovery.k8s.io/v1", "metadata": {"resourceVersion": "1"}, "items": []}
    listed = json.dumps({"kind": "EndpointSliceList"} | empty).encode()
    assert receive_list(slices, listed) == [Listed(EndpointSlice, ())]
    slices.request(0.0, 0.0)

    async def changes() -> AsyncGenerator[Sequence[Event]]:
        yield [Listed(EndpointSlice, ())]
        for number in range(8):  # the first make chains
            pods = [f"10.1.{node}.{4 + number * (not node)}" for node in range(10)]
            endpoints = [
                objects.endpoint(pod, "node-b", "ready", targetRef={"kind": "Pod", "name": f"web-{pod}"})
                for pod in pods
            ]
            made = objects.endpoint_slice(
                "web-1", *endpoints, namespace="shop", ports=["http:8080"], metadata={"resourceVersion": "2"}
            )
            data = json.dumps({"type": "MODIFIED", "object": made}).encode() + b"\n"
            await asyncio.sleep(10)
            calls.clear()
            sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
            yield slices.receive_data(data, now())
        await asyncio.Event().wait()

    world = World(QuickKernel())
    for number in range(8):
        world.at(10 * number + 15, sys.setprofile, None)
    world.run(source((0, EVERYTHING[:2])), changes(), until=90)
    when, last = world.kernel.applied[-1]
    assert (when, last.text.count("10.1.0.11")) == (80, 1)
    assert calls["call"] + calls["c_call"] < MOST_CALLS
