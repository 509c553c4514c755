"""Map a function in two processes if there are two processors, for `render` and for the first load of an agent.

The second process is a fork, so that it has all objects at once.  Pages of memory are shared until either process
writes to them.

An agent has threads, and a fork of such a process may hang, as it has the locks of threads that it hasn't (Python warns
of it since 3.12).  This fork takes no such lock: it computes with the objects that it has, writes to a pipe, and ends.
Python and the C library give it their own locks anew.
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import pickle
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO, NoReturn, TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")

FORKED = (False, True, False, True, True)
"""The items of five that the fork maps.  It has more of them, as this process also takes in all results."""
OF_A_FORK = 50
"""The items after which a new fork takes over.  A fork's memory grows with each item: its caches grow, and it writes to
objects whose memory it shared with this process."""
AHEAD = 2**20
"""Bytes of results that the fork may be ahead: the most that any process may ask of a pipe (pipe(7))."""


def in_two(function: Callable[[Item], Result], items: Sequence[Item], /) -> Iterator[Result]:
    """As `map`, with three of five items in a forked process: a `Mapper`.

    If that process fails, this process repeats its part, and so raises the same exception.  If none can be forked (a
    limit of processes, of memory, or of files), this process does all.
    """
    if len(os.sched_getaffinity(0)) < 2:
        yield from map(function, items)
        return
    with _no_search_for_garbage():
        for start in range(0, len(items), OF_A_FORK):
            yield from _by_one_fork(function, items[start : start + OF_A_FORK])


def _by_one_fork(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    forked = _fork(function, itertools.compress(items, itertools.cycle(FORKED))) if len(items) > 1 else None
    if forked is None:
        yield from map(function, items)
        return
    child, reader = forked
    try:
        with os.fdopen(reader, "rb") as answers:
            for item, is_forked in zip(items, itertools.cycle(FORKED), strict=False):
                yield _answer(answers, function, item) if is_forked else function(item)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """Put searches for garbage off: a search writes to every object, so that no memory stays shared with a fork."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _fork(function: Callable[[Item], object], items: Iterable[Item]) -> tuple[int, int] | None:
    """Return a process that maps the items, and the pipe that has its results, or None if there can be none."""
    try:
        reader, writer = os.pipe()
    except OSError:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads
            child = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        return None
    if not child:
        os.close(reader)
        _write(function, items, writer)
    os.close(writer)
    return child, reader


def _answer(answers: BinaryIO, function: Callable[[Item], Result], item: Item) -> Result:
    with suppress(EOFError, pickle.UnpicklingError):
        return cast("Result", pickle.load(answers))
    return function(item)


def _write(function: Callable[[Item], object], items: Iterable[Item], writer: int) -> NoReturn:
    """Write the results, and end this process without the exit handlers and buffers that it shares with its parent."""
    with suppress(BaseException), os.fdopen(writer, "wb") as file:
        signal.set_wakeup_fd(-1)  # the parent's: signals for this process are none for the parent
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, AHEAD)
        for item in items:
            pickle.dump(function(item), file, pickle.HIGHEST_PROTOCOL)
            file.flush()
    os._exit(0)
