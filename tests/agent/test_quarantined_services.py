"""Permanent refusals: the Services at fault are found, quarantined, and retried."""

from __future__ import annotations

import asyncio

import pytest

from nftproxy.agent.reporting.health import Moment
from nftproxy.agent.sync.quarantine import MOST_RETRIED
from nftproxy.model.errors import Refused
from nftproxy.model.events import Listed, Put, Removed
from nftproxy.model.objects import Service, key_of
from nftproxy.rules.transaction import Transaction
from tests.agent.world import (
    EVERYTHING,
    MORE_PODS,
    OTHER,
    SYNC_PERIOD,
    UNAVAILABLE,
    FakeKernel,
    Timed,
    World,
    now,
    source,
)
from tests.support.factories import IPV4, IPV6, node, service, slice_of

BAD = service("shop/bad", cluster_ips=["10.96.0.66"])
BAD_PODS = slice_of("shop/bad", ["10.1.0.6@node-a"])
ITS_ADDRESS = "10.96.0.66"
ITS_ELEMENT = f"add element {IPV4.table} cluster-ips {{ {ITS_ADDRESS} }}"


def naming_kernel() -> FakeKernel:
    """A kernel that refuses a Service, and names its element."""
    kernel = FakeKernel()
    kernel.unwanted, kernel.statement_of = [ITS_ADDRESS], {ITS_ADDRESS: ITS_ELEMENT}
    return kernel


def quarantined(world: World) -> list[str]:
    """The Services that are quarantined."""
    return [str(key) for withheld in world.pipeline.withheld.values() for key in withheld]


@pytest.mark.parametrize("when", [0, 10], ids=["at the start", "later"])
def test_a_service_that_the_kernel_refuses_is_quarantined(when: float, caplog: pytest.LogCaptureFixture) -> None:
    """All other Services get their rules, before and after, and the log names the Service and the kernel's error."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    world = World(kernel).run(source((0, EVERYTHING), (when, [Put(BAD), Put(BAD_PODS)]), (20, [Put(OTHER)])), until=21)
    assert quarantined(world) == ["shop/bad"]
    assert list(world.pipeline.withheld[IPV4].values()) == [f"No such file or directory\n  in: {ITS_ADDRESS}"]
    assert {"10.96.0.10", "10.96.0.11"} == kernel.ledger.elements[IPV4.table]["cluster-ips"].keys()
    world.assert_in_step()
    text = "Service shop/bad is quarantined for IPv4: the kernel refuses its rules: No such file"
    assert [record.getMessage()[: len(text)] for record in caplog.records].count(text) == 1
    assert world.reporter.health.status(Moment(21, 21)).is_healthy
    assert f"flush map {IPV4.table} tcp-endpoints\n" not in kernel.applied[-1][1].text


def test_the_search_for_a_refused_service_removes_no_rule() -> None:
    """The search for the culprit needs no transaction: the present rules stay in force until all are loaded."""
    kernel = FakeKernel()
    world = World(kernel).at(5, kernel.unwanted.append, ITS_ADDRESS)
    world.run(source((0, EVERYTHING), (10, [Put(BAD)])), until=12)
    loads = [transaction.text for _, transaction in kernel.applied if f"table {IPV4.table} " in transaction.text]
    assert len(loads) == 2
    assert f"delete table {IPV4.table}" not in loads[1]


def test_a_service_that_a_refusal_names_is_tried_first(caplog: pytest.LogCaptureFixture) -> None:
    """A change is refused, its Service is refused alone, and the next load is without it: the first line names it."""
    kernel = naming_kernel()
    world = World(kernel).at(9, kernel.checks.clear).at(9, kernel.tries.clear)
    world.run(source((0, EVERYTHING), (10, [Put(BAD)])), until=11)
    assert (len(kernel.tries), len(kernel.checks)) == (2, 1)
    assert list(world.pipeline.withheld[IPV4].values()) == [f"No such file or directory\n  in: {ITS_ELEMENT}"]
    words = "the kernel refuses"
    said = [record.getMessage().partition(": No such")[0] for record in caplog.records if words in record.getMessage()]
    assert said == [
        "Service shop/bad is quarantined for IPv4: the kernel refuses its rules",
        "the kernel refuses a change, loading everything but Service shop/bad",
    ]
    world.assert_in_step()


def test_a_named_service_is_left_out_of_the_first_load() -> None:
    """At a start beside a Service that the kernel refuses, the refusal names it, and the second load is without it."""
    kernel = naming_kernel()
    world = World(kernel).run(source((0, [*EVERYTHING, Put(BAD)])), until=1)
    assert quarantined(world) == ["shop/bad"]
    assert len(kernel.checks) - len(kernel.child_checks) == 1, "of the Service alone, by bisection it takes more"
    world.assert_in_step()


def test_a_named_service_that_the_kernel_accepts_alone_stays(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal that names a Service quarantines none if another program's change was the cause."""
    kernel = FakeKernel()
    world = World(kernel).at(9, kernel.faults.append, Refused("No such file or directory", ITS_ELEMENT))
    world.run(source((0, EVERYTHING), (10, [Put(BAD)])), until=11)
    assert quarantined(world) == []
    assert "the kernel refuses a change, loading everything instead: No such" in caplog.text
    world.assert_in_step()


def test_a_refused_skeleton_blames_no_named_service() -> None:
    """If the kernel refuses the skeleton beside a Service that the first refusal names, no Service is quarantined."""
    kernel = FakeKernel()
    world = World(kernel).at(9, kernel.faults.append, Refused("No such file or directory", ITS_ELEMENT))
    world.at(9, kernel.unwanted.append, "chain services").at(20, kernel.unwanted.clear)
    world.run(source((0, EVERYTHING), (10, [Put(BAD)])), until=100)
    assert quarantined(world) == []
    world.assert_in_step()


def test_several_are_quarantined_at_once() -> None:
    """Each of several refused Services is found among many."""
    services = [service(f"shop/s{number:03}", cluster_ips=[f"10.96.1.{number}"]) for number in range(200)]
    kernel = FakeKernel()
    kernel.unwanted = ["10.96.1.7 ", "10.96.1.77 ", "10.96.1.199 "]
    world = World(kernel).run(source((0, [Put(node()), Listed(Service, tuple(services))])), until=5)
    assert quarantined(world) == ["shop/s007", "shop/s077", "shop/s199"]
    assert len(kernel.ledger.elements[IPV4.table]["cluster-ips"]) == 197
    world.assert_in_step()


def test_a_quarantined_service_is_retried_when_it_changes() -> None:
    """A quarantined Service with an address that the kernel accepts is served at once, without a full load."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    good = service("shop/bad", cluster_ips=["10.96.0.77"])
    events = (0, [*EVERYTHING, Put(BAD), Put(BAD_PODS)]), (10, [Put(good)])
    world = World(kernel).run(source(*events), until=11)
    assert quarantined(world) == []
    assert "10.96.0.77" in kernel.ledger.elements[IPV4.table]["cluster-ips"]
    assert "flush" not in kernel.applied[-1][1].text
    world.assert_in_step()


def test_a_refused_retry_loads_no_other_service_again() -> None:
    """A quarantined Service is retried at each change, and a refusal is its own: nothing else is loaded again."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    events: list[Timed] = [
        (0, [*EVERYTHING, Put(BAD)]),
        (10, [Put(BAD_PODS)]),
        (12, [Put(MORE_PODS)]),
        (14, [Put(OTHER)]),
    ]
    world = World(kernel).run(source(*events), until=15)
    assert quarantined(world) == ["shop/bad"]
    assert len(kernel.applied) == 4, "each family, and two changes"
    world.assert_in_step()


def test_a_refused_retry_of_a_large_service_leaves_nothing_of_it() -> None:
    """If the kernel refuses a later piece of a retried Service, a full load removes the pieces that it accepted."""
    kernel = FakeKernel()
    kernel.unwanted = ["192.0.2.7"]
    large = service("shop/large", cluster_ips=["10.96.0.20"], external_ips=["192.0.2.7"])
    many = slice_of("shop/large", [f"10.2.{number // 250}.{number % 250 + 1}@node-a" for number in range(900)])
    held: list[int] = []
    world = World(kernel).at(5, lambda: held.append(len(kernel.applied)))
    world.run(source((0, EVERYTHING), (2, [Put(large), Put(many)])), until=SYNC_PERIOD + 5)
    assert quarantined(world) == ["shop/large"]
    assert len(kernel.applied) > held[0] + 1, "the retry has applied some piece, and a full load follows"
    world.assert_in_step()


def test_a_quarantined_service_is_retried_at_each_check() -> None:
    """Once the kernel accepts a Service's rules they are loaded after the next sync period, with its own chains."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    many = slice_of("shop/bad", [f"10.1.0.{number}@node-a" for number in range(10, 17)])
    seen: list[str] = []
    world = World(kernel).at(2.5 * SYNC_PERIOD, kernel.unwanted.clear)
    world.at(2.5 * SYNC_PERIOD, lambda: seen.extend(quarantined(world)))
    world.run(source((0, [*EVERYTHING, Put(BAD), Put(many)])), until=3 * SYNC_PERIOD + 1)
    assert seen == ["shop/bad"]
    assert quarantined(world) == []
    assert len(kernel.ledger.elements[IPV4.table]["tcp-endpoints"]) == 8
    world.assert_in_step()


def test_a_namespace_with_many_quarantined_services_delays_no_others_retry() -> None:
    """Beside a tenant with more quarantined Services than a check retries, another tenant's is retried at the next."""
    kernel = FakeKernel()
    kernel.unwanted = ["10.96.1.", ITS_ADDRESS]
    crowd = [service(f"evil/s{number:02}", cluster_ips=[f"10.96.1.{number}"]) for number in range(3 * MOST_RETRIED)]
    world = World(kernel).at(0.5 * SYNC_PERIOD, kernel.unwanted.remove, ITS_ADDRESS)
    world.run(source((0, [*EVERYTHING, *map(Put, crowd), Put(BAD)])), until=1.5 * SYNC_PERIOD)
    assert len(quarantined(world)) == 3 * MOST_RETRIED
    assert "shop/bad" not in quarantined(world)
    world.assert_in_step()


def test_a_deleted_service_leaves_quarantine() -> None:
    """A deleted Service leaves no trace in the quarantine."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    world = World(kernel).run(source((0, [*EVERYTHING, Put(BAD)]), (10, [Removed(Service, key_of(BAD))])), until=11)
    assert quarantined(world) == []
    world.assert_in_step()


def test_a_refused_skeleton_quarantines_no_service() -> None:
    """If the kernel refuses the skeleton, no Service is quarantined, and the load is retried as ever."""
    kernel = FakeKernel()
    kernel.unwanted = ["chain services"]
    world = World(kernel).at(9, kernel.unwanted.clear).run(source((0, EVERYTHING)), until=100)
    assert quarantined(world) == []
    world.assert_in_step()


def test_a_failed_retry_is_followed_by_a_full_load() -> None:
    """If the kernel side dies during a retry, its state is unknown, and everything is loaded."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    world = World(kernel).at(9, kernel.unwanted.clear).at(9, kernel.faults.append, UNAVAILABLE)
    world.run(source((0, [*EVERYTHING, Put(BAD)]), (10, [Put(BAD_PODS)])), until=12)
    assert quarantined(world) == []
    assert "flush chain" in kernel.applied[-1][1].text
    world.assert_in_step()


def test_stopping_ends_the_search() -> None:
    """An agent that is stopped ends its search for culprits."""
    kernel = FakeKernel()
    kernel.unwanted = [ITS_ADDRESS]
    world = World(kernel)
    checks: list[float] = []
    check = kernel.check

    async def slow(transaction: Transaction) -> None:
        checks.append(now())
        await asyncio.sleep(1)
        await check(transaction)

    kernel.check = slow  # type: ignore[method-assign]
    world.run(source((0, [*EVERYTHING, Put(BAD), Put(OTHER)])), until=5)
    assert len(checks) > 2
    assert checks[-1] <= 5
    assert world.ended < 7
    assert quarantined(world) == []
    assert IPV4.table not in kernel.ledger.sets


def test_a_refusal_for_ipv6_quarantines_nothing_for_ipv4() -> None:
    """A Service whose rules the kernel refuses for IPv6 keeps its rules for IPv4."""
    dual = service("shop/dual", cluster_ips=["10.96.0.20", "fd00:96::20"])
    kernel = FakeKernel()
    kernel.unwanted = ["fd00:96::20"]
    world = World(kernel).run(source((0, [*EVERYTHING, Put(dual)])), until=10)
    assert {family: list(withheld) for family, withheld in world.pipeline.withheld.items()} == {
        IPV4: [],
        IPV6: [dual.key],
    }
    assert "10.96.0.20" in kernel.ledger.elements[IPV4.table]["cluster-ips"]
    world.assert_in_step()
