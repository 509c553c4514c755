"""The calls in threads that haven't ended."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from nftproxy.kernel import threads
from nftproxy.kernel.threads import BusyThreads, NotedThreads, Worker


class Clock:
    """A clock that a test sets."""

    time = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.time


@pytest.fixture
def clock() -> Clock:
    """A clock at 0."""
    return Clock()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> BusyThreads:
    """The calls of this test alone."""
    made = BusyThreads(clock)
    monkeypatch.setattr(threads, "BUSY", made)
    return made


def names(busy: BusyThreads) -> list[str]:
    """The functions whose calls have taken longer than a minute."""
    return [each.function for each in busy.longer_than(60)]


async def test_a_call_that_hangs_is_named_until_it_ends(busy: BusyThreads, clock: Clock) -> None:
    """A call in a pool of the event loop counts from its submission to its end, by its function's name."""
    released = threading.Event()

    def look(event: threading.Event) -> None:
        event.wait()

    asyncio.get_running_loop().set_default_executor(NotedThreads("looks", 1))
    hanging = asyncio.create_task(asyncio.to_thread(look, released))
    behind = asyncio.create_task(asyncio.to_thread(partial(int, "7")))
    await asyncio.sleep(0)
    clock.time = 60.0
    assert names(busy) == []
    clock.time = 60.5
    assert names(busy) == ["look", "int"], "a call that waits for the thread counts, too"
    released.set()
    await asyncio.gather(hanging, behind)
    assert names(busy) == []


async def test_a_call_of_the_kernels_thread_is_named(busy: BusyThreads, clock: Clock) -> None:
    """A call of a worker counts until it ends, also if its caller no longer waits."""
    released, kernel = threading.Event(), Worker("kernel")
    hanging = asyncio.create_task(kernel.run(partial(released.wait, 60)))
    await asyncio.sleep(0)
    hanging.cancel()
    clock.time = 61.0
    assert names(busy) == ["wait"]
    released.set()
    assert await kernel.run(int, "7") == 7
    assert names(busy) == []
    kernel.close()


def test_a_closed_pool_notes_nothing(busy: BusyThreads, clock: Clock) -> None:
    """A call that a pool doesn't take isn't noted."""
    pool = NotedThreads("looks")
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(int)
    clock.time = 61.0
    assert names(busy) == []
