"""The process's memory: when Python looks for garbage, and when free memory goes back to the machine.

A cluster's objects and blocks live for long and have no cycles among them, so there is little for Python's collector to
find, and much to look at: a full pass takes 0.1 s at 10,000 Services, in the middle of whatever else there is to do.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable

THRESHOLDS = (200_000, 20, 100)
"""Objects made before Python looks at these for garbage, and how many such looks before it looks farther back (by
default 700, 10 and 10)."""


def expect_many_objects() -> None:
    """Have Python look for garbage so seldom that it doesn't count, and often enough that none piles up."""
    gc.set_threshold(*THRESHOLDS)


def keep_all() -> None:
    """Take all that there is now as here to stay, so that no later search for garbage goes through it."""
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Give free memory back to the machine, where the C library can (musl can't)."""
    if trim := _malloc_trim():
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
