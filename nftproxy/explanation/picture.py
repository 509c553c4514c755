"""An explanation as a picture: the paths of connections (packet_path.py), laid out on a sheet of SVG.

This module decides all positions, and the template (picture.svg.j2) writes them.  Stages are bands from top to bottom,
and each case is a column.  Widths of text are estimates, as the viewer chooses the fonts.  Text is cut and wrapped so
that it stays within its card even with a wide font.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jinja2

from nftproxy.explanation.answer import EndpointShare, ExplainedPlace, Explanation, Fate
from nftproxy.explanation.packet_path import AddedStage, Card, CardRow, PacketPath, paths, stages

MARGIN, GUTTER, COLUMN, GAP = 28, 176, 330, 22  # px
LINE, PAD = 17, 12  # px: from one line of text to the next, and around text
MONO, SANS = 7.3, 6.8  # px: the width of a character at 12 px in DejaVu, a wide font
MOST_PLACES, MOST_ENDPOINTS = 12, 10
"""The most places and endpoints of a picture: more are unreadable.  The text has all places."""
LABEL = 2 * LINE  # px: the name of a stage and its hooks, in two lines
BAR = 60  # px: a share of 100 %
LONGEST = 400
"""The longest sentence, in characters: a reason may list a thousand ranges."""


class Text(NamedTuple):
    """Words at a position.  `kind` is a class of the template's style."""

    x: float
    y: float
    kind: str
    words: str


class Box(NamedTuple):
    """A rectangle.  `kind` is a class of the template's style."""

    x: float
    y: float
    width: float
    height: float
    kind: str


class Line(NamedTuple):
    """A line.  `kind` is a class of the template's style."""

    d: str
    kind: str


class Picture(NamedTuple):
    """Everything on the sheet, and its size in px.  Later shapes cover earlier shapes."""

    title: str
    width: float
    height: float
    boxes: list[Box]
    paths: list[Line]
    cards: list[Box]
    texts: list[Text]


def svg(explanation: Explanation, template: str, added: Sequence[AddedStage]) -> str:
    """The picture of an explanation, as SVG.

    Args:
        explanation: the answer.
        template: the text of picture.svg.j2.
        added: the stages that extensions add.
    """
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=True
    )
    return environment.from_string(template).render(picture(explanation, added)._asdict())


def picture(explanation: Explanation, added: Sequence[AddedStage]) -> Picture:
    """Lay out an explanation."""
    title = _cut(explanation.title, LONGEST)
    sheet = Picture(title, 0, 0, [], [], [], [])
    drawn = explanation.places[:MOST_PLACES]
    columns = max((len(place.cases) for place in drawn), default=1)
    width = max(2 * MARGIN + GUTTER + columns * (COLUMN + GAP), 2 * MARGIN + (len(title) + 20) * MONO)
    y = MARGIN + 14.0
    sheet.texts.append(Text(MARGIN, y, "title", f"nftproxy explain: {title}"))
    left_out = len(explanation.places) - len(drawn)
    notes = [*explanation.notes, *([f"{left_out} more places are in the text"] if left_out else [])]
    for line in (line for note in notes for line in _wrapped(note, width - 2 * MARGIN)):
        y += LINE
        sheet.texts.append(Text(MARGIN, y, "dim", line))
    for place in drawn:
        y = _draw_place(sheet, explanation, place, added, y + 26, width)
    return sheet._replace(width=width, height=y + MARGIN)


def _draw_place(
    sheet: Picture, explanation: Explanation, place: ExplainedPlace, added: Sequence[AddedStage], y: float, width: float
) -> float:
    """Draw a place below `y`: its heading, a band for each stage, the ends.  Return the lower end."""
    y = _draw_heading(sheet, place, y, width)
    made = paths(place, added)
    if not made:
        return y
    lefts = [MARGIN + GUTTER + number * (COLUMN + GAP) for number in range(len(made))]
    y = _draw_sources(sheet, made, lefts, y)
    top, open_at = y, [y for _ in made]
    for stage in stages(added):
        cards = [path.cards.get(stage) for path in made]
        if not any(cards):
            continue
        height = max(LABEL, *(_card_height(card) for card in cards if card)) + 2 * PAD
        _draw_band(sheet, (stage.does, stage.hooks(explanation.base_chains)), y, height, width)
        for number, card in enumerate(cards):
            if card:
                at = y + height / 2 - _card_height(card) / 2
                open_at[number] = at + _draw_card(sheet, card, lefts[number], at)
        y += height
    bottoms = []
    for number, path in enumerate(made):
        at = (open_at[number] if path.is_stopped else y) + PAD
        sheet.paths.append(Line(f"M{lefts[number] + PAD / 2:.1f} {top:.1f}V{at:.1f}", "way"))
        bottoms.append(_draw_end(sheet, path, lefts[number], at))
    return max(y, *bottoms)


def _draw_heading(sheet: Picture, place: ExplainedPlace, y: float, width: float) -> float:
    y += 18
    sheet.texts.append(Text(MARGIN, y, "place", str(place)))
    words = " · ".join(filter(None, [place.reached, place.policy]))
    losers = [f"lost by {loser.owner}: {loser.why}" for loser in place.losers]
    for kind, line in [("words", words), *(("dim", each) for each in (*losers, *place.notes))]:
        for part in _wrapped(line, width - 2 * MARGIN):
            y += LINE
            sheet.texts.append(Text(MARGIN, y, kind, part))
    return y + 14


def _draw_sources(sheet: Picture, made: Sequence[PacketPath], lefts: Sequence[float], y: float) -> float:
    """Draw the sources, with a rounded box for each path."""
    sources = [[_cut(line, int((COLUMN - 2 * PAD) / SANS)) for line in path.case.clients] for path in made]
    height = max(map(len, sources)) * LINE + PAD
    sheet.texts.append(Text(MARGIN, y + LINE, "stage", "from"))
    for x, lines in zip(lefts, sources, strict=True):
        sheet.cards.append(Box(x, y + height - len(lines) * LINE - PAD, COLUMN, len(lines) * LINE + PAD, "source"))
        top = y + height - len(lines) * LINE - PAD
        for number, line in enumerate(lines):
            sheet.texts.append(Text(x + PAD, top + PAD + 6 + number * LINE, "who", line))
    return y + height


def _draw_band(sheet: Picture, label: tuple[str, str], y: float, height: float, width: float) -> None:
    kind = "band" if len(sheet.boxes) % 2 else "band other"
    sheet.boxes.append(Box(MARGIN - 10, y, width - 2 * MARGIN + 20, height, kind))
    top = y + height / 2 - LABEL / 2 + LINE - 4
    sheet.texts.append(Text(MARGIN, top, "stage", label[0]))
    sheet.texts.append(Text(MARGIN, top + LINE, "dim", label[1]))


def _lines(card: Card) -> list[tuple[str, str, float]]:
    """The lines of a card: class, words, and how far they are indented."""
    if card.is_quiet:
        return [("quiet", part, 6) for row in card.rows for part in _wrapped(row.words, COLUMN - 2 * PAD)]
    head = [("chain", f"chain {_cut(card.chain, 34)}", 0.0)] if card.chain else []
    return [*head, *(line for row in card.rows for line in _row_lines(row))]


def _row_lines(row: CardRow) -> Iterator[tuple[str, str, float]]:
    """A row: on one line if it fits, else its words below its name."""
    room = COLUMN - 2 * PAD
    name = _cut(row.name, int(room / MONO))
    offset = len(name) * MONO + 10 if name else 0.0
    if name:
        yield "set", name, 0
    if name and offset + len(row.words) * SANS <= room:
        yield "answer", _plain(row.words), offset
        return
    yield from (("words", part, 12 if name else 0) for part in _wrapped(row.words, room - 12))


def _card_height(card: Card) -> float:
    count = sum(kind != "answer" for kind, _, _ in _lines(card))
    return count * LINE + (0 if card.is_quiet else PAD)


def _draw_card(sheet: Picture, card: Card, x: float, y: float) -> float:
    """Draw a card and return its height."""
    height = _card_height(card)
    if not card.is_quiet:
        sheet.cards.append(Box(x, y, COLUMN, height, "card end" if card.is_end else "card"))
    else:
        sheet.cards.append(Box(x + PAD / 2 - 4, y + height / 2 - 4, 8, 8, "dot"))
    line = y + (0 if card.is_quiet else PAD / 2) - 4
    for kind, words, indent in _lines(card):
        line += 0 if kind == "answer" else LINE
        sheet.texts.append(Text(x + PAD + indent, line, "words" if kind == "answer" else kind, words))
    return height


def _draw_end(sheet: Picture, path: PacketPath, x: float, y: float) -> float:
    """Draw the endpoints of a path, or its outcome without endpoints.  Return the lower end."""
    if not path.leads_to_endpoints:
        kind = "good" if path.case.fate in (Fate.PASSED, Fate.NODE) else "bad"
        sheet.cards.append(Box(x, y, COLUMN, LINE + PAD, kind))
        sheet.texts.append(Text(x + PAD, y + PAD + 6, "fate", path.case.outcome))
        return y + LINE + PAD
    shown = path.case.chosen_first[:MOST_ENDPOINTS]
    rows = [_endpoint_lines(endpoint) for endpoint in shown]
    more = len(path.case.endpoints) - len(shown)
    height = (sum(map(len, rows)) + bool(more)) * LINE + PAD
    sheet.cards.append(Box(x, y, COLUMN, height, "card goal"))
    line = y + PAD / 2 - 4
    for endpoint, lines in zip(shown, rows, strict=True):
        _draw_share(sheet, endpoint, x, line + LINE)
        for kind, words in lines:
            line += LINE
            sheet.texts.append(Text(x + PAD, line, kind, words))
    if more:
        sheet.texts.append(Text(x + PAD, line + LINE, "dim", f"and {more} more"))
    return y + height


def _draw_share(sheet: Picture, endpoint: EndpointShare, x: float, y: float) -> None:
    right = x + COLUMN - PAD
    if endpoint.share:
        sheet.cards.append(Box(right - BAR, y - 9, BAR, 9, "bar"))
        sheet.cards.append(Box(right - BAR, y - 9, BAR * endpoint.share / 100, 9, "share"))
        sheet.texts.append(Text(right - BAR - 6, y, "percent", f"{endpoint.share:.1f} %"))


def _endpoint_lines(endpoint: EndpointShare) -> list[tuple[str, str]]:
    room = COLUMN - 2 * PAD - (BAR + 56 if endpoint.share else 0)
    place = _cut(str(endpoint), int(room / MONO))
    why = ", ".join(filter(None, [endpoint.pod, endpoint.why, "on this node" if endpoint.is_local else ""]))
    kind = "set" if endpoint.share else "unused"
    return [(kind, place), *(("dim", part) for part in _wrapped(why, COLUMN - 2 * PAD))]


def _wrapped(words: str, room: float) -> list[str]:
    """Wrap words into lines of at most `room` px."""
    return textwrap.wrap(_cut(words, LONGEST), max(10, int(room / SANS))) or [""]


def _cut(words: str, most: int) -> str:
    """Cut words to at most `most` printable characters."""
    plain = _plain(words)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def _plain(words: str) -> str:
    """Text that may come from a cluster, without characters that XML forbids or that change the line's direction."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words)
