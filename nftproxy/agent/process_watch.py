"""Looks periodically at this process: at threads that hang, and at a CPU limit that stops it.

The looks need no thread of their own, so a hanging thread can't stop them.
"""

from __future__ import annotations

import asyncio

from nftproxy.agent.reporting.fault_reporter import FaultReporter
from nftproxy.kernel.cgroups import CpuLimit, cpu_limit
from nftproxy.kernel.threads import BUSY

PERIOD = 30.0
"""Seconds between two looks: the default period of the checks of our own tables."""
LONGEST_CALL = 60.0
"""Seconds for which a thread's call may take.  The longest take some seconds: a first load, a count of a million
connections."""
LEAST_PERIODS, STOPPED = 30, 0.5
"""A CPU limit holds the agent up if it stopped the agent in this share of its periods since the last look, and these
were so many: 3 s with the usual periods of 0.1 s, so that a short rush is no fault."""


async def watch_process(faults: FaultReporter) -> None:
    """Report after each look what holds the process up, until cancelled."""
    before = cpu_limit()
    while True:
        await asyncio.sleep(PERIOD)
        faults.report_hanging(BUSY.longer_than(LONGEST_CALL), LONGEST_CALL)
        now = cpu_limit()
        faults.report_cpu_limit(stopped(before, now))
        before = now


def stopped(before: CpuLimit | None, now: CpuLimit | None) -> str:
    """Return in words how often a CPU limit has stopped the process since the last look, "" if seldom."""
    if now is None or before is None or before.cpus != now.cpus:
        return ""
    periods, times = now.periods - before.periods, now.stopped - before.stopped
    if periods < LEAST_PERIODS or times < STOPPED * periods:
        return ""
    return f"its cgroup allows it {now.cpus:g} CPUs, and stopped it in {times} of the last {periods} periods"
