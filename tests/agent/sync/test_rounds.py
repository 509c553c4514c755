"""A change in parts is in the kernel as a whole in the end, or everything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nftproxy.model.errors import Refused, Unavailable
from nftproxy.model.events import Event, Put
from nftproxy.rules.transaction import Commit, Transaction
from tests.agent.world import EVERYTHING, REFUSED, UNAVAILABLE, FakeKernel, World, now, source
from tests.support.factories import IPV4, elements, service, slice_of

NAMES = [f"p{port}:{port}" for port in range(1, 6)]
START: Sequence[Event] = [
    *EVERYTHING,
    Put(service("evil/one", cluster_ips=["10.97.0.1"], ports=NAMES)),
    Put(slice_of("evil/one", ["10.2.0.1"], ports=NAMES)),
]
MOVED = Put(slice_of("evil/one", ["10.2.0.2", "10.2.0.3"], ports=NAMES))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a port."""
    monkeypatch.setattr("nftproxy.pipeline.PART", 4)


def test_each_part_is_a_transaction() -> None:
    """A large change comes in five transactions, and the agent settles after the last."""
    world = World()
    world.run(source((0, START), (10, [MOVED])), until=20)
    assert [when for when in world.kernel.times if when >= 10] == [10.0] * 5
    assert [when for when, _ in world.settled if when >= 10] == [10.0]
    world.assert_in_step()


class FailingKernel(FakeKernel):
    """A kernel that fails once, at a transaction after second 10."""

    def __init__(self, number: int, error: Refused | Unavailable) -> None:
        super().__init__()
        self._left = number
        self._error = error

    async def _apply(self, transaction: Transaction) -> Commit:
        if now() >= 10:
            self._left -= 1
            if self._left == 0:
                raise self._error
        return await super()._apply(transaction)


@pytest.mark.parametrize("error", [REFUSED, UNAVAILABLE], ids=["refused", "unavailable"])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_after_a_part_that_fails_everything_is_loaded(number: int, error: Refused | Unavailable) -> None:
    """The kernel gets no part after a failure but a load, which comes at once and has the whole change."""
    kernel = FailingKernel(number, error)
    world = World(kernel)
    world.run(source((0, START), (10, [MOVED])), until=20)
    assert [when for when in kernel.times if when >= 10] == [10.0] * number
    world.assert_in_step()
    values = elements(world.pipeline, IPV4, "tcp-endpoints")
    assert {value for key, value in values.items() if key.startswith("10.97.0.1 . 5 ")} == {
        "10.2.0.2 . 5",
        "10.2.0.3 . 5",
    }


def test_a_change_between_parts_counts_as_applied() -> None:
    """A change that went between two parts isn't pending any more once the round is over."""
    kernel = FakeKernel()
    world = World(kernel, min_sync_period=0.02)
    moved = Put(slice_of("shop/web", ["10.1.0.9@node-a"]))

    def slow_down() -> None:
        kernel.delay = 0.1

    world.at(9, slow_down)
    world.run(source((0, START), (10, [MOVED])), source((0, []), (10.15, [moved])), until=30)
    at = next(when for when, each in kernel.applied if "10.1.0.9" in each.text)
    assert at == pytest.approx(10.3)
    text = world.reporter.scrape().decode()
    assert "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0.0" in text
    assert world.reporter.waiting() == {}
    world.assert_in_step()
