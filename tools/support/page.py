"""The tables of docs/support.md, from the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tools.support.results import CHECKOUT, SupportResult
from tools.support.subjects import NEIGHBOURS, SUBJECTS

PAGE = CHECKOUT / "docs" / "support.md"
BEGIN = "<!-- written from support.json -->"
BAR, ESCAPED = "|", r"\|"

TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "kernels": ("Kernels, nft, architectures", ()),
    "kubernetes": ("Kubernetes", tuple(f"1.{minor}" for minor in range(28, 38))),
    "neighbours": ("Neighbours on a node", tuple(NEIGHBOURS.values())),
}
"""Headings, and the rows that a table has without a result too, by topic."""


def tables(results: Iterable[SupportResult]) -> str:
    """Return a table for each topic, with a row for each result and each expected row that has none."""
    listed = list(results)
    return "\n".join(line for topic in TOPICS for line in _table(topic, [it for it in listed if it.topic == topic]))


def _table(topic: str, results: list[SupportResult]) -> Iterator[str]:
    heading, expected = TOPICS[topic]
    yield from ("", f"## {heading}", "", "| on | tried | result, day |", "| --- | --- | --- |")
    order = list(SUBJECTS)
    rows = {each.row: each.details for each in results}
    shown: set[tuple[str, str]] = set()
    for row in dict.fromkeys([*expected, *rows]):
        found = [each for each in results if each.row == row]
        found.sort(key=lambda each: order.index(each.column) if each.column in order else len(order))
        if not found:
            yield f"| {row} | | not tried |"
        machine = _machine(found)
        for number, each in enumerate(found):
            name = (f"{row} ({rows[row]})" if rows[row] else row) + (f", in `{machine}`" if machine else "")
            command = each.command.removeprefix(f"{machine} ")
            tried = each.column if (each.column, command) in shown else f"{each.column}: `{command}`"
            shown.add((each.column, command))
            cells = ("" if number else name, tried, f"{each.result}, {each.date}")
            yield f"| {' | '.join(cell.replace(BAR, ESCAPED) for cell in cells)} |"


def _machine(results: list[SupportResult]) -> str:
    """Return the virtual machine of most commands of a row, for beside the row's name, or "" if a command has none."""
    machines = Counter("".join(each.command.rpartition(" -- ")[:2]).rstrip() for each in results)
    return "" if machines[""] or not machines else machines.most_common(1)[0][0]


def page(results: Iterable[SupportResult]) -> str:
    """Return the page with new tables."""
    return f"{PAGE.read_text().partition(BEGIN)[0]}{BEGIN}\n{tables(results)}\n"
