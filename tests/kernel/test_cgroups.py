"""The CPU limits of cgroups, of files as the kernel has them, and of a real process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nftproxy.kernel.cgroups import CpuLimit, cpu_limit
from tests.support.cgroups import cpu_limited

STAT = "usage_usec 7\nnr_periods 40\nnr_throttled 30\nthrottled_usec 9\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make cgroups")
def test_a_process_has_the_limit_of_its_cgroup() -> None:
    """The kernel's limit of a process is read, and no limit of a process without one."""
    with subprocess.Popen(["sleep", "60"]) as process:
        before = cpu_limit(process.pid)
        with cpu_limited(process.pid, 0.05):
            found = cpu_limit(process.pid)
        process.kill()
    assert found is not None
    assert found.cpus == 0.05
    assert before is None or before.cpus > 0.05


def mounted(directory: Path, line: str, cgroup: str) -> Path:
    """A /proc with a mounted hierarchy, and a process 7 in a cgroup."""
    proc = directory / "proc"
    for name, text in (("self/mountinfo", line), ("7/cgroup", cgroup)):
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    return proc


def test_version_2_has_the_lowest_limit_of_all_parents(tmp_path: Path) -> None:
    """Of a pod's cgroup and its container's the lower limit counts, and `max` is none."""
    top = tmp_path / "cgroup"
    for name, limit in (("pod/container", "max 100000"), ("pod", "5000 100000"), (".", "200000 100000")):
        (top / name).mkdir(parents=True, exist_ok=True)
        (top / name / "cpu.max").write_text(f"{limit}\n")
        (top / name / "cpu.stat").write_text(STAT)
    mount = f"36 25 0:31 / {top} rw - cgroup2 cgroup2 rw\n"
    proc = mounted(tmp_path, mount, "0::/pod/container\n")
    assert cpu_limit(7, proc) == CpuLimit(0.05, 40, 30)
    assert cpu_limit(8, proc) is None, "no such process"


def test_version_1_within_a_container(tmp_path: Path) -> None:
    """A container sees its own cgroup at the top of the mount, and other controllers don't count."""
    top = tmp_path / "cpu"
    top.mkdir()
    for name, text in (("cpu.cfs_quota_us", "10000\n"), ("cpu.cfs_period_us", "100000\n"), ("cpu.stat", STAT)):
        (top / name).write_text(text)
    mounts = (
        f"36 25 0:31 /docker/ab {top} rw - cgroup cgroup rw,cpu,cpuacct\n37 25 0:32 / /nowhere rw - cgroup m rw,m\n"
    )
    proc = mounted(tmp_path, mounts, "4:cpu,cpuacct:/docker/ab\n3:m:/docker/ab\n")
    assert cpu_limit(7, proc) == CpuLimit(0.1, 40, 30)
    (top / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_limit(7, proc) is None
