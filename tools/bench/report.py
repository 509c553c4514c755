"""The figures as Markdown tables, which `--write` puts into docs/performance.md, between markers."""

from __future__ import annotations

import os
import platform
import re
import statistics
from pathlib import Path

from nftproxy.kernel.libnftables import Kernel
from tests.support.processes import CHECKOUT
from tools.bench import changes
from tools.bench.cluster import ALL_SIZES
from tools.bench.figures import (
    COUNT,
    MEBIBYTES,
    MILLISECONDS,
    SECONDS,
    Figures,
    Unit,
    markdown,
    show,
)
from tools.figures import with_texts

DOCUMENT = CHECKOUT / "docs" / "performance.md"


def sections(figures: Figures) -> dict[str, str]:
    """The text between each pair of markers that something was measured for, by the markers' name."""
    found = {"growth": _growth(figures), "loads": _loads(figures)}
    return {"machine": machine(figures)} | {name: text for name, text in found.items() if text}


def machine(figures: Figures) -> str:
    """The machine of the figures, and how much of it other programs used before each of them."""
    shares = [share for name, share in figures.items() if name.startswith("others/")]
    busy = (
        f"Other programs kept {statistics.median(shares):.0%} of it busy, at most {max(shares):.0%}." if shares else ""
    )
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"Linux {platform.release().split('-')[0]} on {os.cpu_count()} CPUs ({cpu[1] if cpu else platform.machine()}), "
        f"{memory:.0f} GB, libnftables {Kernel().version()}, Python {platform.python_version()}.\n{busy}\n"
    )


def _growth(figures: Figures) -> str:
    """The costs of a change, a cold start and memory, by the size of the cluster."""
    header = ("Services x endpoints", "a change, p50; p99", "CPU of a change", "cold start", "memory: settled; peak")
    rows = [
        (
            str(size),
            _cells(
                figures, MILLISECONDS, *(f"latency/{size.services}/{changes.ALL}/{part}" for part in ("p50", "p99"))
            ),
            _cells(figures, MILLISECONDS, f"cpu/{size.services}/{changes.REPLACED}"),
            _cells(figures, SECONDS, f"start/{size.services}"),
            _cells(figures, MEBIBYTES, *(f"memory/{size.services}/{part}" for part in ("settled", "peak"))),
        )
        for size in ALL_SIZES
    ]
    return markdown(header, [row for row in rows if any(row[1:])])


LOADS: tuple[tuple[str, tuple[tuple[str, Unit], ...]], ...] = (
    ("200 changes a second for a minute: cores; p99", (("sustained/cores", COUNT), ("sustained/p99", MILLISECONDS))),
    (
        "a restart over existing rules: until complete; connections lost; of",
        (("restart/10000", SECONDS), ("restart/10000/lost", COUNT), ("restart/10000/connections", COUNT)),
    ),
)
"""The rows of other loads on 10,000 Services x 10 endpoints: their text, and their figures with the unit of each."""


def _loads(figures: Figures) -> str:
    """The rows of `LOADS` that were measured in full."""
    rows = [
        (text, "; ".join(show(figures[name], unit) for name, unit in cells))
        for text, cells in LOADS
        if all(name in figures for name, _ in cells)
    ]
    return markdown(("10,000 x 10", "measured"), rows)


def _cells(figures: Figures, unit: Unit, *names: str) -> str:
    """The measured figures in a cell."""
    return "; ".join(show(figures[name], unit) for name in names if name in figures)


def write(figures: Figures) -> None:
    """Put the tables between their markers in the document.  A table that wasn't measured stays."""
    DOCUMENT.write_text(with_texts(DOCUMENT.read_text(), sections(figures)))
