"""A node goes from kube-proxy's rules to nftproxy and back without a loss, and the tool would report a loss.

NFTPROXY_TESTS=long tries every shape of kube-proxy's rules, with more connections (`tox run -e race`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from nftproxy_conformance.lab import RealNetwork, RealNode, obstacle
from nftproxy_conformance.lab.echo import EchoServer

from nftproxy.api.parse import parse_object
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.sources.documents import yaml_documents
from tests.support.processes import AgentProcess
from tests.support.waiting import PATIENCE
from tools.migration import switch as switching
from tools.migration import traffic
from tools.migration.switch import SHAPES, VIP, WEB, Account, Row, Shape, Step, stored, switch
from tools.migration.traffic import Front, Talk, Try, asking, await_tries

IS_LONG = os.environ.get("NFTPROXY_TESTS") == "long"
TRIES, KEPT = (1000, 25) if IS_LONG else (40, 5)

pytestmark = [
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
    pytest.mark.skipif(
        any(not shutil.which(tool, path="/usr/sbin:/sbin") for tool in ("iptables-legacy", "ipset")),
        reason="both variants of iptables, and ipset, are needed",
    ),
]


@pytest.mark.parametrize("name", SHAPES if IS_LONG else ["iptables (nft)"])
def test_no_connection_is_lost(name: str) -> None:
    """Through each step there and back, every new connection is served, and every kept connection goes on."""
    account = switch(name, tries=TRIES, kept=KEPT)
    rows = list(account.rows())
    assert [(row.step, row.new_lost, row.ended) for row in rows if row.new_lost or row.ended] == []
    assert sum(row.new >= TRIES and row.asked >= TRIES for row in rows) == (6 if SHAPES[name].serves else 3)


@pytest.mark.parametrize("name", SHAPES if IS_LONG else ["nftables"])
def test_a_cluster_with_old_spellings_loses_nothing(name: str) -> None:
    """The same holds if the cluster has stored addresses with leading zeros and IPv4-mapped ones."""
    rows = list(switch(name, tries=TRIES, kept=KEPT, has_old_spellings=True).rows())
    assert [(row.step, row.new_lost, row.ended) for row in rows if row.new_lost or row.ended] == []
    assert sum(row.new >= TRIES and row.asked >= TRIES for row in rows) == (6 if SHAPES[name].serves else 3)


def test_old_spellings_are_what_the_agent_reads(tmp_path: Path) -> None:
    """The cluster with old spellings has the same fronts and pods, and each address of it is reported."""
    problems: list[Problem] = []
    text = (stored(tmp_path / "node") / "cluster.yaml").read_text()
    found = [parse_object(each.value, "", problems) for each in yaml_documents(text)]
    assert "010.096.00.010" in text
    assert "::ffff:10.1.0.5" in text
    assert [each.cluster_ips for each in found if isinstance(each, Service)] == [(VIP,)]
    assert [each.endpoints.text for each in found if isinstance(each, EndpointSlice)] == ["10.1.0.4 10.1.0.5"]
    assert {each.code for each in problems} == {Code.OLD_SPELLING}


def test_the_rules_of_ipvs_mode_admit_the_ports_of_services() -> None:
    """They reject what is no port of a Service, on addresses that IPVS has on the node.  Here a server plays IPVS."""
    with RealNetwork() as network:
        node = network.node()
        switching._write(node, SHAPES["ipvs"])
        node.node.ip(f"address add {VIP}/32 dev lo")
        client = node.pod("client", "10.1.0.99", "fd00:1::99")
        with ExitStack() as stack:
            for port in (WEB, 81):
                stack.enter_context(closing(EchoServer(node.node, "server", VIP, port)))
            assert client.ask(VIP, WEB, timeout=PATIENCE).name == "server"
            with pytest.raises(ConnectionRefusedError):
                client.ask(VIP, 81, timeout=PATIENCE)


def test_a_gap_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any rules new connections are lost and kept connections end, and the account says in which step."""

    def hasty(
        node: RealNode, _shape: Shape, _agent: AgentProcess, _cluster: Path
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        """Steps with a gap: remove the old rules before there are new rules."""

        def remove() -> None:
            monkeypatch.setattr(traffic, "PATIENCE", 0.2)
            node.load("delete table ip kube-proxy")

        yield "kube-proxy's rules", lambda: None
        yield "a gap", remove

    monkeypatch.setattr(switching, "_steps", hasty)
    rows = {row.step: row for row in switch("nftables", tries=3, kept=2).rows()}
    before, gap = rows["kube-proxy's rules"], rows["a gap"]
    assert before.new_lost < before.new, "only what was under way when the rules went"
    assert gap.new_lost * before.new > before.new_lost * gap.new
    assert gap.ended > 0


def test_a_try_counts_for_the_step_in_which_it_began() -> None:
    """A step's row has the tries that began from its beginning until the next step's, whenever they ended."""
    steps = (Step("first", 1.0, 1.5), Step("second", 3.0, 3.5))
    tries = (
        Try(0.5, 0.1, is_new=True, fault="before"),
        Try(1.2, 9.0, is_new=True, fault="TimeoutError"),
        Try(1.3, 1.1, is_new=True, fault=""),
        Try(2.9, 0.1, is_new=False, fault=""),
        Try(3.0, 0.1, is_new=False, fault="ConnectionResetError"),
    )
    assert list(Account("any", steps, tries).rows()) == [
        Row("first", 0.5, new=2, new_lost=1, late=1, asked=1, ended=0),
        Row("second", 0.5, new=0, new_lost=0, late=0, asked=1, ended=1),
    ]


def test_a_front_without_answer_is_a_loss() -> None:
    """A front that doesn't answer is a loss, with either protocol."""
    with RealNetwork() as network:
        node = network.node()
        with asking([Front("nobody", node, node.address, 9, protocol) for protocol in ("tcp", "udp")], 0) as clients:
            await_tries(clients, 2)
        assert all(each.fault for client in clients for each in client.tries)


class Broken:
    """A front whose client raises an error that isn't a connection's."""

    def talk(self) -> Talk:
        """Fail."""
        raise ValueError("broken")


def test_nobody_waits_for_a_client_that_has_ended() -> None:
    """An error of a client's thread ends the wait for its tries, and is raised."""
    with pytest.raises(ValueError, match="broken"), asking([Broken()], 0) as clients:
        await_tries(clients, 2)
