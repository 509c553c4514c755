"""The processes that the kernel has killed for want of memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nftproxy.kernel import killed
from nftproxy.kernel.killed import Killed, last_killed

CHOSEN = (
    b"6,1,5000000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods,"
    b"task_memcg=/kubepods/pod1/ab,task=nftproxy-agent,pid=41,uid=0\n"
)
CGROUP = (
    b"4,1,5000000,-;Memory cgroup out of memory: Killed process 41 (nftproxy-agent) total-vm:1kB, oom_score_adj:0\n"
)
MACHINE = b"3,2,6000000,-;Out of memory: Killed process 42 (nftproxy-agent) total-vm:1kB, oom_score_adj:-999\n"
OTHER = b"3,3,7000000,-;Out of memory: Killed process 43 (python3) total-vm:1kB\n"
COMMAND = b"3,4,8000000,-;Memory cgroup out of memory: Killed process 45 (nftproxy) total-vm:1kB\n"
FORGED = b"12,4,8,-;a program says: 3,2,6,-;Out of memory: Killed process 44 (nftproxy-agent)\n"


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([], None),
        ([OTHER], None),
        ([COMMAND], None),
        ([CGROUP], Killed(41, by_cgroup=True, age=5.0)),
        ([CHOSEN, CGROUP, COMMAND], Killed(41, by_cgroup=True, age=5.0, cgroup="/kubepods/pod1/ab")),
        ([CGROUP, MACHINE, OTHER], Killed(42, by_cgroup=False, age=4.0)),
        ([FORGED], None),
    ],
)
def test_the_last_of_the_agents_processes_counts(
    monkeypatch: pytest.MonkeyPatch, records: list[bytes], found: Killed | None
) -> None:
    """Only records of the kernel itself about agents count, not about commands, and the last is returned."""
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    monkeypatch.setattr(killed, "_records", lambda _path: iter(records))
    assert last_killed() == found


def test_without_the_kernels_log_nothing_is_known(tmp_path: Path) -> None:
    """A log that can't be read is no error, as in a container."""
    assert last_killed(tmp_path / "kmsg") is None
