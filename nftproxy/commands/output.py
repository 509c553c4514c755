"""The output of commands: tables as kubectl prints them, times for people, JSON for programs."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator, Sequence

import click
import msgspec

from nftproxy.model.texts import printable

GAP = 3
"""Blanks between two columns, as in kubectl."""

WIDEST = 60
"""Characters to which a column is padded.  A longer cell moves the rest of its own row only."""

NARROW = 120
"""Characters of a line of Services, unless -o wide asks for more."""
NARROW_GAP = 2
"""Blanks between two columns of a table that doesn't fit otherwise."""
LIST, NAME, ADDRESS = 18, 12, 13
"""The least characters to which columns are cut in turn: an IPv4 address with "+10", a name, a part of an address."""
CUT = "..."
"""The end of a cell that is cut."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]], gap: int = GAP) -> Iterator[str]:
    """Yield the lines of a table."""
    cells = [list(header), *([printable(cell) or "<none>" for cell in row] for row in rows)]
    widths = [min(max(map(len, column)), WIDEST) for column in zip(*cells, strict=True)]
    for row in cells:
        yield (" " * gap).join(map(str.ljust, row, widths)).rstrip()


def fitted(header: Sequence[str], rows: Iterable[Sequence[str]], lists: Collection[str]) -> Iterator[str]:
    """Yield the lines of a table, at most `NARROW` characters wide unless the names of its columns are wider.

    First `lists` are cut, then the blanks between columns, then the other columns, then `lists` again.

    Args:
        header: the columns' names.
        rows: the cells.
        lists: the columns whose cells are lists of texts, with a comma between two.
    """
    cells = [[printable(cell) or "<none>" for cell in row] for row in rows]
    of_lists = [number for number, name in enumerate(header) if name in lists]
    others = [number for number, name in enumerate(header) if name not in lists]
    for columns, least, gap in ((of_lists, LIST, GAP), (others, NAME, NARROW_GAP), (of_lists, ADDRESS, NARROW_GAP)):
        widths = _narrowed(_widths(header, cells), columns, [max(least, len(name)) for name in header], gap)
        cells = [[_cut(cell, width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    has_place = _length(_widths(header, cells), GAP) <= NARROW
    yield from table(header, cells, GAP if has_place else NARROW_GAP)


def _widths(header: Sequence[str], cells: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(header, *cells, strict=True)]


def _length(widths: Sequence[int], gap: int) -> int:
    """The characters of a line."""
    return sum(widths) + gap * (len(widths) - 1)


def _narrowed(widths: Sequence[int], columns: Sequence[int], least: Sequence[int], gap: int) -> list[int]:
    """Return widths of which the largest of these columns are lowered, until a line fits or each has its least."""
    lowered = list(widths)
    for _ in range(_length(widths, gap) - NARROW):
        wide = [each for each in columns if lowered[each] > least[each]]
        if wide:
            lowered[max(wide, key=lowered.__getitem__)] -= 1
    return lowered


def _cut(cell: str, width: int) -> str:
    """Return a cell in this width: the first items of a list and the number of the rest, or the first characters."""
    if len(cell) <= width:
        return cell
    texts = cell.split(",")
    for count in range(len(texts) - 1, 0, -1):
        if len(short := f"{','.join(texts[:count])}+{len(texts) - count}") <= width:
            return short
    return f"{cell[: width - len(CUT)]}{CUT}"


def age(seconds: float) -> str:
    """Return a time span as kubectl writes it: 45s, 3m12s, 5h7m, 12d, 2y30d (apimachinery, HumanDuration)."""
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3_600, whole // 86_400
    if whole < -1:
        return "<invalid>"
    if whole < 120:
        return f"{max(0, whole)}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    return _two(days // 365, "y", days % 365, "d") if days < 8 * 365 else f"{days // 365}y"


def _two(much: int, unit: str, rest: int, smaller: str) -> str:
    return f"{much}{unit}{rest}{smaller}" if rest else f"{much}{unit}"


def duration(seconds: float) -> str:
    """Return a duration as text: 2.3 ms, 1.25 s."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


STRUCTURED = ("json", "yaml")
"""The values of --output for programs."""
TIMES = frozenset("asOf at created lastEvent lastHeard lastUpdated now since started".split())
"""Fields of the agent's answers that are seconds since the epoch.  Other numbers of seconds are durations."""


def json_text(value: object) -> str:
    """Return a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def structured(value: object, output: str) -> str:
    """Return a value as JSON, or as YAML if `output` is "yaml"."""
    if output != "yaml":
        return json_text(value)
    from nftproxy.sources.documents import to_yaml  # with YAML, which takes 30 ms to import

    return to_yaml([msgspec.json.decode(msgspec.json.encode(value))]).rstrip()


def with_times(value: object) -> object:
    """Return a value as JSON has it, with each field of `TIMES` as RFC 3339 text."""
    return _timed(msgspec.json.decode(msgspec.json.encode(value)))


def _timed(value: object) -> object:
    match value:
        case list():
            return [_timed(each) for each in value]
        case dict():
            return {
                name: rfc3339(each) if name in TIMES and isinstance(each, int | float) else _timed(each)
                for name, each in value.items()
            }
    return value


def rfc3339(seconds: float) -> str:
    """Return a time as RFC 3339, in UTC.  It has milliseconds, unless it is an integer."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    timespec = "seconds" if isinstance(seconds, int) else "milliseconds"
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def painted(line: str, colour: str) -> str:
    """Return a line in a colour, "" for none.  `click.echo` leaves it out unless a terminal shows it."""
    return click.style(line, fg=colour) if colour else line
