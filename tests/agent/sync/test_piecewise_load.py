"""The first load: in pieces while no rules of ours are in force, as a whole otherwise."""

from __future__ import annotations

import logging
from unittest import mock

import pytest

from nftproxy import pipeline
from nftproxy.agent.sync import loading, piecewise_load
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.events import Event, Put
from nftproxy.rules.pieces import PIECE
from nftproxy.rules.transaction import Transaction
from tests.agent.world import EVERYTHING, MORE_PODS, REFUSED, SYNC_PERIOD, UNAVAILABLE, FakeKernel, World, source
from tests.support.factories import IPV4, service, slice_of

CROWD: list[Event] = [
    Put(each)
    for number in range(160)
    for name, pod in [(f"shop/s{number}", f"10.2.{number >> 8}.{number & 255}")]
    for each in (service(name, cluster_ips=[f"10.97.{number >> 8}.{number & 255}"]), slice_of(name, [pod]))
]
EVERYBODY = [*EVERYTHING, *CROWD]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a piece be small, so that few Services make several."""
    monkeypatch.setattr(piecewise_load, "LOAD_PIECE", 2048)
    monkeypatch.setattr(pipeline, "STEP", 10)


def texts(kernel: FakeKernel) -> list[str]:
    """The texts of the applied transactions."""
    return [transaction.text for _, transaction in kernel.applied]


def test_a_first_load_goes_in_pieces() -> None:
    """Without a table the kernel gets several transactions, of which the last has all hooks.

    Then everything is in step.
    """
    world = World().run(source((0, EVERYBODY)), until=1)
    *others, last = texts(world.kernel)
    assert len(others) >= 3
    assert not any("hook" in text for text in others)
    assert last.count("type nat hook prerouting") == len(Family)
    assert max(map(len, others[1:])) < sum(map(len, others[1:])) / 2
    assert world.settled == [(0, frozenset(Family))]
    world.assert_in_step()


def test_a_first_load_of_little_is_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that fits into a single piece is a single transaction."""
    monkeypatch.undo()
    assert len(World().run(source((0, EVERYTHING)), until=1).kernel.applied) == 1


def test_a_restart_is_one_transaction() -> None:
    """If tables of ours are in force, a single transaction changes all of them, of any size."""
    kernel = World().run(source((0, EVERYBODY)), until=1).kernel
    kernel.applied.clear()
    World(kernel).run(source((0, [*EVERYBODY, Put(MORE_PODS)])), until=1).assert_in_step()
    assert len(kernel.applied) == 1


def test_a_table_of_another_shape_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade replaces tables of any size in one transaction, so that there is no moment without rules."""
    with monkeypatch.context() as earlier:
        earlier.setattr(pipeline.Pipeline, "_shape", lambda *_: "of-an-earlier-release")
        kernel = World().run(source((0, EVERYBODY)), until=1).kernel
    kernel.applied.clear()
    monkeypatch.setattr(loading, "LOAD_PIECE", 1_000)
    World(kernel).run(source((0, EVERYBODY)), until=3 * SYNC_PERIOD).assert_in_step()
    (sent,) = texts(kernel)
    assert [sent.count(f"delete table {family.table}\n") for family in Family] == [1, 1]


@pytest.mark.parametrize(("shape", "has_gap"), [("of-an-earlier-release", True), ("", False)])
def test_a_table_that_is_replaced_in_parts_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shape: str, has_gap: bool
) -> None:
    """If the kernel takes a replacement only in parts, a warning names the setting.  First loads and refills don't."""
    kernel = FakeKernel()
    kernel.parts = 3
    with monkeypatch.context() as earlier:
        if shape:
            earlier.setattr(pipeline.Pipeline, "_shape", lambda *_: shape)
        World(kernel).run(source((0, EVERYBODY)), until=1)
    kernel.applied.clear()
    World(kernel).run(source((0, EVERYBODY)), until=3 * SYNC_PERIOD).assert_in_step()
    (sent,) = texts(kernel)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "ip nftproxy and ip6 nftproxy were replaced in 3 parts, between which packets met only some of the rules: "
        f"set net.core.wmem_max={2 * len(sent)} on the machine, outside of this user namespace, to avoid that"
    ] * has_gap


@pytest.mark.parametrize("fewer", [False, True])
def test_a_restart_sends_much_in_pieces(monkeypatch: pytest.MonkeyPatch, fewer: bool) -> None:
    """Where tables of ours are in force and much differs, elements come before and after the load, in pieces.

    The text of the load is made once.
    """
    monkeypatch.setattr(loading, "LOAD_PIECE", 1_000)
    first, second = (EVERYTHING, EVERYBODY) if not fewer else (EVERYBODY, EVERYTHING)
    kernel = World().run(source((0, first)), until=1).kernel
    kernel.applied.clear()
    with mock.patch.object(pipeline.Pipeline, "load", autospec=True, side_effect=pipeline.Pipeline.load) as made:
        World(kernel).run(source((0, second)), until=3 * SYNC_PERIOD).assert_in_step()
    assert made.call_count == len(Family)
    sent = texts(kernel)
    assert len(sent) >= 3
    (load,) = (text for text in sent if "type nat hook" in text)
    assert len(load) < sum(map(len, sent)) * 3 / 4


def test_a_large_change_goes_in_pieces() -> None:
    """A Service of many endpoints comes in several transactions of bounded size, and all is then in step."""
    pods = [f"10.3.{each >> 8}.{each & 255}" for each in range(3_000)]
    big = [Put(service("shop/big", cluster_ips=["10.98.0.1"])), Put(slice_of("shop/big", pods))]
    world = World().run(source((0, EVERYTHING), (1, big)), until=2)
    _, *sent = texts(world.kernel)
    assert len(sent) >= 3
    assert max(map(len, sent)) < 1.1 * PIECE
    world.assert_in_step()


def test_a_family_that_is_in_force_keeps_both_in_one_transaction() -> None:
    """A table that has gone comes back together with the other family's, which is in force."""
    kernel = World().run(source((0, EVERYBODY)), until=1).kernel
    kernel.drop(IPV4)
    kernel.applied.clear()
    World(kernel).run(source((0, EVERYBODY)), until=1).assert_in_step()
    assert len(kernel.applied) == 1


@pytest.mark.parametrize("left", [1, 2, 3])
def test_an_interrupted_first_load_is_begun_anew(left: int) -> None:
    """Tables that an agent has left behind between two pieces are replaced, in pieces, by the next."""
    first = World().run(source((0, EVERYBODY)), until=1).kernel
    kernel = FakeKernel()
    for text in texts(first)[:left]:
        kernel.ledger.apply(Transaction(text))
    world = World(kernel).run(source((0, EVERYTHING)), until=1)
    assert texts(kernel)[0].startswith("delete table ip nftproxy\n")
    world.assert_in_step()


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_piece_that_is_refused_leaves_nothing(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """If the kernel refuses any of the pieces, no hook comes, the tables go, and each family is loaded by itself."""

    class Refusing(FakeKernel):
        async def apply(self, transaction: Transaction) -> object:  # type: ignore[override]
            self.faults = [REFUSED] if len(self.tries) == number else []
            return await super().apply(transaction)

    kernel = Refusing()
    world = World(kernel).run(source((0, EVERYBODY)), until=1)
    when_undone = next(at for at, text in enumerate(texts(kernel)) if text.startswith("add table ip nftproxy\ndelete"))
    assert not any("hook" in text for text in texts(kernel)[:when_undone])
    assert [text.count("type nat hook prerouting") for text in texts(kernel)[when_undone + 1 :]] == [1, 1]
    assert [record.code for record in caplog.records if record.levelno >= logging.WARNING] == [  # type: ignore[attr-defined]
        Code.FAMILIES_REFUSED_TOGETHER
    ]
    world.assert_in_step()


def test_a_first_load_that_fails_is_tried_again() -> None:
    """A kernel side that dies in a first load gets everything again after a pause."""
    world = World(FakeKernel(UNAVAILABLE)).run(source((0, EVERYBODY)), until=5)
    assert not world.reporter.waiting()
    world.assert_in_step()


def test_a_change_during_a_first_load_follows_it() -> None:
    """A change that comes while the pieces go into the kernel is applied after them."""
    kernel = FakeKernel()
    kernel.delay = 2.0
    world = World(kernel).run(source((0, EVERYBODY), (1, [Put(MORE_PODS)])), until=60)
    assert "hook" in texts(kernel)[-2]
    assert "hook" not in texts(kernel)[-1]
    world.assert_in_step()


def test_a_first_load_beside_foreign_commits_is_repeated() -> None:
    """Commits of other programs between the pieces aren't heard, so the next check loads everything again."""
    kernel = FakeKernel()
    kernel.beside = ((), (True,))
    World(kernel).run(source((0, EVERYBODY)), until=1.5 * SYNC_PERIOD).assert_in_step()
    assert kernel.times[-1] == SYNC_PERIOD
    assert "flush chain ip nftproxy services" in texts(kernel)[-1]
