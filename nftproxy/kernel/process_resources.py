"""This process's use of the machine: memory, Python's garbage collection, and file descriptors.

A cluster's objects and blocks live for long and have no cycles among them, so Python's collector finds little, in many
objects.  A full pass takes 0.1 s at 10,000 Services, in the middle of other work.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import resource
import sys
from collections.abc import Callable

THRESHOLDS = (200_000, 20, 100)
"""Objects made before Python looks at these for garbage, and the number of such looks before it looks farther back (by
default 700, 10 and 10).
"""

ARENAS = -8
"""M_ARENA_MAX of the GNU C library (malloc/malloc.h): how many heaps threads may have."""

TURN = 0.0005
"""Seconds for which a thread may keep Python's lock while others wait for it (by default 0.005).

The kernel's thread gives the lock up at each system call.  With longer turns it waits so long for the next, while the
main thread renders a first load, that most of its work comes after the rendering."""

UNLIMITED = 2**20
"""File descriptors that count as no limit: the kernel's own default for a process (fs.nr_open)."""


def collect_garbage_rarely() -> None:
    """Have Python look for garbage so rarely that the cost doesn't count, and often enough that none piles up."""
    gc.set_threshold(*THRESHOLDS)


def share_a_heap() -> None:
    """Have all threads allocate from one heap, if the C library can.  Call it before there are threads.

    `malloc_trim` gives back the free end of the first heap alone.  A second one, of the thread that reads the kernel's
    sets, kept 8 MB for 130,000 elements.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(ARENAS, 1)


def take_short_turns() -> None:
    """Let each thread hand over Python's global lock after a short time."""
    sys.setswitchinterval(TURN)


def freeze_objects() -> None:
    """Exclude all present objects from later garbage collections."""
    gc.collect()
    gc.freeze()
    trim_memory()


def trim_memory() -> None:
    """Give free memory back to the machine, if the C library can (musl can't)."""
    if trim := _malloc_trim():
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def allowed_files() -> int:
    """Return the limit of this process's file descriptors (RLIMIT_NOFILE, getrlimit(2))."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> None:
    """Raise the limit of file descriptors to the hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
