"""Background tasks begin again after a defect."""

from __future__ import annotations

import asyncio

import pytest

from nftproxy.agent.lifecycle.background import PAUSE, keep_running
from tests.agent.world import VirtualLoop, now


def test_a_task_that_fails_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    """Each failure is logged with its traceback, and the task begins again after a pause, until it returns."""
    begun: list[float] = []

    async def task() -> None:
        begun.append(now())
        if len(begun) < 3:
            raise LookupError("nobody has thought of this")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(keep_running(task))
    assert begun == [0, PAUSE, 2 * PAUSE]
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [LookupError, LookupError]


def test_a_cancelled_task_stays_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """Cancelling the task at the agent's end is no failure."""

    async def waiting() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        kept = asyncio.create_task(keep_running(waiting))
        await asyncio.sleep(0)
        kept.cancel()
        await asyncio.wait([kept])
        assert kept.cancelled()

    asyncio.run(main())
    assert not caplog.records
