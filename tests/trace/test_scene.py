"""A throw-away node applies the rules to packets, and the steps explain how."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nftproxy.explanation.answer import Fate
from nftproxy.explanation.packets import NodeFacts
from nftproxy.explanation.question import SourceKind
from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.child_process import ChildDied
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.namespace import NetworkNamespace
from nftproxy.kernel.nfnetlink.table_copy import read_table
from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.errors import Unavailable
from nftproxy.rules.transaction import Transaction
from nftproxy.trace.node import NewConnection, obstacle
from nftproxy.trace.outcome import Outcome
from nftproxy.trace.scene import Passage, Scene
from tests.support.examples import example_pipeline

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

FACTS = NodeFacts((Address("192.168.0.2"), Address("fd00:c0a8::2")), ("10.1.0.0/24", "fd00:1::/64"))
POD = Address("10.1.0.200")
WEB = NewConnection(SourceKind.POD, POD, Address("10.96.0.10"), 80)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """A node for all tests."""
    with Scene(FACTS) as made:
        yield made


def _chains(passage: Passage) -> list[str]:
    return list(dict.fromkeys(step.chain for step in passage.steps))


def test_a_step_says_where_what_and_why(scene: Scene) -> None:
    """Each step has the hook with its priority, the chain, the rule, its verdict and a sentence."""
    scene.load(example_pipeline("cluster-ip").full_transaction({}))
    found = scene.send(WEB)
    assert found.outcome.fate is Fate.ENDPOINT
    (step,) = (step for step in found.steps if step.chain == "services")
    assert (step.hook, step.priority, step.verdict) == ("prerouting", -101, "goto draw")
    assert step.rule == "ip daddr set ip daddr . meta l4proto . th dport map @services goto draw"
    assert step.words == "front of a Service: writes the number of its draw over the address"


@pytest.mark.parametrize(
    ("kind", "source", "hooks", "last"),
    [
        (SourceKind.POD, "10.1.0.200", ["prerouting", "forward", "postrouting"], "hide-source"),
        (SourceKind.OUTSIDE, "198.51.100.7", ["prerouting", "forward", "postrouting"], "take-node-address"),
        (SourceKind.REMOTE_POD, "10.1.1.200", ["prerouting", "forward", "postrouting"], "hide-source"),
        (SourceKind.NODE, "192.168.0.2", ["output", "postrouting"], "take-node-address"),
    ],
)
def test_a_packet_comes_from_where_it_is_said_to(
    scene: Scene, kind: SourceKind, source: str, hooks: list[str], last: str
) -> None:
    """A packet of each kind of source passes the right hooks, and is masqueraded by its kind."""
    scene.load(example_pipeline("cluster-ip").full_transaction({}))
    found = scene.send(NewConnection(kind, Address(source), WEB.address, 80))
    assert list(dict.fromkeys(step.hook for step in found.steps)) == hooks
    assert _chains(found)[-1] == last


def test_what_was_rejected_or_dropped_says_by_whom(scene: Scene) -> None:
    """The last step of a packet that doesn't get through is the rule that has decided so."""
    scene.load(example_pipeline("cluster-ip").full_transaction({}))
    rejected = scene.send(NewConnection(SourceKind.POD, POD, Address("10.96.0.20"), 80))
    assert rejected.outcome == Outcome(Fate.REJECTED, rejection="tcp reset")
    assert [step.words for step in rejected.steps][-2:] == [
        "the front has no endpoint on any node: rejects the connection",
        "answers with a TCP reset",
    ]
    scene.load(example_pipeline("source-ranges").full_transaction({}))
    dropped = scene.send(NewConnection(SourceKind.OUTSIDE, Address("192.0.2.77"), Address("203.0.113.9"), 443))
    assert dropped.outcome == Outcome()
    assert dropped.steps[-1].words == "the list doesn't have the source: drops the packet"


@pytest.mark.parametrize("protocol", [Protocol.UDP, Protocol.SCTP])
@pytest.mark.parametrize("hook", ["output", "input"])
def test_a_packet_of_the_node_to_itself_may_be_rejected(scene: Scene, hook: str, protocol: Protocol) -> None:
    """A packet through the loopback interface hasn't left the node.  It may be rejected before and after that."""
    base = f"type filter hook {hook} priority 0"
    scene.load(
        Transaction(f"table ip nftproxy {{ chain mine {{ {base}; ip protocol {protocol.value} reject\n }}\n }}\n")
    )
    node = FACTS.addresses[0]
    found = scene.send(NewConnection(SourceKind.NODE, node, node, 30080, protocol))
    assert found.outcome == Outcome(Fate.REJECTED, rejection="icmp port-unreachable")
    assert [(step.hook, step.verdict) for step in found.steps] == [(hook, "drop")]


def test_a_client_that_comes_again_is_remembered(scene: Scene) -> None:
    """The second connection of a client goes to the same pod, by the chain for remembered clients."""
    scene.load(example_pipeline("session-affinity").full_transaction({}))
    first, second = (scene.send(NewConnection(SourceKind.POD, POD, Address("10.96.0.50"), 80)) for _ in range(2))
    assert "translate-tcp-endpoints" in _chains(first)
    assert "translate-tcp-endpoints" not in _chains(second)
    assert second.outcome == first.outcome
    assert any(step.words == "the remembered pod can still be used: translates to it" for step in second.steps)


def test_only_the_packet_is_traced(scene: Scene) -> None:
    """Neither the rejection that the node sends back nor an earlier packet is part of a trace."""
    scene.load(example_pipeline("cluster-ip").full_transaction({}))
    ways = [
        scene.send(NewConnection(SourceKind.NODE, FACTS.addresses[0], Address("10.96.0.20"), 80)).steps
        for _ in range(2)
    ]
    assert ways[0] == ways[1]
    assert [step.chain for step in ways[0]].count("refuse") == 1


def test_a_copy_of_a_kernel_does_what_the_kernel_does(scene: Scene) -> None:
    """The copy of a kernel's tables, element by element, decides as the kernel does."""
    rules = example_pipeline("internal-local", wide_maps=probe().capabilities.wide_maps).full_transaction({})
    with NetworkNamespace("held") as held:
        held.call(Kernel().apply, rules)
        tables = [table for family in Family if (table := held.call(read_table, family))]
    scene.load(rules)
    agent = NewConnection(SourceKind.POD, POD, Address("10.96.0.80"), 4317)
    expected = scene.send(agent)
    scene.copy(tables)
    assert scene.send(agent) == expected
    assert expected.outcome.fate is Fate.ENDPOINT


def test_rules_that_the_library_cannot_print_are_still_followed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of a newer nft, of which an older library dies, are traced with verdicts in place of their text."""

    def dies(*_: object) -> None:
        raise ChildDied("the process that used libnftables was killed by SIGSEGV")

    with NetworkNamespace("held") as held:
        held.call(Kernel().apply, example_pipeline("cluster-ip").full_transaction({}))
        table = held.call(read_table, Family.IPV4)
    assert table
    monkeypatch.setattr("nftproxy.trace.scene.in_child", dies)
    scene.copy([table])
    (step,) = (step for step in scene.send(WEB).steps if step.chain == "services")
    assert (step.rule, step.words) == ("", "goto draw")


def test_a_rule_without_a_comment_shows_as_it_is(scene: Scene) -> None:
    """A rule without a comment is shown as nft's text, and the way goes on."""
    scene.load(
        Transaction(
            "table ip nftproxy {\n  chain mine {\n    ip daddr 10.96.0.10 counter\n  }\n"
            "  chain nat-prerouting {\n    type nat hook prerouting priority -101\n"
            "    jump mine\n    tcp dport 80 accept\n  }\n}\n"
        )
    )
    words = [step.words for step in scene.send(WEB).steps]
    assert words[0] == "jump mine"
    assert words[1].startswith("ip daddr 10.96.0.10 counter")
    assert words[2] == "tcp dport 80 accept"


def test_the_policy_of_a_chain_that_drops_is_a_step(scene: Scene) -> None:
    """A policy that somebody has set to drop is the last step."""
    changed = example_pipeline("cluster-ip").full_transaction({}).text
    scene.load(Transaction(f"{changed}add chain ip nftproxy filter-forward {{ policy drop; }}\n"))
    found = scene.send(WEB)
    assert found.outcome == Outcome()
    assert found.steps[-1].words == "the chain's policy: drops the packet"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rights or programs that a node takes the error says which."""
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    with pytest.raises(Unavailable, match="root is needed"):
        Scene(FACTS)
