"""Findings are in the order in which they matter, and show nothing that could harm a terminal."""

from __future__ import annotations

import functools
import json

import pytest

from nftproxy.commands.output import json_text
from nftproxy.doctor.diagnosis import CHECKS, as_text, as_values, diagnose
from nftproxy.doctor.findings import LONGEST, MOST, MigrationStage, error, note, ordered, shown, warning
from nftproxy.doctor.kube_proxy_checks import schedulers
from nftproxy.doctor.kube_proxy_readers import INVALID_DROPPED, LOCALHOST_ACCEPTED, read_metrics
from nftproxy.doctor.observations import ConntrackUsage, KubeProxyConfigFacts, Observations, Unseen, mode_of_traces
from nftproxy.installed_fields import FIELDS
from nftproxy.model.codes import AnyCode, Code

TRACES = ["the table ip kube-proxy (nftables mode)"]


def advise(_: AnyCode) -> tuple[str, str]:
    """The meaning and remedy of every code here."""
    return "It means this. " * 20, "Do that."


def test_what_matters_most_comes_first() -> None:
    """Errors come before warnings and warnings before notes, each by their codes."""
    findings = [
        note(Code.API_BY_CLUSTER_IP, "a"),
        warning(Code.NODE_UNKNOWN, "b"),
        warning(Code.API_BY_CLUSTER_IP, "c"),
        error(Code.NODE_UNKNOWN, "d"),
    ]
    assert ["".join(each.evidence) for each in ordered(findings)] == ["d", "c", "b", "a"]


def test_evidence_is_bounded_and_printable() -> None:
    """Evidence may be any program's text: no control character, no endless line and no endless list is shown."""
    assert shown(["a\x1b[2Jb\n"]) == ("a?[2Jb?",)
    assert shown(["x" * 1000]) == ("x" * LONGEST,)
    assert shown(["x"] * (MOST + 2)) == ("x",) * MOST + ("and 2 more",)
    assert shown([]) == ()


def test_no_observations_no_findings() -> None:
    """No check finds anything without observations."""
    assert [finding for check in CHECKS for finding in check(Observations(node="node-a"))] == []
    assert not diagnose(Observations(node="node-a")).needs_attention


def test_hostile_texts_reach_neither_form() -> None:
    """A scheduler with control characters is shown without them, as text and as JSON."""
    facts = Observations(
        node="node-a",
        configuration=KubeProxyConfigFacts(
            source="f\x07", mode="ipvs", node_port_addresses=("primary",), scheduler="l\x1bc"
        ),
        unseen=(Unseen("a\x00", "b\x1b"),),
    )
    diagnosis = diagnose(facts, [functools.partial(schedulers, FIELDS)])
    text = "\n".join(as_text(diagnosis, advise))
    assert "ipvs.scheduler: l?c, in f?" in text
    assert "a?: b?" in text
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert json.loads(json_text(as_values(diagnosis, advise)))["findings"][0]["do"] == "Do that."
    assert max(map(len, text.splitlines())) <= 120


def test_a_conntrack_without_room() -> None:
    """A maximum of 0, which is no limit's, doesn't divide by nothing."""
    assert diagnose(Observations(node="a", conntrack=ConntrackUsage(1, 0, 0))).needs_attention


@pytest.mark.parametrize(
    ("has_traces", "has_our_rules", "is_canary", "stage"),
    [
        (False, False, False, MigrationStage.FRESH),
        (True, False, False, MigrationStage.BEFORE),
        (True, True, False, MigrationStage.BESIDE),
        (True, True, True, MigrationStage.CANARY),
        (False, True, False, MigrationStage.AFTER),
    ],
)
def test_stages(has_traces: bool, has_our_rules: bool, is_canary: bool, stage: MigrationStage) -> None:
    """The stage follows from the rules in the kernel."""
    traces = {"kube-proxy": TRACES} if has_traces else {}
    observed = Observations(node="a", traces=traces, has_our_rules=has_our_rules, is_canary=is_canary)
    assert diagnose(observed).stage is stage


def test_the_mode_of_traces() -> None:
    """The tables that are left show kube-proxy's mode."""
    assert mode_of_traces(TRACES) == "nftables"


def test_metrics() -> None:
    """Both metrics are read, with labels or without.  A missing value, or no number, is None."""
    text = f'# HELP {INVALID_DROPPED} x\n{INVALID_DROPPED} 12\n{LOCALHOST_ACCEPTED}{{ip_family="IPv4"}} 1.5e+01\n'
    assert (read_metrics("url", text).invalid_dropped, read_metrics("url", text).localhost_accepted) == (12, 15)
    for value in ("x 3", " NaN", " 9e999", " 1.2.3", ""):
        other = f"{INVALID_DROPPED}{value}\n"
        assert read_metrics("url", other).invalid_dropped is None
