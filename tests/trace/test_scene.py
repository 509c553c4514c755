"""A throw-away node does with packets what the rules say, and the steps say how."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nftproxy.explanation.packets import NodeFacts
from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.netns import ChildDied
from nftproxy.kernel.table_copy import read_table
from nftproxy.lab import DROPPED, TCP_RESET, Kind, Namespace, Origin, Probe, obstacle
from nftproxy.model.addresses import Address, Family
from nftproxy.model.errors import Unavailable
from nftproxy.rules.transaction import Transaction
from nftproxy.trace.scene import Scene, Traced
from tests.support.examples import example_pipeline

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

FACTS = NodeFacts((Address("192.168.0.2"), Address("fd00:c0a8::2")), ("10.1.0.0/24", "fd00:1::/64"))
WEB = Probe(Origin.POD, "10.96.0.10", 80, source="10.1.0.200")


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """One node for all."""
    with Scene(FACTS) as made:
        yield made


def _chains(traced: Traced) -> list[str]:
    return list(dict.fromkeys(step.chain for step in traced.steps))


def test_a_step_says_where_what_and_why(scene: Scene) -> None:
    """Each step has the hook with its priority, the chain, the rule, its verdict and a sentence."""
    scene.load(example_pipeline("cluster-ip").full_transaction({}))
    found = scene.send(WEB)
    assert found.outcome.kind is Kind.ENDPOINT
    (step,) = (step for step in found.steps if step.chain == "services")
    assert (step.hook, step.priority, step.verdict) == ("prerouting", -101, "goto draw")
    assert step.rule == "ip daddr set ip daddr . meta l4proto . th dport map @services goto draw"
    assert step.words == "the front is a Service's: writes how an endpoint is drawn over the packet's address"


@pytest.mark.parametrize(
    ("origin", "source", "hooks", "last"),
    [
        (Origin.POD, "10.1.0.200", ["prerouting", "forward", "postrouting"], "hide-source"),
        (Origin.OUTSIDE, "198.51.100.7", ["prerouting", "forward", "postrouting"], "take-node-address"),
        (Origin.REMOTE_POD, "10.1.1.200", ["prerouting", "forward", "postrouting"], "hide-source"),
        (Origin.NODE, None, ["output", "postrouting"], "take-node-address"),
    ],
)
def test_a_packet_comes_from_where_it_is_said_to(
    scene: Scene, origin: Origin, source: str | None, hooks: list[str], last: str
) -> None:
    """From each kind of source a packet passes the hooks of its way, and is masqueraded by what it is."""
    scene.load(example_pipeline("cluster-ip").full_transaction({}))
    found = scene.send(Probe(origin, "10.96.0.10", 80, source=source))
    assert list(dict.fromkeys(step.hook for step in found.steps)) == hooks
    assert _chains(found)[-1] == last


def test_what_was_rejected_or_dropped_says_by_whom(scene: Scene) -> None:
    """The last step of a packet that doesn't get through is the rule that has decided so."""
    scene.load(example_pipeline("cluster-ip").full_transaction({}))
    rejected = scene.send(Probe(Origin.POD, "10.96.0.20", 80, source="10.1.0.200"))
    assert rejected.outcome == TCP_RESET
    assert [step.words for step in rejected.steps][-2:] == [
        "the front has no endpoint on any node: rejects the connection",
        "answers with a TCP reset",
    ]
    scene.load(example_pipeline("source-ranges").full_transaction({}))
    dropped = scene.send(Probe(Origin.OUTSIDE, "203.0.113.9", 443, source="192.0.2.77"))
    assert dropped.outcome == DROPPED
    assert dropped.steps[-1].words == "the list doesn't have the source: drops the packet"


def test_a_client_that_comes_again_is_remembered(scene: Scene) -> None:
    """The second connection of a client goes to the same pod, by the chain that follows what was remembered."""
    scene.load(example_pipeline("session-affinity").full_transaction({}))
    first, second = (scene.send(Probe(Origin.POD, "10.96.0.50", 80, source="10.1.0.200")) for _ in range(2))
    assert "translate-tcp-endpoints" in _chains(first)
    assert "translate-tcp-endpoints" not in _chains(second)
    assert second.outcome == first.outcome
    assert any(step.words == "the remembered pod may be used still: translates to it" for step in second.steps)


def test_only_the_packet_is_traced(scene: Scene) -> None:
    """Neither the rejection that the node sends back nor an earlier packet is part of a trace."""
    scene.load(example_pipeline("cluster-ip").full_transaction({}))
    ways = [scene.send(Probe(Origin.NODE, "10.96.0.20", 80)).steps for _ in range(2)]
    assert ways[0] == ways[1]
    assert [step.chain for step in ways[0]].count("refuse") == 1


def test_a_copy_of_a_kernel_does_what_the_kernel_does(scene: Scene) -> None:
    """What one node's kernel holds, element by element, decides in its copy."""
    rules = example_pipeline("internal-local", wide_maps=probe().capabilities.wide_maps).full_transaction({})
    with Namespace("held") as held:
        held.call(Kernel().apply, rules)
        tables = [table for family in Family if (table := held.call(read_table, family))]
    scene.load(rules)
    agent = Probe(Origin.POD, "10.96.0.80", 4317, source="10.1.0.200")
    expected = scene.send(agent)
    scene.copy(tables)
    assert scene.send(agent) == expected
    assert expected.outcome.kind is Kind.ENDPOINT


def test_rules_that_the_library_cannot_print_are_still_followed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a newer nft has made, of which an older library dies, has its steps, with verdicts in the place of rules."""

    def dies(*_: object) -> None:
        raise ChildDied("the process that used libnftables was killed by SIGSEGV")

    with Namespace("held") as held:
        held.call(Kernel().apply, example_pipeline("cluster-ip").full_transaction({}))
        table = held.call(read_table, Family.IPV4)
    assert table
    monkeypatch.setattr("nftproxy.trace.scene.in_child", dies)
    scene.copy([table])
    (step,) = (step for step in scene.send(WEB).steps if step.chain == "services")
    assert (step.rule, step.words) == ("", "goto draw")


def test_a_rule_of_other_templates_shows_as_it_is(scene: Scene) -> None:
    """A chain or rule that the templates don't have is shown as nft's text, and the way goes on."""
    scene.load(
        Transaction(
            "table ip nftproxy {\n  chain mine {\n    ip daddr 10.96.0.10 counter\n  }\n"
            "  chain nat-prerouting {\n    type nat hook prerouting priority -101\n"
            "    jump mine\n    tcp dport 80 accept\n  }\n}\n"
        )
    )
    words = [step.words for step in scene.send(WEB).steps]
    assert words[0] == "jump mine"
    assert words[1].startswith("a chain of other templates than nftproxy's own: ip daddr 10.96.0.10 counter")
    assert words[2] == "tcp dport 80 accept"


def test_the_policy_of_a_chain_that_drops_is_a_step(scene: Scene) -> None:
    """A policy that somebody has set to drop is the last step."""
    changed = example_pipeline("cluster-ip").full_transaction({}).text
    scene.load(Transaction(f"{changed}add chain ip nftproxy filter-forward {{ policy drop; }}\n"))
    found = scene.send(WEB)
    assert found.outcome == DROPPED
    assert found.steps[-1].words == "the chain's policy: drops the packet"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rights or programs that a node takes the error says which."""
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    with pytest.raises(Unavailable, match="the lab needs root"):
        Scene(FACTS)
