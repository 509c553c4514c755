"""A first load in pieces, by a real agent into a real kernel: the tables after each piece and at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import Kind, Origin, endpoint

from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink.nft_queries import chains
from nftproxy.model.addresses import TABLE, Family
from nftproxy.rules.transaction import delete_transaction, join
from tests.system.faults.bench import Bench, pod, vip
from tests.system.faults.mortal import DIES_BEFORE, NEVER

pytestmark = pytest.mark.slow

AGENT = "tests.system.faults.mortal"


@pytest.fixture
def bare(bench: Bench) -> Iterator[Bench]:
    """A node without tables and without an agent.  At the end the node has both."""
    bench.stop()
    forget(bench)
    yield bench
    bench.wait_until_right()


def forget(bench: Bench) -> None:
    """Delete the tables."""
    bench.lab.node.call(Kernel().apply, join(map(delete_transaction, Family)))


def loaded(bench: Bench) -> list[list[str]]:
    """The tables that an agent loads on a node without tables.  At the end the node has no tables and no agent."""
    bench.start()
    found = tables(bench)
    bench.stop()
    forget(bench)
    return found


def base_chains(bench: Bench) -> list[str]:
    """The chains of our tables that have a hook."""
    found = bench.lab.node.call(lambda: [chains(family, TABLE) for family in Family])
    return [name for chains in found for name, has_hook in chains.items() if has_hook]


def tables(bench: Bench) -> list[list[str]]:
    """The sorted words of each table's listing, once the base chains exist and the rules are right."""
    bench.wait_until(lambda: base_chains(bench))
    bench.wait_until_right()
    listings = bench.lab.node.call(lambda: [Kernel().listing(family) for family in Family])
    return [sorted(re.findall(r"\S+", listing)) for listing in listings]


def test_a_load_in_pieces_makes_the_same_tables(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first load in pieces and a first load in a single transaction make the same tables."""
    at_once = loaded(bare)
    monkeypatch.setenv(DIES_BEFORE, NEVER)
    assert loaded(bare) == at_once
    monkeypatch.delenv(DIES_BEFORE)
    bare.start()


def test_an_agent_that_is_killed_between_pieces(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent killed between pieces leaves no base chain and no translation, and the next completes the tables."""
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
