"""Which process of ours the kernel has killed for want of memory, by the kernel's log."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LOG = Path("/dev/kmsg")
"""The kernel's log: a record for each read (Documentation/ABI/testing/dev-kmsg)."""
LONGEST_RECORD = 8192
NAME = "nftproxy"
"""The name of the agent's process, which `name_process` gives it."""
_KILLED = re.compile(
    rb"[0-7],\d+,(?P<at>\d+),[^;]*;"
    rb"(?P<where>Memory cgroup out|Out) of memory: Killed process (?P<process>\d+) \((?P<name>[^)\n]*)\)"
)
"""A record of the kernel itself, not of a program, with the microseconds since the machine's start."""


class Killed(NamedTuple):
    """A process that the kernel has killed.

    `by_cgroup` is true if its cgroup had no memory left, false if the machine had none.  `age` is in seconds.
    """

    process: int
    by_cgroup: bool
    age: float


def name_process() -> None:
    """Give this process the agent's name, by which the kernel's log names it, even if it runs as `python`."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(NAME)


def last_killed(path: Path = LOG) -> Killed | None:
    """Return the process of the agent's name that was killed last, None if there was none or the log can't be read."""
    found = None
    with suppress(OSError):
        for record in _records(path):
            match = _KILLED.match(record)
            if match and match["name"] == NAME.encode():
                age = time.monotonic() - int(match["at"]) / 1e6
                found = Killed(int(match["process"]), match["where"] != b"Out", max(0.0, age))
    return found


def _records(path: Path) -> Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                record = os.read(descriptor, LONGEST_RECORD)
            except BrokenPipeError:  # the record was overwritten meanwhile
                continue
            except BlockingIOError:
                return
            if not record:
                return
            yield record
    finally:
        os.close(descriptor)
