"""The calls that threads of this process have to make at present, and since when.

A thread that hangs in a system call, or is gone, never ends its call, and the task that awaits the call looks no more.
That would be as quiet as a node without faults.  So calls in threads are noted here, and the agent reports long ones
(agent/process_watch.py).
"""

from __future__ import annotations

import contextvars
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

MOST_THREADS = 16
"""Threads of a pool: more than the agent has tasks that look at the node, so that one that hangs holds up no other."""


class BusyCall(NamedTuple):
    """A call: its number, the function's name, and the steady time since which it waits or runs."""

    number: int
    function: str
    since: float


class BusyThreads:
    """The calls that threads are making now, each with its start."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._numbers = itertools.count()
        self._calls: dict[int, BusyCall] = {}

    def begin(self, call: Callable[..., object], arguments: tuple[Any, ...] = ()) -> int:
        """Note a call, and return its number for `end`."""
        number = next(self._numbers)
        self._calls[number] = BusyCall(number, _name(call, arguments), self._now())
        return number

    def end(self, number: int) -> None:
        """Note the end of a call."""
        self._calls.pop(number, None)

    def longer_than(self, seconds: float) -> list[BusyCall]:
        """Return the calls that have taken longer than `seconds`."""
        return [each for each in list(self._calls.values()) if self._now() - each.since > seconds]


BUSY = BusyThreads()
"""The present calls of this process."""


class NotedThreads(ThreadPoolExecutor):
    """A pool of threads whose calls are noted."""

    def __init__(self, name: str, most: int = MOST_THREADS) -> None:
        super().__init__(max_workers=most, thread_name_prefix=name)

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Run a call in a thread of the pool, and note it until it has ended."""
        number = BUSY.begin(fn, args)
        try:
            future = super().submit(fn, *args, **kwargs)
        except RuntimeError:  # no thread can be started, or the pool is closed
            BUSY.end(number)
            raise
        future.add_done_callback(lambda _: BUSY.end(number))
        return future


def _name(call: Callable[..., object], arguments: tuple[Any, ...]) -> str:
    """Return a function's name, also that of a function within `partial`, or within a context's `run`."""
    if isinstance(call, partial):
        return _name(call.func, call.args)
    if arguments and isinstance(getattr(call, "__self__", None), contextvars.Context):
        return _name(arguments[0], arguments[1:])
    return getattr(call, "__name__", type(call).__name__)
