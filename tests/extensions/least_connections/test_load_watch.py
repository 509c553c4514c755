"""The watch for the connections of endpoints: when it counts, the events that it sends, and its warnings."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from nftproxy.extensions.least_connections.agent import load_watch
from nftproxy.extensions.least_connections.agent.load_watch import INTERVAL, LoadWatch
from nftproxy.extensions.least_connections.balanced_lists import BalancedLists
from nftproxy.extensions.least_connections.known_factors import factors_of
from nftproxy.model.addresses import Address
from nftproxy.model.errors import Unavailable
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import Place, Service
from tests.agent.world import World, now, source
from tests.support.factories import node, service, slice_of
from tests.support.metrics import all_metrics

LEAST = {"algorithm": "least-connections"}
WEB = service("shop/web", annotations=LEAST)
PODS = slice_of("shop/web", ["10.1.0.4@node-a", "10.1.0.5@node-a"])
A, B = Place(Address("10.1.0.4"), 8080), Place(Address("10.1.0.5"), 8080)


class Connections:
    """The kernel's connections, and the times at which they were counted."""

    def __init__(self) -> None:
        self.now = Counter[Place]()
        self.looks: list[float] = []
        self.asked: set[Place] = set()
        self.fails = False
        self.takes = 0.0

    def count(self, places: Iterable[Place]) -> Counter[Place]:
        """As the kernel does."""
        self.looks.append(now())
        self.asked = set(places)
        if self.fails:
            raise Unavailable("no")
        asyncio.get_running_loop()._skipping.now += self.takes  # type: ignore[attr-defined]
        return Counter({place: self.now[place] for place in places if self.now[place]})


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    """Connections that are counted at once, in virtual time."""

    async def call(function: Callable[..., Any], *arguments: object) -> Any:
        return function(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", call)
    return Connections()


class Bench(World):
    """An agent with the watch."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(min_sync_period=0.02)
        self.connections = connections
        self.metrics = all_metrics()
        self.faults: list[Any] = []
        """The reports about readings that fail, and work again."""

    async def _watched(self) -> Any:
        lists, count = self.pipeline.view(BalancedLists), self.connections.count
        self.watch = LoadWatch(lists, count, self.metrics, lambda *each: self.faults.append(each))
        async for events in self.watch.events():
            yield events

    async def _note_settled(self, families: Any) -> float:
        self.watch.rules_loaded()
        return await super()._note_settled(families)

    def watch_over(self, *batches: tuple[float, list[Any]], until: float) -> Bench:
        """Run the agent with these events."""
        self.run(source(*batches), self._watched(), until=until)
        return self


def test_nothing_is_asked_while_no_service_asks_for_it(connections: Connections) -> None:
    """Connections are counted from the time when a list must follow them until there is none, and not before."""
    plain = Put(service("shop/web"))
    batches = (0.0, [Put(node()), plain, Put(PODS)]), (100.0, [Put(WEB)]), (111.0, [Removed(Service, WEB.key)])
    Bench(connections).watch_over(*batches, until=300.0)
    assert [100 <= look <= 112 for look in connections.looks] == [True] * len(connections.looks)
    assert len(connections.looks) in (6, 7)
    assert connections.asked in ({A, B}, set())


def test_only_rows_change(connections: Connections) -> None:
    """Unequal connections replace rows of the list, in a transaction that changes nothing else."""
    bench = Bench(connections)
    bench.at(9.0, connections.now.update, {A: 5, B: 50})
    bench.watch_over((0.0, [Put(node()), Put(WEB), Put(PODS)]), until=10.5)
    bench.assert_in_step()
    (_, change) = bench.kernel.applied[1:][-1]
    assert change.text.splitlines() == [
        "delete element ip nftproxy tcp-endpoints "
        "{ 10.96.0.10 . 80 . 0.0.0.14 : 10.1.0.5 . 8080, 10.96.0.10 . 80 . 0.0.0.15 : 10.1.0.5 . 8080 }",
        "add element ip nftproxy tcp-endpoints "
        "{ 10.96.0.10 . 80 . 0.0.0.14 : 10.1.0.4 . 8080, 10.96.0.10 . 80 . 0.0.0.15 : 10.1.0.4 . 8080 }",
    ]
    assert "nftproxy_rebalanced_lists_total 1.0" in bench.metrics.exposition().decode()


def test_a_long_look_is_followed_by_a_long_pause(connections: Connections) -> None:
    """With many connections, looks take a bounded share of the time."""
    connections.takes = 2.0
    Bench(connections).watch_over((0.0, [Put(node()), Put(WEB), Put(PODS)]), until=60.0)
    pauses = {round(later - look, 3) for look, later in zip(connections.looks, connections.looks[1:], strict=False)}
    assert pauses == {2.0 + load_watch.REST * 2.0}


def test_failures_are_retried_with_backoff(connections: Connections) -> None:
    """While connections can't be counted, the shares stay, a warning names the reason, and pauses double."""
    connections.fails = True
    bench = Bench(connections)
    bench.at(29.0, setattr, connections, "fails", False).at(29.0, connections.now.update, {A: 5, B: 50})
    bench.watch_over((0.0, [Put(node()), Put(WEB), Put(PODS)]), until=61.0)
    pauses = [round(later - look) for look, later in zip(connections.looks, connections.looks[1:], strict=False)]
    assert pauses == [4, 8, 16, 30, INTERVAL]
    words = {"": "no; endpoints keep their shares of connections"}
    recovery = "the connections of endpoints can be counted again"
    assert bench.faults == [*4 * [("NFT422", words, recovery)], ("NFT422", {}, recovery)]
    assert factors_of(bench.pipeline.state)


def test_long_lists_are_named_once(connections: Connections, caplog: pytest.LogCaptureFixture) -> None:
    """A list that is too long to be balanced is named in a warning, and not counted."""
    many = slice_of("shop/web", [f"10.1.{number // 200}.{number % 200 + 1}" for number in range(129)])
    again = slice_of("shop/web", [f"10.1.{number // 200}.{number % 200 + 1}" for number in range(130)])
    Bench(connections).watch_over((0.0, [Put(node()), Put(WEB), Put(many)]), (5.0, [Put(again)]), until=20.0)
    text = "connections to shop/web go to endpoints at random, as their lists are too long to be balanced"
    assert [record.getMessage() for record in caplog.records].count(text) == 1
    assert connections.looks == []
