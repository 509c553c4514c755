"""Findings: a code (model/codes.py), a severity, and the evidence on this node."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from nftproxy.doctor.observations import Observations, Unseen
from nftproxy.model.codes import AnyCode, Code


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """nftproxy can't do its work on this node."""
    WARNING = "warning"
    """Something that this node uses will be different, or something is left over."""
    NOTE = "note"
    """Something is different, and nothing shows that this node uses it."""


class Finding(msgspec.Struct, frozen=True):
    """A finding with lines of evidence, which say where it was seen."""

    code: AnyCode
    severity: Severity
    evidence: tuple[str, ...]


class MigrationStage(StrEnum):
    """The stage of a node's migration, by the rules in its kernel."""

    BEFORE = "before"
    """Another service proxy's rules."""
    CANARY = "canary"
    """Another service proxy's rules and ours, which serve just the Services that it leaves alone."""
    BESIDE = "beside"
    """Another service proxy's rules and ours."""
    AFTER = "after"
    """Our rules alone."""
    FRESH = "fresh"
    """No service proxy's rules."""


class Diagnosis(msgspec.Struct, frozen=True):
    """All findings on a node, the most severe first, and everything that couldn't be inspected."""

    node: str
    stage: MigrationStage
    mode: str
    api: str
    """The API server's URL, and the proxy on the way, "" if it wasn't asked."""
    findings: tuple[Finding, ...]
    unseen: tuple[Unseen, ...]

    @property
    def needs_attention(self) -> bool:
        """True if there are errors or warnings."""
        return any(finding.severity is not Severity.NOTE for finding in self.findings)


BRIEF = frozenset({Code.AFFINITY_BY_HASH})
"""Findings that most nodes have and that few need to act on.  They are printed in one line, after all others."""
MOST, LONGEST = 40, 400
"""Lines of evidence of a finding, and characters of each: evidence may be any program's text, of any length."""


def found(severity: Severity, code: AnyCode, *evidence: str) -> Finding:
    """Make a finding, and make its evidence safe for a terminal."""
    return Finding(code, severity, shown(evidence))


error = functools.partial(found, Severity.ERROR)
warning = functools.partial(found, Severity.WARNING)
note = functools.partial(found, Severity.NOTE)


def shown(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts safe for a terminal: printable, not too long, and not too many."""
    pieces = ["".join(c if c.isprintable() else "?" for c in text[:LONGEST]) for text in texts[:MOST]]
    more = len(texts) - len(pieces)
    return (*pieces, f"and {more} more") if more else tuple(pieces)


def stage_of(observed: Observations) -> MigrationStage:
    """Return the stage of a node's migration."""
    if observed.is_canary:
        return MigrationStage.CANARY
    if observed.has_our_rules:
        return MigrationStage.BESIDE if observed.traces else MigrationStage.AFTER
    return MigrationStage.BEFORE if observed.traces else MigrationStage.FRESH


def ordered(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Sort errors before warnings before notes, each by their codes, with the brief ones last."""
    ranks = list(Severity)
    yield from sorted(findings, key=lambda each: (ranks.index(each.severity), each.code in BRIEF, each.code))
