"""`python -m tools.recording [--short] [FILE]`: writes the recording to a file, docs/terminal.svg without one.

With --short only the first command is recorded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nftproxy.lab import obstacle
from tools.recording.screen import PROMPT, Screen, svg
from tools.recording.stage import Stage, own_run_directory, stage

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "terminal.svg"
TYPING, READING = 1.2, 7.0  # seconds that a command and what it prints are seen


class Scene(NamedTuple):
    """A command, how often what it prints is seen anew, and whether that stays where nothing may move."""

    command: str
    times: int = 1
    stays: bool = False


SCENES = (
    Scene("status"),
    Scene("explain 203.0.113.7:443 --from outside", stays=True),
    Scene("top"),
)


def screens(node: Stage, scenes: Sequence[Scene]) -> Iterator[Screen]:
    """What is seen, one after the other."""
    node.until_it_runs(["status"])
    for scene in scenes:
        asked = f"{PROMPT}nftproxy {scene.command}"
        yield Screen((asked,), TYPING)
        for _ in range(scene.times):
            lines = node.run(scene.command.split())
            yield Screen((asked, *lines, PROMPT), READING / scene.times, scene.stays)


def main() -> int:
    """Record; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.recording", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=PICTURE)
    parser.add_argument("--short", action="store_true", help="record the first command only")
    options = parser.parse_args()
    if why := obstacle().replace("the lab", "a recording"):
        sys.stderr.write(f"{why}\n")
        return 2
    own_run_directory()
    with stage() as node:
        options.file.write_text(svg(list(screens(node, SCENES[:1] if options.short else SCENES))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
