"""Waiting for what is so sooner or later, where nothing announces it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

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
