"""Run all checks, and format their findings: as text for people, as values for programs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from nftproxy.doctor import cluster_checks, kube_proxy_checks, node_checks, program_checks
from nftproxy.doctor.findings import BRIEF, Diagnosis, Finding, MigrationStage, ordered, shown, stage_of, warning
from nftproxy.doctor.observations import Observations, Unseen
from nftproxy.model.codes import AnyCode, Code

Check = Callable[[Observations], Iterable[Finding]]
"""Yields findings from the observations."""

CHECKS: tuple[Check, ...] = (
    *kube_proxy_checks.CHECKS,
    *program_checks.CHECKS,
    *node_checks.CHECKS,
    *cluster_checks.CHECKS,
)
"""The proxy's checks."""

Advise = Callable[[AnyCode], tuple[str, str]]
"""Returns the meaning of a code, and the remedy."""

_WIDTH = 120
_STAGES = {
    MigrationStage.BEFORE: "another service proxy's rules are here, nftproxy's are not",
    MigrationStage.CANARY: "nftproxy serves just some Services here, another service proxy the others",
    MigrationStage.BESIDE: "nftproxy's rules are here, and another service proxy's",
    MigrationStage.AFTER: "nftproxy's rules are here, and no other service proxy's",
    MigrationStage.FRESH: "no service proxy's rules are here",
}


def diagnose(observed: Observations, added: Iterable[Check] = (), codes: Iterable[AnyCode] = Code) -> Diagnosis:
    """Return all findings, and the stage of the migration.

    Args:
        observed: the observations.
        added: the extensions' checks.
        codes: all codes, for the agent's warnings.
    """
    seen = [finding for check in (*CHECKS, *added) for finding in check(observed)]
    findings = ordered([*seen, *_of_agent(observed, codes, {finding.code for finding in seen})])
    unseen = tuple(Unseen(*shown([each.what, each.why])) for each in observed.unseen)
    mode, api = shown([observed.mode, observed.api.server if observed.api else ""])
    return Diagnosis(observed.node, stage_of(observed), mode, api, tuple(findings), unseen)


def _of_agent(observed: Observations, codes: Iterable[AnyCode], known: Collection[AnyCode]) -> Iterator[Finding]:
    """Yield the agent's warnings, by code, except for those that the checks have found by themselves."""
    by_number = {code.value: code for code in codes}
    by_code: dict[AnyCode, list[str]] = {}
    for each in observed.agent_warnings:
        name, _, text = each.partition(": ")
        if code := by_number.get(name):
            by_code.setdefault(code, []).append(text)
    yield from (warning(code, *texts) for code, texts in by_code.items() if code not in known)


def as_values(diagnosis: Diagnosis, advise: Advise) -> dict[str, object]:
    """Return the values of the JSON object that docs/cli.md describes."""
    findings = [
        {"code": each.code, "severity": each.severity, "summary": each.code.summary, "evidence": each.evidence}
        | dict(zip(("means", "do"), advise(each.code), strict=True))
        for each in diagnosis.findings
    ]
    return msgspec.structs.asdict(diagnosis) | {"findings": findings}


def as_text(diagnosis: Diagnosis, advise: Advise) -> Iterator[str]:
    """Yield lines for people: findings with their evidence, then everything that couldn't be inspected."""
    mode = f"; kube-proxy's mode: {diagnosis.mode}" if diagnosis.mode else ""
    yield f"node {diagnosis.node}: {_STAGES[diagnosis.stage]}{mode}"
    yield from _wrapped("the API server: ", diagnosis.api) if diagnosis.api else ()
    for finding in diagnosis.findings:
        means, do = advise(finding.code)
        yield ""
        if finding.code in BRIEF:
            yield f"{finding.severity.value} {finding.code}: {finding.code.summary}: {finding.evidence[0]}"
            continue
        yield f"{finding.severity.value} {finding.code}: {finding.code.summary}"
        for label, text in (*(("seen", each) for each in finding.evidence), ("then", means), ("do", do)):
            yield from _wrapped(f"  {f'{label}:':6}", text)
    if diagnosis.unseen:
        yield ""
        yield "not seen:"
        for each in diagnosis.unseen:
            yield from _wrapped("  ", f"{each.what}: {each.why}")
    yield ""
    counts = Counter(finding.severity for finding in diagnosis.findings)
    found = ", ".join(f"{count} {severity.value}{'s' * (count > 1)}" for severity, count in counts.items())
    yield f"{found or 'nothing found'}; {len(diagnosis.unseen)} not seen"


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False)
