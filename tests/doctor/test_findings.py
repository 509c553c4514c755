"""Findings are in the order in which they matter, and show nothing that could harm a terminal."""

from __future__ import annotations

import json

from nftproxy.commands.tables import json_text
from nftproxy.doctor.cluster import COLD, NO_NODE
from nftproxy.doctor.diagnosis import CHECKS, Explanation, as_text, as_values, diagnose
from nftproxy.doctor.facts import Conntrack, Facts, KubeProxy, Unseen, mode_of_traces
from nftproxy.doctor.findings import LONGEST, MOST, Severity, Stage, ordered, shown
from nftproxy.doctor.metrics import INVALID_DROPPED, LOCALHOST_ACCEPTED, read_metrics
from nftproxy.model.codes import Code


def explain(_: Code) -> Explanation:
    """What every code means here."""
    return Explanation("It means this. " * 20, "Do that.")


def test_what_matters_most_comes_first() -> None:
    """Errors come before warnings and warnings before notes, each by their codes."""
    findings = [
        COLD.seen("a", severity=Severity.NOTE),
        NO_NODE.seen("b"),
        COLD.seen("c"),
        NO_NODE.seen("d", severity=Severity.ERROR),
    ]
    assert ["".join(each.evidence) for each in ordered(findings)] == ["d", "c", "b", "a"]


def test_evidence_is_bounded_and_printable() -> None:
    """What was seen may be anybody's text: no control character, no endless line and no endless list is shown."""
    assert shown(["a\x1b[2Jb\n"]) == ("a?[2Jb?",)
    assert shown(["x" * 1000]) == ("x" * LONGEST,)
    assert shown(["x"] * (MOST + 2)) == ("x",) * MOST + ("and 2 more",)
    assert shown([]) == ()


def test_no_facts_no_findings() -> None:
    """Where nothing is known nothing is found, by any check."""
    assert [finding for check in CHECKS for finding in check(Facts(node="node-a"))] == []
    assert not diagnose(Facts(node="node-a")).needs_attention


def test_hostile_texts_reach_neither_form() -> None:
    """A scheduler with control characters is shown without them, as text and as JSON."""
    facts = Facts(
        node="node-a",
        configuration=KubeProxy(source="f\x07", mode="ipvs", node_port_addresses=("primary",), scheduler="l\x1bc"),
        unseen=(Unseen("a\x00", "b\x1b"),),
    )
    diagnosis = diagnose(facts)
    text = "\n".join(as_text(diagnosis, explain))
    assert "ipvs.scheduler: l?c, in f?" in text
    assert "a?: b?" in text
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert json.loads(json_text(as_values(diagnosis, explain)))["findings"][0]["do"] == "Do that."
    assert max(map(len, text.splitlines())) <= 120


def test_a_conntrack_without_room() -> None:
    """A maximum of 0, which is no limit's, doesn't divide by nothing."""
    assert diagnose(Facts(node="a", conntrack=Conntrack(1, 0, 0))).needs_attention


def test_stages() -> None:
    """The stage follows from whose rules are there."""
    traces = {"kube-proxy": ["the table ip kube-proxy (nftables mode)"]}
    assert diagnose(Facts(node="a")).stage is Stage.FRESH
    assert diagnose(Facts(node="a", traces=traces)).stage is Stage.BEFORE
    assert diagnose(Facts(node="a", traces=traces, has_our_rules=True)).stage is Stage.BESIDE
    assert diagnose(Facts(node="a", traces=traces, has_our_rules=True, is_canary=True)).stage is Stage.CANARY
    assert diagnose(Facts(node="a", has_our_rules=True)).stage is Stage.AFTER
    assert mode_of_traces(traces["kube-proxy"]) == "nftables"


def test_metrics() -> None:
    """Both metrics are read, with labels or without; what isn't there or is no number is unknown."""
    text = f'# HELP {INVALID_DROPPED} x\n{INVALID_DROPPED} 12\n{LOCALHOST_ACCEPTED}{{ip_family="IPv4"}} 1.5e+01\n'
    assert (read_metrics("url", text).invalid_dropped, read_metrics("url", text).localhost_accepted) == (12, 15)
    for value in ("x 3", " NaN", " 9e999", " 1.2.3", ""):
        other = f"{INVALID_DROPPED}{value}\n"
        assert read_metrics("url", other).invalid_dropped is None
