"""The answers of many nodes to a question of `nftproxy explain`, with equal answers merged.

An `Outlook` is an explanation without the facts in which all nodes differ: the node's name, and which endpoints are on
it.  Sources with the same outcome are a single line.  Masquerading is left out, which `explain` on a node has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from nftproxy.explanation.answer import Case, EndpointShare, ExplainedPlace, Explanation
from nftproxy.explanation.answering import HAIRPIN
from nftproxy.explanation.question import SourceKind
from nftproxy.fleet.merged_rows import NodeOutcome
from nftproxy.fleet.node_answers import Agreement, Agreements, NodeAnswer, count_of, named

MOST_ENDPOINTS = 10
"""Endpoints of a share that a line names."""


class Paragraph(msgspec.Struct, frozen=True):
    """The lines about an address and port, or about the whole question (`heading` is "")."""

    heading: str
    lines: tuple[str, ...]


class Outlook(msgspec.Struct, frozen=True):
    """The outcome of connections on a node, in words.

    `is_well` is false if the kernel differs, or if the question names an object that the node doesn't know.
    """

    paragraphs: tuple[Paragraph, ...]
    is_well: bool


class NodesInAgreement(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes that give the same answer, and the explanation of one of them."""

    nodes: tuple[str, ...]
    is_well: bool
    explanation: Explanation


class MergedExplanations:
    """Takes the explanations of nodes, and groups the nodes that agree."""

    def __init__(self) -> None:
        self._groups = Agreements[Outlook, tuple[Outlook, Explanation]](lambda pair: pair[0])

    def take(self, answer: NodeAnswer) -> NodeOutcome:
        """Add the explanation of a node."""
        found, problem = answer.decoded(Explanation)
        if found is None:
            return NodeOutcome(answer.node.name, problem)
        self._groups.add(answer.node.name, (outlook(found), found))
        return NodeOutcome(answer.node.name)

    def groups(self) -> list[NodesInAgreement]:
        """Return the groups, the largest first."""
        return [NodesInAgreement(nodes, look.is_well, found) for (look, found), nodes in self._groups.groups()]

    def text(self, title: str) -> Iterator[str]:
        """Yield the lines for people: the answer of most nodes, and of the rest the lines that differ."""
        groups = [Agreement(look, nodes) for (look, _), nodes in self._groups.groups()]
        total = sum(len(each.nodes) for each in groups)
        differ = f", which give {len(groups)} different answers" if len(groups) > 1 else ""
        yield f"{title}, on {count_of(total)}{differ}"
        usual: set[tuple[str, str]] = set()
        for number, (look, nodes) in enumerate(groups):
            yield ""
            yield f"{_title(nodes, total)}:"
            yield from (f"  {line}" for line in _lines(look, usual))
            if number == 0:
                usual = {(each.heading, line) for each in look.paragraphs for line in each.lines}


def outlook(explanation: Explanation) -> Outlook:
    """Return the outcome in words."""
    notes = list(explanation.notes)
    if explanation.missing_chains:
        notes.append(f"kernel: no packet comes to {', '.join(explanation.missing_chains)}")
    about_all = [Paragraph("", tuple(notes))] if notes else []
    places = [Paragraph(f"{place}: {place.reached}", tuple(_of_place(place))) for place in explanation.places]
    return Outlook((*about_all, *places), explanation.is_known and not explanation.is_damaged)


def _title(nodes: Sequence[str], total: int) -> str:
    return named(nodes, total) if len(nodes) in (1, total) else f"{count_of(len(nodes))} ({named(nodes, total)})"


def _lines(look: Outlook, usual: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines that aren't usual, with the headings above them."""
    for paragraph in look.paragraphs:
        lines = [line for line in paragraph.lines if (paragraph.heading, line) not in usual]
        if not lines and usual:
            continue
        if paragraph.heading:
            yield paragraph.heading
        yield from (f"  {line}" if paragraph.heading else line for line in lines)


def _of_place(place: ExplainedPlace) -> Iterator[str]:
    yield from (f"lost by {loser.owner}: {loser.code}: {loser.why}" for loser in place.losers)
    yield from (f"note: {note}" for note in place.notes if note != HAIRPIN)
    for (outcome, why, lines), cases in itertools.groupby(place.cases, _outcome):
        yield f"from {_sources(cases)}: {outcome}: {why}"
        yield from lines
    wrong = [each.container for each in place.expected if each.is_held is False]
    if wrong:
        count = "1 element is" if len(wrong) == 1 else f"{len(wrong)} elements are"
        yield f"kernel: {count} missing or wrong, in {', '.join(dict.fromkeys(wrong))}"


def _sources(cases: Iterable[Case]) -> str:
    sources = dict.fromkeys(source for case in cases for source in case.clients)
    return "anywhere" if len(sources) >= len(SourceKind) else ", ".join(sources)


def _outcome(case: Case) -> tuple[str, str, tuple[str, ...]]:
    """Return the outcome, its reason, and a line for each share and for each reason of endpoints without a share."""
    return case.outcome, case.why, tuple(_shares(case.endpoints))


def _shares(endpoints: Sequence[EndpointShare]) -> Iterator[str]:
    by_share = Agreements[float, float](lambda share: share)
    for endpoint in endpoints:
        if endpoint.share:
            by_share.add(_text(endpoint), endpoint.share)
    for share, names in sorted(by_share.groups(), key=lambda each: -each.answer):
        each = " each" if len(names) > 1 else ""
        yield f"  {share:.1f} %{each}: {_some(names)}"
    without = Agreements[str, str](lambda why: why)
    for endpoint in endpoints:
        if not endpoint.share:
            without.add(_text(endpoint), endpoint.why)
    for why, names in without.groups():
        yield f"  none: {_some(names)}: {why}"


def _text(endpoint: EndpointShare) -> str:
    return f"{endpoint} {endpoint.pod}" if endpoint.pod else str(endpoint)


def _some(names: Sequence[str]) -> str:
    rest = len(names) - MOST_ENDPOINTS
    return ", ".join(names[:MOST_ENDPOINTS]) + (f" and {rest} more" if rest > 0 else "")
