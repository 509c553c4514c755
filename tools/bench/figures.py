"""What was measured, by name: times in seconds, sizes in bytes, all else as counts and ratios.

    latency/10000/endpoint removed/p50
    start/40000

A file keeps them from run to run, so that rows that were measured one by one make one table.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path

Figures = dict[str, float]


def load(path: Path | None) -> Figures:
    """The figures in a file; none if there is no file."""
    return dict(json.loads(path.read_text())) if path and path.exists() else {}


def save(figures: Figures, path: Path) -> None:
    """Write figures to a file."""
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


def note(figures: Figures, name: str, values: Iterable[float]) -> None:
    """Note the distribution of a quantity: how many, the least, the median, the 99th percentile and the greatest."""
    ordered = sorted(values)
    figures[f"{name}/count"] = len(ordered)
    figures[f"{name}/min"] = ordered[0]
    figures[f"{name}/p50"] = statistics.median(ordered)
    figures[f"{name}/p99"] = ordered[math.ceil(0.99 * len(ordered)) - 1]
    figures[f"{name}/max"] = ordered[-1]
