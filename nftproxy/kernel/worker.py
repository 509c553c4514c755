"""A thread that makes calls for an event loop, one after the other.

A call in `concurrent.futures.ThreadPoolExecutor` costs 0.1 ms more, for a second future with a lock around each of its
steps.  A change of the rules takes hardly longer in the kernel.

A short call needn't return to the loop either.  The caller says for how long the call may block the loop.  Until then
the loop's thread waits in place.  So the call has Python's lock from the first moment, and two turns of the loop and a
message through its pipe are saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from nftproxy.kernel.busy_threads import BUSY
from nftproxy.model.errors import Unavailable

Result = TypeVar("Result")


class Worker:
    """One thread, which starts at the first call, in the network namespace of the calling thread.

    A call that is cancelled has happened or will still happen.
    """

    def __init__(self, name: str) -> None:
        """Start nothing yet.  `name` is the thread's."""
        self._name = name
        self._calls = queue.SimpleQueue[_Call[Any] | None]()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[..., Result], *arguments: object, hold_up: float = 0.0) -> Result:
        """Make a call, and return its result or raise its exception.

        The loop is blocked for the first `hold_up` seconds of it.

        Raises:
            Unavailable: no thread can be started.
        """
        if self._thread is None:
            self._thread = self._started()
        made = _Call(call, arguments)
        self._calls.put(made)
        return await made.outcome(hold_up)

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=_work, args=(self._calls,), name=self._name)
        try:
            thread.start()
        except RuntimeError as error:
            raise Unavailable(f"no thread for the kernel can be started: {error}") from error
        return thread

    def close(self) -> None:
        """End the thread, after the queued calls."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None


class _Call(Generic[Result]):
    """A call and its outcome."""

    def __init__(self, call: Callable[..., Result], arguments: tuple[object, ...]) -> None:
        self._call = call
        self._arguments = arguments
        self._number = BUSY.begin(call)
        self._result: Result
        self._error: BaseException | None = None
        self._lasts = threading.Lock()
        self._lasts.acquire()
        self._over: asyncio.Future[None] | None = None  # the loop awaits this when it no longer waits in place

    async def outcome(self, hold_up: float) -> Result:
        """Return the result or raise the exception, once the call is over."""
        if not self._lasts.acquire(timeout=hold_up):
            self._over = asyncio.get_running_loop().create_future()
            if not self._lasts.acquire(blocking=False):  # else it ended before it could see the future
                await self._over
        if self._error is not None:
            raise self._error
        return self._result

    def make(self) -> None:
        """Make the call, in the worker's thread."""
        try:
            self._result = self._call(*self._arguments)
        except BaseException as error:  # noqa: BLE001  # the caller gets any exception
            self._error = error
        BUSY.end(self._number)
        self._lasts.release()
        if self._over is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._over.get_loop().call_soon_threadsafe(_settle, self._over)


def _work(calls: queue.SimpleQueue[_Call[Any] | None]) -> None:
    while (each := calls.get()) is not None:
        each.make()
        del each  # nothing of it outlives the call


def _settle(over: asyncio.Future[None]) -> None:
    if not over.done():  # it was cancelled
        over.set_result(None)
