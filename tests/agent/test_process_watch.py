"""When a CPU limit holds the agent up."""

from __future__ import annotations

import pytest

from nftproxy.agent.process_watch import stopped
from nftproxy.kernel.cgroups import CpuLimit

BEFORE = CpuLimit(0.05, 100, 90)


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (
            BEFORE,
            CpuLimit(0.05, 130, 105),
            "its cgroup allows it 0.05 CPUs, and stopped it in 15 of the last 30 periods",
        ),
        (BEFORE, CpuLimit(0.05, 130, 104), ""),
        (BEFORE, CpuLimit(0.05, 129, 119), ""),
        (BEFORE, CpuLimit(0.1, 200, 190), ""),
        (BEFORE, None, ""),
        (None, CpuLimit(0.05, 130, 105), ""),
    ],
)
def test_a_limit_that_stops_most_periods_is_a_fault(before: CpuLimit | None, now: CpuLimit | None, text: str) -> None:
    """A limit is named once it has stopped half of at least 30 periods since the last look."""
    assert stopped(before, now) == text
