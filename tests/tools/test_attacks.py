"""Attacks of a small size cost a real agent little memory and few lines, and leave the rules right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab, obstacle

from nftproxy.model.fairness import LINES_OF_A_NAMESPACE
from tests.system.faults.bench import PERMISSIONS, Bench, furnish
from tools.attacks.__main__ import ATTACKS, PATIENCE, Attack, attacked

SMALL = 0.1
MOST_MEMORY = 703e6
"""The bound of docs/limits.md."""


@pytest.fixture(scope="module")
def attacked_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A running agent with a quiet tenant's Services."""
    if why := obstacle():
        pytest.skip(why)
    with Lab() as lab, ApiServer(tls=True, authenticate=True, make_socket=lab.node.socket) as server:
        server.rbac = PERMISSIONS
        furnish(server)
        with Bench(lab, server, tmp_path_factory.mktemp("agent")) as bench:
            bench.start()
            bench.wait_until_right(PATIENCE)
            yield bench


@pytest.mark.parametrize("attack", ATTACKS, ids=[each.make.__name__ for each in ATTACKS])
def test_an_attack_is_bounded(attacked_bench: Bench, attack: Attack) -> None:
    """The rules are right afterwards, memory stays below the documented bound, and lines within two budgets."""
    found = attacked(attacked_bench, attack, ATTACKS.index(attack), SMALL)
    assert found.peak < MOST_MEMORY
    assert found.lines < 2 * (LINES_OF_A_NAMESPACE[0] + 2 * found.seconds) + 50
