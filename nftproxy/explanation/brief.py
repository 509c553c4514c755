"""An explanation in few lines: sources with the same outcome, and endpoints with the same share, are a line.

`explain` prints the whole text if that has at most `MOST_LINES` lines, else the first of these forms that has: with
shares, with outcomes, with a line for each place.  A place with a fault comes first in the last form, which is cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from nftproxy.explanation.answer import Case, EndpointShare, ExplainedPlace, Explanation
from nftproxy.explanation.answering import HAIRPIN
from nftproxy.explanation.question import SourceKind
from nftproxy.model.texts import printable

K = TypeVar("K")

MOST_LINES = 40
"""Lines that a terminal shows at once, or nearly."""
MOST_ENDPOINTS = 10
"""Endpoints of a share that a line names."""
HINT = "-o wide has every source, list and endpoint"
"""The last line of a text that isn't whole."""


def brief(explanation: Explanation) -> list[str]:
    """Return the text for people in at most `MOST_LINES` lines."""
    whole = str(explanation).splitlines()
    if len(whole) <= MOST_LINES:
        return whole
    for form in (_with_shares, _with_outcomes):
        lines = [*_head(explanation), *itertools.chain.from_iterable(map(form, explanation.places)), "", HINT]
        if len(lines) <= MOST_LINES:
            return list(map(printable, lines))
    lines = [*_head(explanation), *map(_line, sorted(explanation.places, key=_is_sound))]
    return list(map(printable, cut([*lines, HINT], MOST_LINES)))


def cut(lines: Sequence[str], most: int) -> list[str]:
    """Return the first lines, with the number of the rest before the last line."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 2], f"... and {len(lines) - most + 1} more lines", lines[-1]]


def _head(explanation: Explanation) -> Iterator[str]:
    yield explanation.title
    yield from (f"  {note}" for note in explanation.notes)
    if explanation.missing_chains:
        yield f"  kernel: no packet comes to {', '.join(explanation.missing_chains)}"
    checked = [each for place in explanation.places for each in place.expected if each.is_held is not None]
    if checked and all(each.is_held for each in checked):
        yield f"  kernel: holds exactly the {len(checked)} elements that it must"


def _with_shares(place: ExplainedPlace) -> Iterator[str]:
    yield ""
    yield f"{place}: {place.reached}"
    yield from (f"  {line}" for line in of_place(place))


def _with_outcomes(place: ExplainedPlace) -> Iterator[str]:
    yield from (line for line in _with_shares(place) if not line.startswith("    "))


def _line(place: ExplainedPlace) -> str:
    outcomes = "; ".join(line for line in of_place(place) if not line.startswith(("  ", "note: ")))
    return f"{place}: {place.reached}: {outcomes}"


def _is_sound(place: ExplainedPlace) -> bool:
    return not place.losers and not _wrong(place) and any(each.endpoints for each in place.cases)


def _wrong(place: ExplainedPlace) -> list[str]:
    """The containers of wrong elements."""
    return [each.container for each in place.expected if each.is_held is False]


def of_place(place: ExplainedPlace) -> Iterator[str]:
    """Yield the outcome of connections to a place, without masquerading.  Shares are indented by two blanks."""
    yield from (f"lost by {loser.owner}: {loser.code}: {loser.why}" for loser in place.losers)
    yield from (f"note: {note}" for note in place.notes if note != HAIRPIN)
    for (outcome, why, lines), cases in itertools.groupby(place.cases, _outcome):
        yield f"from {_sources(cases)}: {outcome}: {why}"
        yield from lines
    if wrong := _wrong(place):
        count = "1 element is" if len(wrong) == 1 else f"{len(wrong)} elements are"
        yield f"kernel: {count} missing or wrong, in {', '.join(dict.fromkeys(wrong))}"


def _sources(cases: Iterable[Case]) -> str:
    sources = dict.fromkeys(source for case in cases for source in case.clients)
    return "anywhere" if len(sources) >= len(SourceKind) else ", ".join(sources)


def _outcome(case: Case) -> tuple[str, str, tuple[str, ...]]:
    """Return the outcome, its reason, and a line for each share and for each reason of endpoints without a share."""
    return case.outcome, case.why, tuple(_shares(case.endpoints))


def _shares(endpoints: Sequence[EndpointShare]) -> Iterator[str]:
    by_share = _grouped((each for each in endpoints if each.share), lambda each: each.share)
    for share, names in sorted(by_share.items(), reverse=True):
        yield f"  {share:.1f} %{' each' if len(names) > 1 else ''}: {_some(names)}"
    without = _grouped((each for each in endpoints if not each.share), lambda each: each.why)
    for why, names in sorted(without.items(), key=lambda item: (-len(item[1]), item[1])):
        yield f"  none: {_some(names)}: {why}"


def _grouped(endpoints: Iterable[EndpointShare], key_of: Callable[[EndpointShare], K]) -> dict[K, list[str]]:
    """The texts of endpoints by a key, sorted."""
    found: dict[K, set[str]] = {}
    for each in endpoints:
        found.setdefault(key_of(each), set()).add(_text(each))
    return {key: sorted(texts) for key, texts in found.items()}


def _text(endpoint: EndpointShare) -> str:
    return f"{endpoint} {endpoint.pod}" if endpoint.pod else str(endpoint)


def _some(names: Sequence[str]) -> str:
    rest = len(names) - MOST_ENDPOINTS
    return ", ".join(names[:MOST_ENDPOINTS]) + (f" and {rest} more" if rest > 0 else "")
