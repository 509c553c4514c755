"""Connections, outcomes and differences in words and as JSON, for the reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nftproxy_conformance.lab import PING, Kind, Outcome, Probe
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.rules import rule_of
from nftproxy_conformance.trials.trial import Difference

PHRASES = {
    Kind.ENDPOINT: "reaches {0.endpoint}",
    Kind.ANSWERED: "is answered",
    Kind.NODE: "is delivered to the node",
    Kind.UNTOUCHED: "leaves the node as it came",
    Kind.REJECTED: "is rejected ({0.how})",
    Kind.DROPPED: "is dropped",
}


def connection(probe: Probe) -> str:
    """A connection in words."""
    ends = f"from {probe.source} ({probe.origin.value}) to {probe.address}"
    return f"ping {ends}" if probe.protocol == PING else f"{probe.protocol} {ends} port {probe.port}"


def describe(outcome: Outcome) -> str:
    """An outcome in words."""
    status = f" with {outcome.how}" if outcome.kind is Kind.ANSWERED and outcome.how else ""
    hidden = ", its source hidden" if outcome.masqueraded else ""
    return PHRASES[outcome.kind].format(outcome) + status + hidden


def any_of(outcomes: Iterable[Outcome]) -> str:
    """Several outcomes in words."""
    return " or ".join(sorted(map(describe, outcomes)))


def lines(difference: Difference, oracle: Oracle) -> str:
    """A difference in words, a line for each thing to know."""
    rule = rule_of(oracle, difference.probe, difference.seen, difference.what)
    known = {
        "connection": connection(difference.probe),
        "expected": any_of(difference.expected),
        "seen": any_of(difference.seen),
        "nftproxy": any_of(difference.ours),
        "in short": difference.what,
        "rule": str(rule),
        "deviation": difference.deviation,
    }
    return "".join(f"  {name + ':':12}{words}\n" for name, words in known.items() if words)


def as_json(difference: Difference, oracle: Oracle) -> dict[str, Any]:
    """A difference as JSON, with the broken rule, and outcomes in words."""
    probe = difference.probe
    rule = rule_of(oracle, probe, difference.seen, difference.what)
    return {
        "protocol": probe.protocol,
        "source": probe.source,
        "origin": probe.origin.value,
        "address": probe.address,
        "port": probe.port,
        "expected": sorted(map(describe, difference.expected)),
        "seen": sorted(map(describe, difference.seen)),
        **({"nftproxy": sorted(map(describe, difference.ours))} if difference.ours else {}),
        "what": difference.what,
        "rule": {"section": rule.anchor, "sentence": rule.sentence},
        "deviation": difference.deviation,
    }
