"""A tenant whose changes are large takes a share of the time, and small changes of all others go first."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import Callable

import pytest

from nftproxy.agent.sync.turns import OWN_REST
from nftproxy.model.codes import Code
from nftproxy.model.events import Event, Put, Removed
from nftproxy.model.objects import Service
from nftproxy.rules.pieces import pieces_of
from nftproxy.rules.transaction import Commit, Transaction
from tests.agent.world import EVERYTHING, FakeKernel, Timed, World, source
from tests.support.factories import IPV4, elements, node, service, slice_of

COST = 5.0
EVIL, ITS_IP = "evil/big", "10.97.0.1"


class SlowKernel(FakeKernel):
    """A kernel that takes `COST` seconds for each transaction with an address of a tenant, `slow`."""

    busy = 0.0
    slow = ITS_IP

    async def _apply(self, transaction: Transaction) -> Commit:
        if self.slow in transaction.text:
            await asyncio.sleep(COST)
            self.busy += COST
        return await super()._apply(transaction)


def evil(number: int) -> Event:
    """The tenant's Service has other endpoints."""
    return Put(slice_of(EVIL, [f"10.2.{number >> 8 & 255}.{number & 255}@node-a"]))


def begun(**tweaks: float) -> tuple[World, SlowKernel]:
    """An agent over such a kernel."""
    kernel = SlowKernel()
    world = World(kernel, min_sync_period=0.02, **tweaks)
    world.processor_time = lambda: kernel.busy
    return world, kernel


START: list[Event] = [*EVERYTHING, Put(service(EVIL, cluster_ips=[ITS_IP])), evil(0)]


def rewriting(until: float) -> list[Timed]:
    """The tenant changes its Service twice a second."""
    times = itertools.takewhile(lambda at: at < until, itertools.count(10.0, 0.5))
    return [(at, [evil(int(2 * at))]) for at in times]


def victims(until: float) -> list[Timed]:
    """A change of another tenant every 1.7 seconds, each with an address of its own."""
    times = itertools.takewhile(lambda at: at < until, itertools.count(12.3, 1.7))
    return [(at, [Put(slice_of("shop/web", [_pod(at)], suffix=_pod(at)))]) for at in times]


def _pod(at: float) -> str:
    return f"10.3.{int(10 * at) >> 8}.{int(10 * at) & 255}"


def test_a_victim_waits_for_no_hostile_change_that_is_pending() -> None:
    """A small change is in the next transaction that begins, however many large changes are pending before it."""
    world, kernel = begun()
    changes = victims(150)
    world.run(source((0, START), *rewriting(150)), source((0, []), *changes), until=200)
    for at, _ in changes:
        done = next(when for when, each in kernel.applied if _pod(at) in each.text)
        before = [begin for begin in kernel.tries if at < begin < done - COST / 2]
        assert before == [], f"the change of second {at} waited for transactions that began after it"
    world.assert_in_step()


def test_a_tenant_gets_a_share_of_the_time() -> None:
    """However often a tenant makes large changes, they take a fifth of the time, and the last is applied."""
    world, kernel = begun()
    world.run(source((0, START), *rewriting(210)), until=260)
    large = [when for when, each in kernel.applied if ITS_IP in each.text and 15 < when < 210]
    assert 6 <= len(large) <= 200 / (COST * (1 + OWN_REST)) + 1
    assert all(later - earlier >= COST * OWN_REST for earlier, later in itertools.pairwise(large))
    world.assert_in_step()
    assert any("10.2.1.163 . 8080" in value for value in elements(world.pipeline, IPV4, "tcp-endpoints").values())


def test_new_large_services_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that comes after ten new large Services of ten tenants waits for one of them."""
    monkeypatch.setattr("nftproxy.agent.sync.turns.ROUND", 50)
    world, kernel = begun()
    kernel.slow = "10.98.0."
    flood: list[Event] = []
    for number in range(10):
        name = f"evil-{number}/new"
        flood.append(Put(service(name, cluster_ips=[f"10.98.0.{number}"])))
        flood.append(Put(slice_of(name, [f"10.2.{number}.{each}@node-a" for each in range(60)])))
    victim: list[Event] = [Put(slice_of("shop/web", ["10.3.0.1"], suffix="2"))]
    world.run(source((0, START), (10, flood)), source((0, []), (10.5, victim)), until=150)
    found = [{number for number in range(10) if f"10.98.0.{number} . tcp" in each.text} for _, each in kernel.applied]
    at = next(index for index, (_, each) in enumerate(kernel.applied) if "10.3.0.1" in each.text)
    assert (sum(map(len, found[:at])), found[at]) == (1, set())
    assert sorted(map(len, found[at + 1 :])) == [1] * 9
    world.assert_in_step()


def test_a_postponed_service_is_named_and_health_stays_good() -> None:
    """Metrics say how long the oldest change waits, health warns of it after half a minute, and stays good."""
    world, _ = begun()
    seen: list[tuple[str, bool, tuple[str, ...]]] = []

    def look() -> None:
        status = world.reporter.status()
        text = world.reporter.scrape().decode()
        assert status.is_alive
        (age,) = (line for line in text.splitlines() if line.startswith("nftproxy_oldest_change_age_seconds "))
        (count,) = (line for line in text.splitlines() if line.startswith("nftproxy_services_postponed "))
        seen.append((f"{float(age.split()[1]):.0f} {count.split()[1]}", status.is_healthy, status.warnings))

    for at in (9.0, 20.5, 34.0):
        world.at(at, look)
    world.run(source((0, START), (10, [evil(1)]), (16, [evil(2)]), (20.2, [evil(3)])), until=70)
    assert [each[0] for each in seen] == ["0 0.0", "4 1.0", "18 1.0"]
    assert all(healthy and not warnings for _, healthy, warnings in seen)
    late = service("evil/late")
    world.reporter.postponed({late.key: -40.0}, 0.0)
    (warning,) = (each for each in world.reporter.status().warnings if Code.CHANGES_POSTPONED in each)
    assert "evil/late for 40 s" in warning


def test_a_deletion_waits_for_nothing() -> None:
    """A Service whose changes wait is deleted at once, with all that it had."""
    world, kernel = begun()
    key = service(EVIL).key
    world.run(source((0, START), (10, [evil(1)]), (16, [evil(2)]), (17, [Removed(Service, key)])), until=24)
    assert any(when == 17 + COST for when in kernel.times)
    assert not any(ITS_IP in each for each in elements(world.pipeline, IPV4, "services"))
    world.assert_in_step()


def test_an_address_that_is_assigned_anew_never_leads_to_its_last_owner() -> None:
    """A waiting Service that has given up its address loses it as soon as another Service has it."""
    world, _ = begun()
    moved = Put(service(EVIL, cluster_ips=["10.97.0.2"]))
    new = [Put(service("shop/new", cluster_ips=[ITS_IP])), Put(slice_of("shop/new", ["10.3.9.9@node-a"]))]
    found: list[dict[str, str]] = []
    world.at(24, lambda: found.append(elements(world.pipeline, IPV4, "tcp-endpoints")))
    world.run(source((0, START), (10, [evil(1)]), (16, [evil(2), moved]), (17, new)), until=70)
    (now,) = found
    of_address = {value for front, value in now.items() if front.startswith(f"{ITS_IP} ")}
    assert of_address == {"10.3.9.9 . 8080"}
    assert not any(front.startswith("10.97.0.2 ") for front in now), "its turn hasn't come"
    later = elements(world.pipeline, IPV4, "tcp-endpoints")
    assert {value for front, value in later.items() if front.startswith("10.97.0.2 ")} == {"10.2.0.2 . 8080"}
    world.assert_in_step()


class CountingKernel(FakeKernel):
    """A kernel that takes a tenth of a second for each Service of a noisy tenant in a transaction."""

    busy = 0.0

    async def _apply(self, transaction: Transaction) -> Commit:
        cost = 0.1 * len(set(re.findall(r"10\.9[89]\.\d+\.\d+", transaction.text)))
        await asyncio.sleep(cost)
        self.busy += cost
        return await super()._apply(transaction)


def longest_wait(noisy: int, until: float = 120.0) -> float:
    """The longest wait of a quiet tenant, if tenants change five small Services each, twice a second."""
    kernel = CountingKernel()
    world = World(kernel, min_sync_period=0.02)
    world.processor_time = lambda: kernel.busy
    names = [(f"noisy-{each}/s{number}", f"10.98.{each}.{number}") for each in range(noisy) for number in range(5)]
    start = [*EVERYTHING, *(Put(service(name, cluster_ips=[address])) for name, address in names)]
    noise: list[Timed] = [
        (5 + step / 2, [Put(slice_of(name, [f"10.2.{step}.1@node-a"])) for name, _ in names])
        for step in range(int(2 * until))
    ]
    changes = victims(until)
    world.run(source((0, start), *noise), source((0, []), *changes), until=until + 300)
    waits = [next(when for when, each in kernel.applied if _pod(at) in each.text) - at for at, _ in changes]
    world.assert_in_step()
    return max(wait for (at, _), wait in zip(changes, waits, strict=True) if at > until / 2)


@pytest.mark.slow
def test_a_quiet_tenant_waits_as_long_beside_one_noisy_tenant_as_beside_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants with many small changes wait for each other, and a quiet tenant waits for a small round at most."""
    monkeypatch.setattr("nftproxy.agent.sync.turns.SHARED_ELEMENTS", 100)
    monkeypatch.setattr("nftproxy.agent.sync.turns.BUSY_ROUND", 5)
    waits = [longest_wait(noisy) for noisy in (1, 4, 16)]
    assert max(waits) <= 0.35, waits


class MeteredKernel(FakeKernel):
    """A kernel that takes a millisecond for each element."""

    busy = 0.0

    async def _apply(self, transaction: Transaction) -> Commit:
        cost = transaction.size().elements / 1000
        await asyncio.sleep(cost)
        self.busy += cost
        return await super()._apply(transaction)


PART, PORTS = 40, 15
NAMES = [f"p{port}:{port}" for port in range(1, PORTS + 1)]
PODS = [f"10.2.0.{pod}" for pod in range(1, 11)]


def shifted(name: str, number: int) -> Event:
    """All rows of a Service with 15 ports and 10 endpoints change."""
    return Put(slice_of(name, PODS, ports=[f"p{port}:{port + number % 2}" for port in range(1, PORTS + 1)]))


def beside_a_deletion(name: str, number: int) -> list[Event]:
    """The same, while a Service of another tenant comes or goes."""
    other = service("names/one", cluster_ips=["10.98.1.1"])
    return [shifted(name, number), Put(other) if number % 2 else Removed(Service, other.key)]


def beside_the_node(name: str, number: int) -> list[Event]:
    """The same, while the Node changes, which concerns all Services."""
    return [shifted(name, number), Put(node(zone="ab"[number % 2]))]


def with_other_fronts(name: str, number: int) -> list[Event]:
    """All rows of a Service go, and come at another address, which can't go port by port."""
    address = f"198.51.100.{number % 2}"
    return [Put(service(name, cluster_ips=["10.98.0.0"], ports=NAMES, external_ips=[address]))]


def most_elements_before(
    noisy: int, until: float = 25.0, change: Callable[[str, int], list[Event]] = lambda *args: [shifted(*args)]
) -> int:
    """The most elements that the kernel gets between a quiet tenant's change and its commit.

    Each noisy tenant changes all 150 rows of a Service twice a second, which is large: 0.3 s.
    """
    kernel = MeteredKernel()
    world = World(kernel, min_sync_period=0.02)
    world.processor_time = lambda: kernel.busy
    names = [f"noisy-{each}/one" for each in range(noisy)]
    start = [*EVERYTHING]
    for number, name in enumerate(names):
        start += [Put(service(name, cluster_ips=[f"10.98.0.{number}"], ports=NAMES)), shifted(name, 0)]
    noise = [(5 + step / 2, [each for name in names for each in change(name, step)]) for step in range(int(2 * until))]
    changes = victims(until)
    world.run(source((0, start), *noise), source((0, []), *changes), until=until + 60)
    world.assert_in_step()
    counts = []
    for at, _ in changes:
        done = next(when for when, each in kernel.applied if _pod(at) in each.text)
        counts.append(sum(each.size().elements for when, each in kernel.applied if at < when < done))
    return max(counts)


def test_a_small_change_waits_for_a_part_of_a_large_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel gets a part of a large change before a small change, beside 1, 3 or 10 tenants."""
    monkeypatch.setattr("nftproxy.pipeline.PART", PART)
    found = [most_elements_before(noisy) for noisy in (1, 3, 10)]
    assert 0 < max(found) <= 3 * PART, found


@pytest.mark.parametrize("change", [beside_a_deletion, beside_the_node, with_other_fronts])
def test_a_small_change_waits_for_a_part_of_any_large_change(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[str, int], list[Event]]
) -> None:
    """No other change joins a large change to a single part, and a change without parts goes in pieces."""
    monkeypatch.setattr("nftproxy.pipeline.PART", PART)
    monkeypatch.setattr("nftproxy.pipeline.LARGE_PART", PART)
    monkeypatch.setattr("nftproxy.pipeline.pieces_of", functools.partial(pieces_of, size=PART * len(PODS[0])))
    assert 0 < most_elements_before(1, change=change) <= 3 * PART


def test_a_large_change_never_goes_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only change that waits is as large beside another change as if others waited, too."""
    monkeypatch.setattr("nftproxy.pipeline.PART", PART)
    monkeypatch.setattr("nftproxy.agent.sync.turns.ROUND", 2 * PART)
    kernel = MeteredKernel()
    world = World(kernel, min_sync_period=0.02)
    world.processor_time = lambda: kernel.busy
    start = [Put(service(f"{name}/one", cluster_ips=[f"10.98.0.{len(name)}"], ports=NAMES)) for name in ("evil", "new")]
    events: list[Timed] = [(10.02, [shifted("new/one", 0)]), (10.1, [Put(slice_of("shop/web", ["10.3.0.1"]))])]
    world.run(
        source((0, [*EVERYTHING, *start, shifted("evil/one", 0)]), (10, [shifted("evil/one", 1)])),
        source((0, []), *events),
        until=30,
    )
    world.assert_in_step()
    done = next(when for when, each in kernel.applied if "10.3.0.1" in each.text)
    assert sum(each.size().elements for when, each in kernel.applied if 10.1 < when < done) <= 2 * PART
