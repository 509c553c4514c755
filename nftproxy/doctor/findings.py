"""What a check finds: a kind, whose code says what it means (model/codes.py), and the evidence that was seen here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from nftproxy.doctor.facts import Facts, Unseen
from nftproxy.model.codes import Code


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """nftproxy can't do its work on this node."""
    WARNING = "warning"
    """Something will be different that somebody here uses, or is left over."""
    NOTE = "note"
    """Something is different, and nothing shows that anybody here uses it."""


class Kind(NamedTuple):
    """A kind of finding: its code, which says what it means, and how much it matters."""

    code: Code
    severity: Severity

    def seen(self, *evidence: str, severity: Severity | None = None) -> Finding:
        """A finding of this kind; the evidence says what was seen, and where."""
        return Finding(self.code, severity or self.severity, shown(evidence))


MOST, LONGEST = 40, 400
"""Pieces of evidence of one finding, and characters of each: what is seen may be anybody's, and of any length."""


def shown(texts: Sequence[str]) -> tuple[str, ...]:
    """Texts as they may be shown to people: printable, not too long, and not too many."""
    pieces = ["".join(c if c.isprintable() else "?" for c in text[:LONGEST]) for text in texts[:MOST]]
    more = len(texts) - len(pieces)
    return (*pieces, f"and {more} more") if more else tuple(pieces)


class Finding(msgspec.Struct, frozen=True):
    """One thing that was found; `evidence` is what was seen, and where."""

    code: Code
    severity: Severity
    evidence: tuple[str, ...]


class Stage(StrEnum):
    """How far a node has come, by what is in its kernel."""

    BEFORE = "before"
    """Another service proxy's rules are there, ours aren't."""
    CANARY = "canary"
    """Both are, as ours serve just the Services that kube-proxy leaves alone."""
    BESIDE = "beside"
    """Both are."""
    AFTER = "after"
    """Ours alone."""
    FRESH = "fresh"
    """Nobody's."""


class Diagnosis(msgspec.Struct, frozen=True):
    """All that was found on a node, what matters most first, and what couldn't be looked at."""

    node: str
    stage: Stage
    mode: str
    findings: tuple[Finding, ...]
    unseen: tuple[Unseen, ...]

    @property
    def needs_attention(self) -> bool:
        """Whether there is more than notes."""
        return any(finding.severity is not Severity.NOTE for finding in self.findings)


def stage_of(facts: Facts) -> Stage:
    """How far the node has come."""
    if facts.is_canary:
        return Stage.CANARY
    if facts.has_our_rules:
        return Stage.BESIDE if facts.traces else Stage.AFTER
    return Stage.BEFORE if facts.traces else Stage.FRESH


def ordered(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Errors first, then warnings, then notes; each by their codes."""
    ranks = list(Severity)
    yield from sorted(findings, key=lambda finding: (ranks.index(finding.severity), finding.code))
