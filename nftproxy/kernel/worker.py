"""A thread that makes calls for an event loop, one after the other.

A call in `concurrent.futures.ThreadPoolExecutor` costs 0.1 ms more, for a second future with a lock of its own around
each of its steps; a change of the rules takes not much longer in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
Call = tuple[asyncio.Future[Any], Callable[..., Any], tuple[object, ...]]


class Worker:
    """One thread, which begins with the first call, in the network namespace of the thread that makes that.

    A call that is cancelled has happened or will still happen.
    """

    def __init__(self, name: str) -> None:
        """Nothing is started yet; `name` is the thread's."""
        self._name = name
        self._calls = queue.SimpleQueue[Call | None]()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Make a call, and return what it returns or raise what it raises."""
        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._calls,), name=self._name)
            self._thread.start()
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._calls.put((future, call, arguments))
        return await future

    def close(self) -> None:
        """End the thread, after the calls that were asked for."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None


def _work(calls: queue.SimpleQueue[Call | None]) -> None:
    while (each := calls.get()) is not None:
        _make(*each)
        del each  # nothing of it outlives the call


def _make(future: asyncio.Future[Any], call: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    try:
        result = call(*arguments)
    except BaseException as error:  # noqa: BLE001  # whatever it is, whoever has asked gets it
        _answer(future, None, error)
    else:
        _answer(future, result, None)


def _answer(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
        future.get_loop().call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():  # it was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
