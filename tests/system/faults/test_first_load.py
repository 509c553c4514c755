"""A first load in pieces, by a real agent into a real kernel: what is there after each of them, and in the end."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from nftproxy.kernel import nftables_netlink
from nftproxy.kernel.libnftables import Kernel
from nftproxy.lab import Kind, Origin, endpoint
from nftproxy.model.addresses import TABLE, Family
from nftproxy.rules.transaction import delete_transaction, join
from tests.system.faults.bench import Bench, pod, vip
from tests.system.faults.mortal import DIES_BEFORE, NEVER

AGENT = "tests.system.faults.mortal"


@pytest.fixture
def bare(bench: Bench) -> Iterator[Bench]:
    """A node without tables and without an agent; at the end it has both."""
    bench.stop()
    forget(bench)
    yield bench
    bench.wait_until_right()


def forget(bench: Bench) -> None:
    """Delete the tables."""
    bench.lab.node.call(Kernel().apply, join(map(delete_transaction, Family)))


def loaded(bench: Bench) -> list[list[str]]:
    """What an agent makes of a node without tables; at the end it has neither."""
    bench.start()
    found = tables(bench)
    bench.stop()
    forget(bench)
    return found


def base_chains(bench: Bench) -> list[str]:
    """The chains of our tables that have a hook."""
    found = bench.lab.node.call(lambda: [nftables_netlink.chains(family, TABLE) for family in Family])
    return [name for chains in found for name, has_hook in chains.items() if has_hook]


def tables(bench: Bench) -> list[list[str]]:
    """All sets, maps and chains with what they have, in no order, once there are hooks and all else is right."""
    bench.wait_until(lambda: base_chains(bench))
    bench.wait_until_right()
    listings = bench.lab.node.call(lambda: [Kernel().listing(family) for family in Family])
    return [sorted(re.findall(r"\S+", listing)) for listing in listings]


def test_what_went_in_by_pieces_is_what_goes_in_at_once(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that loads in pieces, and one whose first load is a single transaction, make the very same tables."""
    at_once = loaded(bare)
    monkeypatch.setenv(DIES_BEFORE, NEVER)
    assert loaded(bare) == at_once
    monkeypatch.delenv(DIES_BEFORE)
    bare.start()


def test_an_agent_that_is_killed_between_pieces(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it dies there is no hook, connections go as without rules, and the next agent completes the tables."""
    seen = set()
    for number in range(1, 5):
        monkeypatch.setenv(DIES_BEFORE, str(number))
        bare.start()
        bare.await_end()
        assert base_chains(bare) == []
        assert bare.lab.connect(Origin.POD, vip(3), 80).kind is not Kind.ENDPOINT
        seen.add(sum(map(len, bare.held().values())))
    assert len(seen) > 2, "each time another piece was the last"
    monkeypatch.delenv(DIES_BEFORE)
    bare.start()
    assert tables(bare)
    assert bare.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080)
