"""A thread that makes calls for an event loop, one after the other.

A call in `concurrent.futures.ThreadPoolExecutor` costs 0.1 ms more, for a second future with a lock of its own around
each of its steps; a change of the rules takes not much longer in the kernel.

Nor need the loop turn for a call that is over at once.  Who makes one says for how long it may hold the loop up: until
then the thread of the loop waits for it in place, which leaves Python's lock to the call from the first moment, and
takes two turns of the loop less, with a message through its pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Worker:
    """One thread, which begins with the first call, in the network namespace of the thread that makes that.

    A call that is cancelled has happened or will still happen.
    """

    def __init__(self, name: str) -> None:
        """Nothing is started yet; `name` is the thread's."""
        self._name = name
        self._calls = queue.SimpleQueue[_Call[Any] | None]()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[..., Result], *arguments: object, hold_up: float = 0.0) -> Result:
        """Make a call, and return what it returns or raise what it raises.

        For the first `hold_up` seconds of it nothing else on the loop gets a turn.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._calls,), name=self._name)
            self._thread.start()
        made = _Call(call, arguments)
        self._calls.put(made)
        return await made.outcome(hold_up)

    def close(self) -> None:
        """End the thread, after the calls that were asked for."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None


class _Call(Generic[Result]):
    """A call, and what becomes of it."""

    def __init__(self, call: Callable[..., Result], arguments: tuple[object, ...]) -> None:
        self._call = call
        self._arguments = arguments
        self._result: Result
        self._error: BaseException | None = None
        self._lasts = threading.Lock()
        self._lasts.acquire()
        self._over: asyncio.Future[None] | None = None  # where the loop waits, if it has ceased to wait in place

    async def outcome(self, hold_up: float) -> Result:
        """What it returns or raises, once it is over."""
        if not self._lasts.acquire(timeout=hold_up):
            self._over = asyncio.get_running_loop().create_future()
            if not self._lasts.acquire(blocking=False):  # else it has ended before it could know of the future
                await self._over
        if self._error is not None:
            raise self._error
        return self._result

    def make(self) -> None:
        """Make it, in the worker's thread."""
        try:
            self._result = self._call(*self._arguments)
        except BaseException as error:  # noqa: BLE001  # whatever it is, whoever has asked gets it
            self._error = error
        self._lasts.release()
        if self._over is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
                self._over.get_loop().call_soon_threadsafe(_settle, self._over)


def _work(calls: queue.SimpleQueue[_Call[Any] | None]) -> None:
    while (each := calls.get()) is not None:
        each.make()
        del each  # nothing of it outlives the call


def _settle(over: asyncio.Future[None]) -> None:
    if not over.done():  # it was cancelled
        over.set_result(None)
