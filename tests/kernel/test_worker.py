"""A thread that makes calls for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from nftproxy.kernel import threads
from nftproxy.kernel.threads import Worker
from nftproxy.model.errors import Unavailable


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker, which ends with the test."""
    made = Worker("kernel")
    yield made
    made.close()


async def test_a_call_returns_what_it_returns(worker: Worker) -> None:
    """All calls run in a thread of the worker's name, and return their results."""
    calls = [await worker.run(lambda: (threading.current_thread().name, threading.get_ident())) for _ in range(3)]
    ((name, identity),) = set(calls)
    assert name == "kernel"
    assert identity != threading.get_ident()


async def test_a_call_raises_what_it_raises(worker: Worker) -> None:
    """Any exception of a call is raised in the caller, and the next call is made all the same."""
    with pytest.raises(SystemError, match="no such call"):
        await worker.run(Mock(side_effect=SystemError("no such call")))
    assert await worker.run(int, "7") == 7


async def test_the_loop_goes_on_during_a_call(worker: Worker) -> None:
    """Other tasks of the loop run while a call waits."""
    released = threading.Event()
    waiting = asyncio.create_task(worker.run(released.wait, 30))
    await asyncio.sleep(0)
    released.set()  # would never be reached if the call held the loop
    assert await waiting is True


async def test_a_call_that_is_over_soon_takes_no_turn_of_the_loop(worker: Worker) -> None:
    """If a call ends within the time for which it may block the loop, no other task runs before its result is there."""
    turns = list[str]()
    asyncio.get_running_loop().call_soon(turns.append, "somebody else's")
    assert await worker.run(int, "7", hold_up=30) == 7
    assert not turns


async def test_a_call_holds_the_loop_up_for_no_longer_than_it_may(worker: Worker) -> None:
    """A call that takes longer than it may block the loop is awaited while other tasks run."""
    released = threading.Event()
    asyncio.get_running_loop().call_soon(released.set)  # would never be reached if the call held the loop
    assert await worker.run(released.wait, 30, hold_up=0.01) is True


async def test_calls_are_made_in_their_order_though_one_is_cancelled(worker: Worker) -> None:
    """A call that is cancelled happens all the same, before later calls."""
    released, made = threading.Event(), list[str]()

    def wait() -> None:
        released.wait(30)
        made.append("cancelled")

    first = asyncio.create_task(worker.run(wait))
    await asyncio.sleep(0)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    second = asyncio.create_task(worker.run(made.append, "second"))
    await asyncio.sleep(0)
    released.set()
    await second
    assert made == ["cancelled", "second"]


def test_a_call_that_outlives_its_loop_is_finished(worker: Worker) -> None:
    """Closing waits for the queued calls, even without a caller."""
    released, made = threading.Event(), list[str]()

    def wait() -> None:
        released.wait(30)
        made.append("done")

    async def ask() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.run(wait), 0.01)

    asyncio.run(ask())
    released.set()
    worker.close()
    assert made == ["done"]


async def test_a_thread_that_can_not_be_started_is_tried_again(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread a call is refused, and closing does nothing.  The next call starts the thread."""
    with monkeypatch.context() as patch:
        refused = Mock(**{"Thread.return_value.start.side_effect": RuntimeError("can't start new thread")})
        patch.setattr(threads, "threading", refused)  # threads of other tests' servers are not affected
        with pytest.raises(Unavailable, match="can't start new thread"):
            await worker.run(int, "7")
        worker.close()
    async with asyncio.timeout(30):
        assert await worker.run(int, "7") == 7
