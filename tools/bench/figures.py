"""The measured figures by name, such as "latency/10000/endpoint removed/p50" and "start/40000".

Times are in seconds, sizes in bytes, all else in counts and ratios.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

Figures = dict[str, float]
Unit = tuple[str, float]
MILLISECONDS, SECONDS, MEBIBYTES = ("ms", 1e3), ("s", 1.0), ("MB", 1 / (1 << 20))
COUNT = ("", 1.0)
LOOKING = 1.0  # seconds


def note(figures: Figures, name: str, values: Iterable[float]) -> None:
    """Note the distribution of a quantity: median, 99th percentile and maximum."""
    ordered = sorted(values)
    figures[f"{name}/p50"] = statistics.median(ordered)
    figures[f"{name}/p99"] = ordered[math.ceil(0.99 * len(ordered)) - 1]
    figures[f"{name}/max"] = ordered[-1]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, "" without rows."""
    lines = [f"| {' | '.join(row)} |\n" for row in rows]
    return "".join([f"| {' | '.join(header)} |\n", f"|{' --- |' * len(header)}\n", *lines]) if lines else ""


def show(value: float, unit: Unit) -> str:
    """A figure with its unit."""
    name, factor = unit
    scaled = value * factor
    digits = 0 if scaled == int(scaled) or scaled >= 100 else 1 if scaled >= 10 else 2
    return f"{scaled:,.{digits}f} {name}".rstrip()


def progress(text: str) -> None:
    """Print the current row on a terminal, and nothing into a pipe."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")


def load_by_others() -> float:
    """How much of this machine's processors other programs use, 0 to 1, while the agent and its API server idle."""
    before = _processor_time()
    time.sleep(LOOKING)
    idle, total = (after - earlier for after, earlier in zip(_processor_time(), before, strict=True))
    return 1 - idle / total


def _processor_time() -> tuple[int, int]:
    """Ticks of idling, and of everything, since the machine's start (proc(5), /proc/stat)."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)
