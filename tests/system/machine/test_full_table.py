"""A connection tracking table that is full, where the limit is the test's own: it is that of all namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from nftproxy_conformance.lab import RealNetwork
from nftproxy_conformance.lab.echo import Conversation

from tests.support.command import nftproxy
from tests.system.machine.conftest import require_own_machine
from tools.migration.switch import EXAMPLE, PODS, VIP

MAXIMUM = Path("/proc/sys/net/netfilter/nf_conntrack_max")
ROOM = 20
"""Entries.  Packets of the test's own network, such as those for neighbours, may need a few."""


@pytest.fixture
def small() -> Iterator[None]:
    """Let the kernel track some connections, and put the limit back afterwards."""
    require_own_machine()
    before = MAXIMUM.read_text()
    MAXIMUM.write_text(str(ROOM))
    yield
    MAXIMUM.write_text(before)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_doctor_names_a_full_table() -> None:
    """With as many connections as the kernel tracks, new connections fail, kept ones go on, and `doctor` says why."""
    with RealNetwork() as network, ExitStack() as stack:
        node = network.node()
        for name, addresses in PODS.items():
            node.pod(name, *addresses).serve(8080)
        client = node.pod("client", "10.1.0.99", "fd00:1::99")
        offline = ["--config", str(EXAMPLE / "config.yaml"), "--node", "node-a"]
        node.load(nftproxy("render", str(EXAMPLE / "node"), *offline).out)
        kept: list[Conversation] = []
        with suppress(TimeoutError):
            while len(kept) < 2 * ROOM:
                kept.append(stack.enter_context(client.talk(VIP, 80, timeout=2)))
        assert 0 < len(kept) <= ROOM, "one connection too many failed"
        assert {conversation.ask().name for conversation in kept[:4]} <= set(PODS)
        assert "NFT626" in node.node.call(lambda: nftproxy("doctor", *offline[:2], "--hostname-override", "node-a")).out
