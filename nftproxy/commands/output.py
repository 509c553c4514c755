"""The output of commands: tables as kubectl prints them, times for people, JSON for programs."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence

import click
import msgspec

from nftproxy.model.texts import printable

GAP = 3
"""Blanks between two columns, as in kubectl."""

WIDEST = 60
"""Characters to which a column is padded.  A longer cell moves the rest of its own row only."""

MOST_ITEMS = 3
"""Items of a list in a cell that isn't wide, as in kubectl (pkg/printers/internalversion, formatEndpoints)."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    cells = [list(header), *([printable(cell) or "<none>" for cell in row] for row in rows)]
    widths = [min(max(map(len, column)), WIDEST) for column in zip(*cells, strict=True)]
    for row in cells:
        yield (" " * GAP).join(map(str.ljust, row, widths)).rstrip()


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


def items(texts: Sequence[str], *, is_wide: bool) -> str:
    """Return a list as kubectl writes it, cut after `MOST_ITEMS` unless it is wide: "a,b,c + 2 more..."."""
    shown = texts if is_wide else texts[:MOST_ITEMS]
    more = len(texts) - len(shown)
    return ",".join(shown) + (f" + {more} more..." if more else "")


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
