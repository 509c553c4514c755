"""The dashboard as a picture: each panel at its place, with its title, its unit, and a line for each series."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

COLUMNS, ROW, WIDTH = 24, 0.26, 13
"""Grafana's grid is 24 wide.  The height of its unit, and the picture's width, are in inches."""
UNITS = {"bytes": ("MiB", 2**-20), "percentunit": ("%", 100), "pps": ("packets/s", 1), "reqps": ("requests/s", 1)}
UNITS |= {"short": ("", 1), "ops": ("/s", 1), "s": ("s", 1)}
"""Grafana's names of units: the words, and the factor."""


class Line(NamedTuple):
    """A series: its name, and pairs of seconds since the start and values."""

    name: str
    points: Sequence[tuple[float, float]]


def draw(panels: Sequence[dict[str, Any]], answers: Mapping[str, Sequence[Line]], file: Path) -> None:
    """Write the panels of a dashboard, with the answers to their queries, as SVG."""
    import matplotlib as mpl  # of the extra `bench`, which only this needs

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "nftproxy", "svg.fonttype": "none", "font.size": 7}
    from matplotlib import pyplot

    rows = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in panels)
    figure = pyplot.figure(figsize=(WIDTH, rows * ROW))
    for panel in panels:
        x, y, width, height = (panel["gridPos"][name] for name in "xywh")
        if panel["type"] == "row":
            figure.text(0.01, 1 - (y + 0.8) / rows, panel["title"], weight="bold", size=10)
            continue
        word, factor = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
        axes = figure.add_axes(
            ((x + 1) / COLUMNS, 1 - (y + height - 2.2) / rows, (width - 1.4) / COLUMNS, (height - 3.2) / rows)
        )
        lines = [line for target in panel["targets"] for line in answers[target["expr"]]]
        for line in lines:
            axes.plot(*zip(*((at, value * factor) for at, value in line.points), strict=True), lw=1, label=line.name)
        axes.set_ylim(0, axes.get_ylim()[1] if any(value > 0 for line in lines for _, value in line.points) else 1)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter("{x:g} s")
        axes.locator_params(nbins=4)
        axes.grid(alpha=0.3)
        axes.set_title(panel["title"], loc="left", size=8)
        axes.set_title(word, loc="right", size=7)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=3, fontsize=6, frameon=False)
    with io.StringIO() as written:
        figure.savefig(written, format="svg", metadata={"Date": None})
        file.write_text(re.sub(r"(\.\d)\d{4,}", r"\1", written.getvalue()))
