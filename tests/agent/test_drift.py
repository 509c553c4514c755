"""Changes of our tables by other programs are found by the periodic check, or at once by notifications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nftproxy.model.events import Event, Put
from nftproxy.rules.transaction import Commit, Transaction
from tests.agent.reporting.test_metrics import series
from tests.agent.world import (
    EVERYTHING,
    MORE_PODS,
    OTHER,
    SYNC_PERIOD,
    UNAVAILABLE,
    World,
    alternating,
    source,
)
from tests.support.factories import IPV4, IPV6, slice_of

# ---- the findings of the check --------------------------------------------------------------------------------------

DRIFTS = [
    {"family": IPV4},
    {"family": IPV6},
    {"family": IPV4, "chain": "services"},
    {"family": IPV4, "chain": "tcp-endpoints-of-1"},
    {"family": IPV6, "container": "services"},
]


@pytest.mark.parametrize("drift", DRIFTS, ids=lambda drift: "-".join(map(str, drift.values())))
def test_objects_that_another_program_removes_are_restored(drift: dict[str, Any]) -> None:
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


def test_a_change_to_a_missing_table_restores_it() -> None:
    """A change that is refused because the table has gone brings the table back at once."""
    world = World()
    world.at(9, world.kernel.drop, IPV4).run(source((0, EVERYTHING), (10, [Put(MORE_PODS)])), until=11)
    assert world.kernel.times == [0, 10]
    world.assert_in_step()


def test_a_check_that_finds_all_in_order_writes_nothing() -> None:
    """An hour without events is an hour without transactions."""
    assert World().run(source((0, EVERYTHING)), until=3600).kernel.times == [0]


def test_a_check_that_fails_is_made_again() -> None:
    """A check that can't read the kernel changes nothing, and the next check finds the differences."""
    world = World()
    world.at(40, world.kernel.drop, IPV4)
    world.at(50, setattr, world.kernel, "deaf", UNAVAILABLE).at(70, setattr, world.kernel, "deaf", None)
    assert world.run(source((0, EVERYTHING)), until=100).kernel.times == [0, 90]


# ---- the kernel's notifications -------------------------------------------------------------------------------------


def intrude(world: World, *are_about_us: bool) -> Callable[[], Commit]:
    """Let other programs commit, and if the commit is about us, take a table away."""

    def commit() -> Commit:
        if any(are_about_us) and world.kernel.ledger.installed(IPV4):
            world.kernel.ledger.apply(Transaction(f"delete table {IPV4.table}\n"))
        return world.kernel.others(*are_about_us)

    return commit


def test_foreign_damage_is_repaired_at_once() -> None:
    """If the kernel notifies that our tables were touched, one load follows without waiting for the periodic check."""
    world = World()
    world.at(3, intrude(world, False, True, False)).run(source((0, EVERYTHING)), until=3 * SYNC_PERIOD)
    assert world.kernel.times == [0, 3]
    world.assert_in_step()


@pytest.mark.parametrize("beside", [([True], []), ([], [True]), ([True], [True])], ids=["before", "after", "both"])
def test_foreign_damage_beside_a_change_is_repaired_at_once(beside: tuple[list[bool], list[bool]]) -> None:
    """Harm in the very moment of a change of ours doesn't wait for the periodic check either."""
    world = World()
    world.at(9, setattr, world.kernel, "beside", beside)
    world.run(source((0, EVERYTHING), (10, [Put(OTHER)])), until=SYNC_PERIOD - 1)
    assert world.kernel.times == pytest.approx([0, 10, 11])
    world.assert_in_step()


def test_a_load_sends_what_differs() -> None:
    """A load adds what another program removed, and where nothing differs only the rules come again."""
    world = World()

    def harm() -> None:
        del world.kernel.ledger.elements["ip nftproxy"]["services"]["10.96.0.10 . tcp . 80"]
        world.kernel.others(True)

    world.at(3, harm).run(source((0, EVERYTHING)), until=SYNC_PERIOD)
    assert world.kernel.times == [0, 3]
    text = world.kernel.applied[-1][1].text
    assert [line for line in text.splitlines() if " element " in line[:16]] == [
        "add element ip nftproxy services { 10.96.0.10 . tcp . 80 : 0.0.0.1 }"
    ]
    assert "flush chain ip nftproxy services\n" in text
    world.assert_in_step()


@pytest.mark.parametrize(
    ("is_ours", "times"), [(True, [0, 3, 4]), (False, [0, 3])], ids=["our tables", "their own tables"]
)
def test_foreign_damage_during_a_comparison_is_repaired(is_ours: bool, times: list[float]) -> None:
    """Harm that comes between the look at our tables and the load is repaired by another load."""
    world = World()
    kernel = world.kernel

    def harm() -> None:
        if is_ours:
            kernel.ledger.elements["ip nftproxy"]["services"].clear()
        kernel.others(is_ours)

    world.at(3, setattr, kernel, "after_comparing", harm).at(3, kernel.others, True)
    world.run(source((0, EVERYTHING)), until=SYNC_PERIOD - 1)
    assert kernel.times == pytest.approx(times)
    world.assert_in_step()


def test_commits_to_other_tables_cause_no_load() -> None:
    """Commits of other programs to their own tables, however frequent, and beside our changes, cause no load."""
    world = World()
    for tenth in range(900):
        world.at(tenth / 10 + 0.05, intrude(world, False))
    world.run(source((0, EVERYTHING), *alternating(since=1, every=5, times=10)), until=100)
    assert world.kernel.times == [0, *range(1, 51, 5)]


def test_loads_against_a_fighting_program_are_a_second_apart() -> None:
    """However often other programs touch our tables, loads have a second between them."""
    world = World()
    for tenth in range(100):
        world.at(tenth / 10 + 0.05, intrude(world, True))
    world.run(source((0, EVERYTHING)), until=20)
    assert world.kernel.times == pytest.approx(range(11), abs=0.2)
    world.assert_in_step()


def test_lost_notifications_cause_a_full_load() -> None:
    """After lost notifications everything is loaded at once, and after that only changes."""
    world = World()
    world.at(3, setattr, world.kernel, "has_lost_some", True).at(3.1, intrude(world, False))
    world.at(10, intrude(world, False)).run(source((0, EVERYTHING)), until=100)
    assert world.kernel.times == [0, 3.1]


@pytest.mark.parametrize(("changes", "repairs"), [([], 1), ([Put(OTHER)], 0)], ids=["alone", "beside a change"])
def test_a_repair_that_no_notification_announces_is_counted(
    changes: list[Event], repairs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Elements that a load must add after lost notifications are a repair, unless a change may have brought them."""
    world = World()

    def lose() -> None:
        del world.kernel.ledger.elements[IPV4.table]["services"]["10.96.0.10 . tcp . 80"]
        world.kernel.commits += 1

    async def generation_after_changes() -> int:
        world.inbox.add(changes, 0.0)
        return world.kernel.commits

    world.at(3, lose).at(4, setattr, world.kernel, "generation", generation_after_changes)
    world.run(source((0, EVERYTHING)), until=SYNC_PERIOD + 1)
    added = "table ip nftproxy had other elements, which are repaired: added services { 10.96.0.10 . tcp . 80"
    assert caplog.text.count(added) == repairs
    counted = series(world.reporter.metrics, "nftproxy_repairs_total{")
    assert counted['nftproxy_repairs_total{ip_family="IPv4"}'] == repairs
    world.assert_in_step()


def test_an_unannounced_generation_causes_a_full_load() -> None:
    """A generation without notification may be about us, so the next check loads everything, once."""
    world = World()
    world.at(3, lambda: setattr(world.kernel, "commits", world.kernel.commits + 1))
    world.run(source((0, EVERYTHING)), until=4 * SYNC_PERIOD)
    assert world.kernel.times == [0, SYNC_PERIOD]


def test_a_change_does_not_hide_an_unannounced_commit() -> None:
    """A foreign commit before a change of ours is noticed all the same."""
    world = World()
    world.at(3, lambda: setattr(world.kernel, "commits", world.kernel.commits + 1))
    world.run(source((0, EVERYTHING), (5, [Put(slice_of(endpoints=["10.1.0.9@node-a"]))])), until=2 * SYNC_PERIOD - 1)
    assert world.kernel.times == [0, 5, SYNC_PERIOD]
