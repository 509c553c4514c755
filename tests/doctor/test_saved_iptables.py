"""The output of iptables-save is parsed, whatever a program has written into the kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nftproxy.doctor.saved_iptables import Rule, SavedTables, Table, read_saved
from tests.support.kube_proxy_rules import IPTABLES_MODE


def only_rule(line: str) -> Rule:
    """The parsed rule of a line."""
    (table,) = read_saved("iptables-nft", f"*filter\n{line}\nCOMMIT\n").tables
    (rule,) = table.rules
    return rule


def test_tables_chains_and_rules() -> None:
    """Built-in chains have policies, all other chains none, and rules stay in order."""
    chains = ":FORWARD DROP [1:2]\n:MINE - [0:0]\n"
    text = f"# a comment\n*filter\n{chains}[3:4] -A FORWARD -j MINE\n-A MINE -j ACCEPT\nCOMMIT\n"
    rules = (Rule("FORWARD", "", "MINE", 3), Rule("MINE", "", "ACCEPT", 0))
    table = Table("filter", {"FORWARD": "DROP"}, ("MINE",), rules)
    saved = read_saved("iptables-nft", text)
    assert saved == SavedTables("iptables-nft", (table,))
    assert saved.table("filter") == table
    assert saved.table("nat") is None
    assert list(table.of("MINE")) == [rules[1]]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("-A FORWARD -j REJECT --reject-with icmp-host-prohibited", Rule("FORWARD", "", "REJECT", 0)),
        ('-A FORWARD -m comment --comment "say \\"no\\" -j DROP" -j ACCEPT', Rule("FORWARD", "", "ACCEPT", 0)),
        ("-A FORWARD -m comment --comment word -i eth0 -g NEXT", Rule("FORWARD", "-i eth0", "NEXT", 0)),
        ("[7:9] -A K -m conntrack --ctstate INVALID -j DROP", Rule("K", "-m conntrack --ctstate INVALID", "DROP", 7)),
        ("-A K -m mark --mark 0x1", Rule("K", "-m mark --mark 0x1", "", 0)),
        ("-A K", Rule("K", "", "", 0)),
    ],
)
def test_one_rule(line: str, rule: Rule) -> None:
    """A comment is no condition, and a rule may have no target."""
    assert only_rule(line) == rule


def test_tables_of_kube_proxy() -> None:
    """All tables of a whole dump are there, each with its own chains."""
    saved = read_saved("iptables-nft", IPTABLES_MODE)
    assert [table.name for table in saved.tables] == ["mangle", "nat", "filter"]
    assert [len(table.chains) for table in saved.tables] == [1, 12, 6]


@given(st.text(alphabet='*:-A[]0123 \n"\\jgKx', max_size=200))
def test_nothing_raises(text: str) -> None:
    """Any text is read as far as it can be."""
    assert read_saved("tool", text).tool == "tool"
