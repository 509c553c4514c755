"""Attacks of a small size cost a real agent little memory and few lines, and leave the rules right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import obstacle

from nftproxy.model.fairness import LINES_OF_A_NAMESPACE
from tests.system.faults.bench import Bench
from tools.attacks.__main__ import attacked_bench
from tools.attacks.at_once import all_at_once
from tools.attacks.attacks import ATTACKS, Attack, attacked
from tools.attacks.noise import UDP, beside, small

SMALL = 0.1
MOST_MEMORY = 703e6
"""The bound of docs/limits.md."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A running agent with a quiet tenant's Services."""
    if why := obstacle():
        pytest.skip(why)
    with attacked_bench(tmp_path_factory.mktemp("agent")) as made:
        yield made


@pytest.mark.parametrize("attack", ATTACKS, ids=[each.make.__name__ for each in ATTACKS])
def test_an_attack_is_bounded(bench: Bench, attack: Attack) -> None:
    """The rules are right afterwards, memory stays below the documented bound, and lines within two budgets."""
    found = attacked(bench, attack, ATTACKS.index(attack), SMALL)
    assert found.peak < MOST_MEMORY
    assert found.lines < 2 * (LINES_OF_A_NAMESPACE[0] + 2 * found.seconds) + 50


def test_a_quiet_tenant_waits_beside_noise(bench: Bench) -> None:
    """Its changes come beside noise, whose objects are gone afterwards."""
    before = len(bench.server.objects("Service"))
    assert beside(bench, small(2, 1), 1.0)
    assert len(bench.server.objects("Service")) <= before + 1
    bench.wait_until_right()


def test_all_attacks_at_once_are_bounded(bench: Bench) -> None:
    """No connection goes wrong, a quiet tenant's changes come, memory is bounded, and the rules are right at last."""
    found = all_at_once(bench, (UDP, small(2, 1)), SMALL / 5, 10.0)
    assert not found.wrong
    assert found.waits
    assert found.peak < MOST_MEMORY
