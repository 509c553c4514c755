"""The processes that share this network namespace, as far as /proc shows them: a container sees its own alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    """A process: its number, and the words of its command line."""

    number: int
    arguments: tuple[str, ...]

    def path(self, file: str) -> Path:
        """The path here of a file that the process sees: the process may have a container's root."""
        return PROC / str(self.number) / "root" / file.lstrip("/")


def processes_called(name: str) -> Iterator[Process]:
    """Yield the processes of this network namespace that root or our user started from a program of this name.

    Other users' processes aren't believed.
    """
    here = _network(PROC / "thread-self")
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid not in (0, os.geteuid()):
                continue
            arguments = (entry / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
            if Path(arguments[0]).name == name and _network(entry) == here:
                yield Process(int(entry.name), tuple(arguments))
        except OSError:
            continue  # it has ended, or isn't ours to look at


def _network(process: Path) -> str:
    return str((process / "ns" / "net").readlink())
