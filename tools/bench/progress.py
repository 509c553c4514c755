"""What is going on, and how much of the machine there is for it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

LOOKING = 1.0  # seconds


def tell(text: str) -> None:
    """Say what is going on, on a terminal; a pipe is left quiet."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")


def others() -> float:
    """How much of this machine's processors others use, 0 to 1; the agent and its API server do nothing now."""
    before = _processor_time()
    time.sleep(LOOKING)
    idle, total = (after - earlier for after, earlier in zip(_processor_time(), before, strict=True))
    return 1 - idle / total


def _processor_time() -> tuple[int, int]:
    """Ticks of idling, and of everything, since the machine's start (proc(5), /proc/stat)."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)
