"""`python -m tools.recording [--short] [FILE]`: writes the recording to a file, docs/terminal.svg without one.

With --short only the first command is recorded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nftproxy_conformance.lab import obstacle

from tools.recording.screen import PROMPT, Screen, svg
from tools.recording.stage import Stage, own_run_directory, stage

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "terminal.svg"
TYPING, READING = 1.2, 7.0  # seconds that a command and its output are visible


COMMANDS = ("status", "explain 203.0.113.7:443 --from outside", "top")
STILL = COMMANDS[1]
"""The command that is shown without motion."""


def screens(node: Stage, commands: Sequence[str]) -> Iterator[Screen]:
    """Yield two screens for each command: the command alone, and with its output."""
    node.until_it_runs(["status"])
    for command in commands:
        asked = f"{PROMPT}nftproxy {command}"
        yield Screen((asked,), TYPING)
        yield Screen((asked, *node.run(command.split()), PROMPT), READING, command == STILL)


def main() -> int:
    """Record, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.recording", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=PICTURE)
    parser.add_argument("--short", action="store_true", help="record the first command only")
    options = parser.parse_args()
    if why := obstacle():
        sys.stderr.write(f"{why}\n")
        return 2
    own_run_directory()
    with stage() as node:
        options.file.write_text(svg(list(screens(node, COMMANDS[:1] if options.short else COMMANDS))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
