"""Which agent the kernel has killed for want of memory, by the kernel's log.

A command is `nftproxy`, too, so the agent's process has a name of its own.  The log is the machine's: on a machine with
several nodes, as of kind, the process's cgroup says whose agent it was.
"""

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
NAME = "nftproxy-agent"
"""The name of the agent's process, which `name_process` gives it: the kernel takes 15 characters."""
_CGROUP = re.compile(
    rb"[0-7],\d+,\d+,[^;]*;oom-kill:[^\n]*,task_memcg=(?P<cgroup>[^,\n]*),task=[^\n]*,pid=(?P<process>\d+),"
)
"""A record that precedes the kill (dump_oom_summary in mm/oom_kill.c)."""
_KILLED = re.compile(
    rb"[0-7],\d+,(?P<at>\d+),[^;]*;"
    rb"(?P<where>Memory cgroup out|Out) of memory: Killed process (?P<process>\d+) \((?P<name>[^)\n]*)\)"
)
"""A record of the kernel itself, not of a program, with the microseconds since the machine's start."""


class Killed(NamedTuple):
    """A process that the kernel has killed.

    `by_cgroup` is true if its cgroup had no memory left, false if the machine had none.  `age` is in seconds.
    `cgroup` is its path as the kernel has it, "" if the log doesn't say it.
    """

    process: int
    by_cgroup: bool
    age: float
    cgroup: str = ""


def name_process() -> None:
    """Give this process the agent's name, by which the kernel's log names it, even if it runs as `python`."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(NAME)


def last_killed(path: Path = LOG) -> Killed | None:
    """Return the process of the agent's name that was killed last, None if there was none or the log can't be read."""
    found, cgroups = None, dict[int, str]()
    with suppress(OSError):
        for record in _records(path):
            if chosen := _CGROUP.match(record):
                cgroups[int(chosen["process"])] = chosen["cgroup"].decode(errors="replace")
            match = _KILLED.match(record)
            if match and match["name"] == NAME.encode():
                process, age = int(match["process"]), time.monotonic() - int(match["at"]) / 1e6
                found = Killed(process, match["where"] != b"Out", max(0.0, age), cgroups.get(process, ""))
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
