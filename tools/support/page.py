"""The tables of docs/support.md, from the results."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from tools.support.results import CHECKOUT, SupportResult
from tools.support.subjects import SUBJECTS

PAGE = CHECKOUT / "docs" / "support.md"
BEGIN = "<!-- written from support.json -->"
BAR, ESCAPED = "|", r"\|"

VERSIONS = tuple(f"1.{minor}" for minor in range(28, 38))
EXPECTED = {"kubernetes": VERSIONS}
"""What a table names without a result, too, by topic."""


def tables(results: Iterable[SupportResult]) -> str:
    """Return a table for each topic, with every result and each expected row that has none."""
    listed = list(results)
    return "\n".join(
        line for topic in TABLES for line in _table(topic, [each for each in listed if each.topic == topic])
    )


def _table(topic: str, results: list[SupportResult]) -> Iterator[str]:
    heading, columns, rows = TABLES[topic]
    yield from ("", f"## {heading}", "", _row(columns), _row(["---"] * len(columns)))
    yield from map(_row, rows(results))
    if missing := [row for row in EXPECTED.get(topic, ()) if row not in {each.row for each in results}]:
        yield _row(["not tried", ", ".join(missing), ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace(BAR, ESCAPED) for cell in cells)} |"


def _by_row(results: list[SupportResult]) -> Iterator[Sequence[str]]:
    """Yield a line for each machine: its name, the results of all trials, and their days."""
    order = list(SUBJECTS)
    for row in dict.fromkeys(each.row for each in results):
        found = [each for each in results if each.row == row]
        details = found[-1].details
        found.sort(key=lambda each: order.index(each.column) if each.column in order else len(order))
        machine = _machine(found)
        name = (f"{row} ({details})" if details else row) + (f", in `{machine}`" if machine else "")
        yield name, "; ".join(f"{each.column}: {each.result}" for each in found), _days(found)


def _machine(results: list[SupportResult]) -> str:
    """Return the way to the machine of most commands of a row, as in `python -m tools.vm --suite sid`, or ""."""
    machines = Counter(each.command.rpartition(" python -m tools.support ")[0] for each in results)
    return machines.most_common(1)[0][0].removesuffix(" --")


def _by_trial(results: list[SupportResult]) -> Iterator[Sequence[str]]:
    """Yield a line for the versions of all rows, and for each trial its name and first command, results and days."""
    if details := {each.row: each.details for each in results if each.details}:
        yield "versions", _merged([(row, text.partition(", ")) for row, text in details.items()]), ""
    for column in dict.fromkeys(each.column for each in results):
        found = [each for each in results if each.column == column]
        yield f"{column}: {_command(found[0])}", _said(grouped((each.row, each.result) for each in found)), _days(found)


def _command(result: SupportResult) -> str:
    """Return the command of a result, with the commit that has it if the checkout has it no more."""
    return f"`{result.commit}: {result.command}`" if result.commit else f"`{result.command}`"


def _said(groups: list[tuple[str, list[str]]]) -> str:
    """Return results with their rows.  Results that differ in one number share their words."""
    texts = [result.split() for result, _ in groups]
    names = [_names(rows) for _, rows in groups]
    if len(texts) > 1 and len({len(words) for words in texts}) == 1:
        (at, *more) = [at for at, words in enumerate(zip(*texts, strict=True)) if len(set(words)) > 1]
        numbers = [words[at] for words in texts]
        if not more and all(re.fullmatch(r"[\d,]+", number) for number in numbers):
            told = ", ".join(f"{name}: {number}" for name, number in zip(names, numbers, strict=True))
            return " ".join([*texts[0][:at], f"({told})", *texts[0][at + 1 :]])
    return "; ".join(f"{name}: {' '.join(words)}" for name, words in zip(names, texts, strict=True))


def _merged(details: list[tuple[str, tuple[str, str, str]]]) -> str:
    """Return versions such as v1.28.3 by what else was installed beside them."""
    groups = grouped((version, rest) for _, (version, _, rest) in details)
    return "; ".join(f"{', '.join(versions)}: {rest}" if rest else ", ".join(versions) for rest, versions in groups)


def grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Return each second text with all first texts that have it."""
    groups = defaultdict[str, list[str]](list)
    for first, second in pairs:
        groups[second].append(first)
    return list(groups.items())


def _names(rows: list[str]) -> str:
    """Return the names of rows, with "to" in place of neighbouring versions."""
    at = [VERSIONS.index(row) for row in rows if row in VERSIONS]
    if len(at) == len(rows) > 1 and at == list(range(at[0], at[-1] + 1)):
        return f"{rows[0]} to {rows[-1]}"
    return ", ".join(rows)


def _days(results: list[SupportResult]) -> str:
    """Return the first and the last day of results."""
    days = sorted({each.date for each in results})
    return " to ".join(dict.fromkeys([days[0], days[-1]]))


Lines = Callable[[list[SupportResult]], Iterator[Sequence[str]]]
TABLES: dict[str, tuple[str, Sequence[str], Lines]] = {
    "kernels": ("Kernels, nft, architectures", ("on", "results", "days"), _by_row),
    "kubernetes": ("Kubernetes", ("tried", "results", "days"), _by_trial),
    "neighbours": ("Neighbours on a node", ("tried", "results", "days"), _by_trial),
}
"""Headings, columns, and the function that makes the lines, by topic."""


def page(results: Iterable[SupportResult]) -> str:
    """Return the page with new tables."""
    return f"{PAGE.read_text().partition(BEGIN)[0]}{BEGIN}\n{tables(results)}\n"
