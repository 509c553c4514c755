"""The findings of `nftproxy doctor` on many nodes, merged: a finding with the same evidence is one, with its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from nftproxy.fleet.merged_rows import NodeOutcome
from nftproxy.fleet.node_answers import Agreements, NodeAnswer, count_of, named, one_of

SEVERITIES = ("error", "warning", "note")
"""The severities, the worst first (doctor/findings.py)."""


class NodeFinding(msgspec.Struct, frozen=True):
    """A finding of a node, as `doctor -o json` prints it there."""

    code: str
    severity: str
    summary: str
    evidence: tuple[str, ...] = ()
    means: str = ""
    do: str = ""


class _Diagnosed(msgspec.Struct):
    findings: list[NodeFinding]


class MergedFinding(msgspec.Struct, frozen=True):
    """A finding, and the nodes that have it."""

    finding: NodeFinding
    nodes: tuple[str, ...]


class MergedFindings:
    """Takes the diagnoses of nodes, and groups the nodes with the same finding."""

    def __init__(self) -> None:
        self._findings = Agreements[NodeFinding, NodeFinding](lambda finding: finding)
        self._worst = Counter[str]()

    def take(self, answer: NodeAnswer) -> NodeOutcome:
        """Add the findings of a node."""
        found, problem = answer.decoded(_Diagnosed)
        if found is None:
            return NodeOutcome(answer.node.name, problem)
        present = {each.severity for each in found.findings}
        self._worst[next((each for each in SEVERITIES[:2] if each in present), "")] += 1
        for each in found.findings:
            self._findings.add(answer.node.name, each)
        return NodeOutcome(answer.node.name)

    @property
    def needs_attention(self) -> bool:
        """True if a node has errors or warnings."""
        return any(self._worst[each] for each in SEVERITIES[:2])

    def findings(self) -> list[MergedFinding]:
        """Return the findings: the worst first, and within a severity those of the most nodes first."""
        merged = [MergedFinding(finding, nodes) for finding, nodes in self._findings.groups()]
        order = dict(zip(SEVERITIES, range(len(SEVERITIES)), strict=True))
        return sorted(merged, key=lambda each: order.get(each.finding.severity, 0))

    def text(self) -> Iterator[str]:
        """Yield the lines for people.  Notes are lines without their evidence, as each node has many."""
        total = self._worst.total()
        counts = ((self._worst[each], text, text) for each, text in zip(SEVERITIES, _WITH, strict=False))
        words = one_of((*counts, (self._worst[""], "without either", "without either")))
        yield f"{count_of(total)}: {words}"
        for finding, nodes in ((each.finding, each.nodes) for each in self.findings()):
            yield ""
            yield f"{finding.severity} {finding.code}: {finding.summary}, on {named(nodes, total)}"
            if finding.severity != SEVERITIES[-1]:
                yield from (f"  seen: {each}" for each in finding.evidence)
                yield f"  do:   {finding.do}"


_WITH = ("with errors", "with warnings")
