"""A terminal's screens as one SVG that shows them one after the other, again and again.

Whoever asks for less motion, and whatever can't move, shows the screen that is marked to stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2

COLUMNS = 110
CHARACTER, LINE = 7.3, 17.0  # px, at 12 px
MARGIN, BAR = 18.0, 30.0  # px: around the text, and the bar of the window
TEMPLATE = Path(__file__).with_name("screen.svg.j2")


class Screen(NamedTuple):
    """What stands in the terminal for some seconds: commands after their prompts, and lines that were printed."""

    lines: tuple[str, ...]
    seconds: float
    stays: bool = False


class Frame(NamedTuple):
    """A screen in the picture: its lines, and when it is seen, in per cent of the whole."""

    lines: tuple[str, ...]
    start: float
    end: float
    stays: bool


PROMPT = "# "


def svg(screens: Sequence[Screen]) -> str:
    """The screens as one picture."""
    whole = sum(screen.seconds for screen in screens)
    frames: list[Frame] = []
    begins = 0.0
    for screen in screens:
        ends = begins + screen.seconds
        lines = tuple(_cut(line) for line in screen.lines)
        frames.append(Frame(lines, 100 * begins / whole, 100 * ends / whole, screen.stays))
        begins = ends
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=True
    )
    return environment.from_string(TEMPLATE.read_text()).render(
        frames=frames,
        seconds=whole,
        prompt=PROMPT,
        width=2 * MARGIN + COLUMNS * CHARACTER,
        height=BAR + 2 * MARGIN + LINE * max(len(frame.lines) for frame in frames),
        left=MARGIN,
        top=BAR + MARGIN + LINE / 2,
        line=LINE,
        bar=BAR,
    )


def _cut(line: str) -> str:
    plain = "".join(character if character.isprintable() else " " for character in line)
    return plain if len(plain) <= COLUMNS else f"{plain[: COLUMNS - 1]}…"
