"""The results of runs, as docs/support.json has them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

CHECKOUT = Path(__file__).resolve().parents[2]
VARIABLE = "NFTPROXY_RESULTS"
"""The environment variable that names another file than docs/support.json.  A virtual machine has its own."""
FILE = Path(os.environ.get(VARIABLE, CHECKOUT / "docs" / "support.json"))


class SupportResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a run, as docs/support.json has it.

    Attributes:
        topic: the table of docs/support.md.
        row: what it ran on, such as a kernel's version.
        column: what was tried.
        command: repeats it.
        date: the day, as 2026-11-23.
        result: what the command counted.
        details: versions that the row doesn't say.
        commit: has the command, "" if this checkout has it.
    """

    topic: str
    row: str
    column: str
    command: str
    date: str
    result: str
    details: str = ""
    commit: str = ""


def read_results(file: Path | None = None) -> list[SupportResult]:
    """Return all results, in the order of the file, `FILE` by default.  None without a file."""
    file = file or FILE
    return msgspec.json.decode(file.read_bytes(), type=list[SupportResult]) if file.exists() else []


def record(*new: SupportResult) -> None:
    """Add results, each in the place of that of an earlier run."""
    folder = os.open(FILE.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        found = {(each.topic, each.row, each.column): each for each in [*read_results(), *new]}
        results = [found[key] for key in sorted(found)]
        FILE.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    finally:
        os.close(folder)
