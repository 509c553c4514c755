"""All checks, and what they come to, as text for people and as values for programs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from nftproxy.doctor import cluster, kube_proxy, neighbours, node
from nftproxy.doctor.facts import Facts, Unseen
from nftproxy.doctor.findings import Diagnosis, Finding, Stage, ordered, shown, stage_of
from nftproxy.model.codes import Code

CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    *kube_proxy.CHECKS,
    *neighbours.CHECKS,
    *node.CHECKS,
    *cluster.CHECKS,
)
KINDS = (*kube_proxy.KINDS, *neighbours.KINDS, *node.KINDS, *cluster.KINDS)
"""Every kind of finding that there is."""

_WIDTH = 120
_STAGES = {
    Stage.BEFORE: "another service proxy's rules are here, nftproxy's are not",
    Stage.CANARY: "nftproxy serves just some Services here, another service proxy the others",
    Stage.BESIDE: "nftproxy's rules are here, and another service proxy's",
    Stage.AFTER: "nftproxy's rules are here, and no other service proxy's",
    Stage.FRESH: "no service proxy's rules are here",
}


def diagnose(facts: Facts) -> Diagnosis:
    """What follows from the facts."""
    findings = (finding for check in CHECKS for finding in check(facts))
    unseen = tuple(Unseen(*shown([each.what, each.why])) for each in facts.unseen)
    return Diagnosis(facts.node, stage_of(facts), shown([facts.mode])[0], tuple(ordered(findings)), unseen)


class Explanation(NamedTuple):
    """What a code means, and what to do."""

    means: str
    do: str


Explain = Callable[[Code], Explanation]


def as_values(diagnosis: Diagnosis, explain: Explain) -> dict[str, object]:
    """What becomes one JSON object, as docs/cli.md describes it."""
    findings = [
        {"code": each.code, "severity": each.severity, "summary": each.code.summary, "evidence": each.evidence}
        | explain(each.code)._asdict()
        for each in diagnosis.findings
    ]
    return msgspec.structs.asdict(diagnosis) | {"findings": findings}


def as_text(diagnosis: Diagnosis, explain: Explain) -> Iterator[str]:
    """Lines for people: findings with their evidence, then what couldn't be looked at."""
    mode = f"; kube-proxy's mode: {diagnosis.mode}" if diagnosis.mode else ""
    yield f"node {diagnosis.node}: {_STAGES[diagnosis.stage]}{mode}"
    for finding in diagnosis.findings:
        yield ""
        means, do = explain(finding.code)
        yield f"{finding.severity.value} {finding.code}: {finding.code.summary}"
        yield from (line for text in finding.evidence for line in _wrapped("seen", text))
        yield from _wrapped("then", means)
        yield from _wrapped("do", do)
    if diagnosis.unseen:
        yield ""
        yield "not seen:"
        yield from (line for each in diagnosis.unseen for line in _wrapped("", f"{each.what}: {each.why}"))
    yield ""
    yield _summary(diagnosis)


def _wrapped(label: str, text: str) -> list[str]:
    start = f"  {f'{label}:':6}" if label else "  "
    return textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False)


def _summary(diagnosis: Diagnosis) -> str:
    counts = Counter(finding.severity for finding in diagnosis.findings)
    found = ", ".join(f"{count} {severity.value}{'s' * (count > 1)}" for severity, count in counts.items())
    return f"{found or 'nothing found'}; {len(diagnosis.unseen)} not seen"
