"""A terminal's screens as an SVG that shows them in turn, again and again.

A browser that asks for less motion, or can't animate, shows the screen that is marked to stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2

COLUMNS = 110
CHARACTER, LINE = 7.3, 17.0  # px, at 12 px
MARGIN, BAR = 18.0, 30.0  # px: around the text, and the bar of the window
TEMPLATE = Path(__file__).with_name("screen.svg.j2")


class Screen(NamedTuple):
    """The terminal for some seconds: commands after their prompts, and their output."""

    lines: tuple[str, ...]
    seconds: float
    stays: bool = False


PROMPT = "# "


def svg(screens: Sequence[Screen]) -> str:
    """Return the screens as a single picture."""
    ends = list(itertools.accumulate(screen.seconds for screen in screens))
    frames = [
        {
            "lines": [_cut(line) for line in screen.lines],
            "start": 100 * (end - screen.seconds) / ends[-1],
            "end": 100 * end / ends[-1],
            "stays": screen.stays,
        }
        for screen, end in zip(screens, ends, strict=True)
    ]
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=True
    )
    return environment.from_string(TEMPLATE.read_text()).render(
        frames=frames,
        seconds=ends[-1],
        prompt=PROMPT,
        width=2 * MARGIN + COLUMNS * CHARACTER,
        height=BAR + 2 * MARGIN + LINE * max(len(screen.lines) for screen in screens),
        left=MARGIN,
        top=BAR + MARGIN + LINE / 2,
        line=LINE,
        bar=BAR,
    )


def _cut(line: str) -> str:
    plain = "".join(character if character.isprintable() else " " for character in line)
    return plain if len(plain) <= COLUMNS else f"{plain[: COLUMNS - 1]}…"
