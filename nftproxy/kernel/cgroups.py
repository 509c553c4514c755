"""How much of a CPU the cgroups of a process allow it (cgroups(7)), and how often they have stopped it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class CpuLimit(NamedTuple):
    """The limit of a cgroup.

    Attributes:
        cpus: how many CPUs the cgroup may use, such as 0.05.
        periods: the periods in which it has had work so far, of 0.1 s by default.
        stopped: those among them in which it has used up its time, and was stopped until the next.
    """

    cpus: float
    periods: int
    stopped: int


def cpu_limit(process: int | str = "self", proc: Path = PROC) -> CpuLimit | None:
    """Return the lowest limit among the cgroups of a process, None if there is none or none can be read."""
    return min(filter(None, map(_limit, _directories(process, proc))), default=None)


def _directories(process: int | str, proc: Path) -> Iterator[Path]:
    """Yield the directories of a process's cgroups that may limit its CPU, of version 1 and 2, with their parents."""
    with suppress(OSError, ValueError):
        mounts = [*_mounts((proc / "self/mountinfo").read_text())]
        for line in (proc / str(process) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for root, top in (each[1:] for each in mounts if each.controllers == _relevant(controllers)):
                inner = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path(path.lstrip("/"))
                for part in (inner, *inner.parents):
                    yield top / part


def _relevant(controllers: str) -> str:
    """Return "cpu" for a hierarchy of version 1 with this controller, "" for version 2, and else another text."""
    return "cpu" if "cpu" in controllers.split(",") else controllers


class _Mount(NamedTuple):
    """A mounted hierarchy: its controllers as `_relevant` says, the cgroup at its top, and its directory."""

    controllers: str
    root: Path
    top: Path


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        root, directory = mount.split()[3:5]
        if kind.startswith("cgroup2 "):
            yield _Mount("", Path(root), Path(directory))
        elif kind.startswith("cgroup "):
            yield _Mount(_relevant(kind.split()[2]), Path(root), Path(directory))


def _limit(directory: Path) -> CpuLimit | None:
    with suppress(OSError, ValueError, KeyError):
        if (directory / "cpu.max").exists():
            quota, period = (directory / "cpu.max").read_text().split()
        else:
            quota, period = ((directory / f"cpu.cfs_{each}_us").read_text().strip() for each in ("quota", "period"))
        if quota not in ("max", "-1"):
            found = dict(line.split() for line in (directory / "cpu.stat").read_text().splitlines())
            return CpuLimit(int(quota) / int(period), int(found["nr_periods"]), int(found["nr_throttled"]))
    return None
