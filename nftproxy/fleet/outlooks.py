"""The answers of many nodes to a question of `nftproxy explain`, with equal answers merged.

An `Outlook` is an explanation without the facts in which all nodes differ: the node's name, and which endpoints are on
it.  Sources with the same outcome are a single line.  Masquerading is left out, which `explain` on a node has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from nftproxy.explanation.answer import Explanation
from nftproxy.explanation.brief import MOST_LINES, cut, of_place
from nftproxy.fleet.merged_rows import NodeOutcome
from nftproxy.fleet.node_answers import Agreement, Agreements, NodeAnswer, count_of, named

MOST_ANSWERS = 7
"""Answers in `MOST_LINES`, so that each has three lines beside its nodes."""


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

    def text(self, title: str, *, is_wide: bool = True) -> Iterator[str]:
        """Yield the lines for people: the answer of most nodes, and of the rest the lines that differ.

        If it isn't wide there are at most `MOST_LINES`, of which each answer has its part.
        """
        groups = [Agreement(look, nodes) for (look, _), nodes in self._groups.groups()]
        total = sum(len(each.nodes) for each in groups)
        differ = f", which give {len(groups)} different answers" if len(groups) > 1 else ""
        yield f"{title}, on {count_of(total)}{differ}"
        usual: set[tuple[str, str]] = set()
        part = (MOST_LINES - 3) // max(1, min(len(groups), MOST_ANSWERS)) - 2
        for number, (look, nodes) in enumerate(groups):
            if not is_wide and number == MOST_ANSWERS:
                yield from ("", f"... and {len(groups) - number} more answers: -o wide has them")
                return
            yield ""
            yield f"{_title(nodes, total)}:"
            lines = [f"  {line}" for line in _lines(look, usual)]
            yield from lines if is_wide or len(lines) <= part else cut([*lines, "  -o wide has the rest"], part)
            if number == 0:
                usual = {(each.heading, line) for each in look.paragraphs for line in each.lines}


def outlook(explanation: Explanation) -> Outlook:
    """Return the outcome in words."""
    notes = list(explanation.notes)
    if explanation.missing_chains:
        notes.append(f"kernel: no packet comes to {', '.join(explanation.missing_chains)}")
    about_all = [Paragraph("", tuple(notes))] if notes else []
    places = [Paragraph(f"{place}: {place.reached}", tuple(of_place(place))) for place in explanation.places]
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
