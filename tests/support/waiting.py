"""Waiting for what is so sooner or later, where nothing announces it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

PATIENCE = 60.0
"""Seconds for what takes a moment, on a machine that has other things to do."""


def wait_until(
    condition: Callable[[], object],
    report: Callable[[], object] = lambda: "not so",
    *,
    patience: float = PATIENCE,
    pause: float = 0.01,
) -> None:
    """Wait for something to be so.

    Args:
        condition: whether it is.
        report: what to say if it isn't in time.
        patience: seconds to wait.
        pause: seconds between two looks.

    Raises:
        AssertionError: it isn't, after so many seconds.
    """
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, report()
        time.sleep(pause)


async def until(
    condition: Callable[[], object],
    report: Callable[[], object] = lambda: "not so",
    *,
    patience: float = PATIENCE,
    pause: float = 0.01,
) -> None:
    """The same, while the loop goes on."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, report()
        await asyncio.sleep(pause)


def wait_until_seen_to_stay(look: Callable[[], object], pauses: Iterable[float], timeout: float) -> None:
    """See that something stays through pauses that are together longer than its timeout, but not one by one.

    A busy machine may take longer than the timeout between two looks; then nothing can be said, and all begins anew.
    """

    def has_stayed() -> bool:
        before, first = time.monotonic(), look()
        for pause in pauses:
            time.sleep(pause)
            began, now = time.monotonic(), look()
            if time.monotonic() - before >= timeout:
                return False
            assert now == first
            before = began
        return True

    wait_until(has_stayed)
