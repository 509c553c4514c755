"""The output of commands: tables as kubectl prints them, times for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from nftproxy.model.texts import printable

GAP = 3
"""Blanks between two columns, as in kubectl."""

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    cells = [list(header), *([printable(cell) or "<none>" for cell in row] for row in rows)]
    widths = [max(map(len, column)) + GAP for column in zip(*cells, strict=True)]
    for row in cells:
        yield "".join(map(str.ljust, row, widths)).rstrip()


def age(seconds: float) -> str:
    """Return a time span as kubectl shows ages: 45s, 3m12s, 5h, 12d."""
    whole = max(0, int(seconds))
    for size, unit in _UNITS:
        if whole >= 2 * size or size == 1:
            rest = whole % size if size == 60 and whole < 600 else 0
            return f"{whole // size}{unit}" + (f"{rest}s" if rest else "")
    raise AssertionError("the last unit fits any span")


def duration(seconds: float) -> str:
    """Return a duration as text: 2.3 ms, 1.25 s."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def json_text(value: object) -> str:
    """Return a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
