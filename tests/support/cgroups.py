"""Control groups that limit a process in tests (cgroups(7)), of version 1 or 2, as the machine has them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PERIOD = 20_000
"""Microseconds of the periods in which a cgroup gets its share of a CPU.  The least share is 1,000."""


@contextmanager
def cpu_limited(process: int, cpus: float) -> Iterator[None]:
    """Allow a process this much of a CPU."""
    quota = int(PERIOD * cpus)
    first = {"cpu.cfs_period_us": str(PERIOD), "cpu.cfs_quota_us": str(quota)}
    with _limited(process, "cpu", first, {"cpu.max": f"{quota} {PERIOD}"}):
        yield


@contextmanager
def memory_limited(process: int, size: int) -> Iterator[None]:
    """Allow a process so many bytes beside those that it has, without swap."""
    first = {"memory.limit_in_bytes": str(size), "memory.swappiness": "0"}
    with _limited(process, "memory", first, {"memory.max": str(size), "memory.swap.max": "0"}):
        yield


@contextmanager
def _limited(process: int, controller: str, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[None]:
    """Keep a process in a cgroup with these settings, by the version of cgroups that has the controller."""
    top, is_first = _hierarchy(controller)
    if not is_first:
        (top / "cgroup.subtree_control").write_text(f"+{controller}")
    made = top / f"nftproxy-{os.getpid()}"
    made.mkdir()
    try:
        for name, value in (first if is_first else second).items():
            if name != "memory.swap.max" or (made / name).exists():  # a kernel without swap lacks it
                (made / name).write_text(value)
        (made / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for each in (made / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                (top / "cgroup.procs").write_text(each)
        made.rmdir()


def _hierarchy(controller: str) -> tuple[Path, bool]:
    """The directory of the hierarchy that has a controller, and whether it is of version 1.

    Raises:
        LookupError: none has it.
    """
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, directory, kind, options, *_ in mounts:
        if kind == "cgroup" and controller in options.split(","):
            return Path(directory), True
        if kind == "cgroup2" and controller in Path(directory, "cgroup.controllers").read_text().split():
            return Path(directory), False
    raise LookupError(f"no mounted cgroup has the controller {controller}")
