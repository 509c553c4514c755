"""Waiting for conditions that nothing announces."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable

PATIENCE = 60.0 * float(os.environ.get("NFTPROXY_SLOWNESS", "1"))
"""Seconds for something that takes a moment on an idle machine.  A virtual machine says how much slower it is."""


def wait_until(
    condition: Callable[[], object],
    report: Callable[[], object] = lambda: "not so",
    *,
    patience: float = PATIENCE,
    pause: float = 0.01,
) -> None:
    """Wait until a condition is true.

    Args:
        condition: looked at again and again.
        report: the message if it isn't true in time.
        patience: seconds to wait.
        pause: seconds between two looks.

    Raises:
        AssertionError: it isn't true after `patience` seconds.
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
    """Wait as `wait_until` does, while the event loop goes on."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, report()
        await asyncio.sleep(pause)


def wait_until_seen_to_stay(look: Callable[[], object], pauses: Iterable[float], timeout: float) -> None:
    """Assert that a value stays through pauses whose sum is longer than its timeout, though each is shorter.

    A busy machine may take longer than the timeout between two looks.  Then all begins anew.
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
