"""The threads of this process, which make calls for the event loop, and the calls that they have to make at present.

A thread that hangs in a system call, or is gone, never ends its call, and the task that awaits the call looks no more.
That would be as quiet as a node without faults.  So calls in threads are noted here (`BUSY`), and the agent reports
long ones (agent/process_watch.py).

A pool makes the calls that look at the node (`NotedThreads`).  One thread makes those at nftables (`AsyncKernel`), one
after the other (`Worker`).  A call in a pool costs 0.1 ms more, for a second future with a lock around each of its
steps, and a change of the rules takes hardly longer in the kernel.

A short call needn't return to the loop either.  The caller says for how long the call may block the loop.  Until then
the loop's thread waits in place.  So the call has Python's lock from the first moment, and two turns of the loop and a
message through its pipe are saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from nftproxy.kernel.child_process import ChildCrashed, in_child
from nftproxy.kernel.libnftables import Kernel, check_text
from nftproxy.kernel.nfnetlink.element_batch import MOST_CHARACTERS
from nftproxy.model.errors import Unavailable
from nftproxy.rules.transaction import Commit, Transaction

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


LIKELY_CAUSE = "libnftables can't read our table, most likely a set that a newer nft has added to it"
"""The usual cause of a crash of the library: 1.0.6 crashes on any set that 1.1.2 or later has declared by `type`, in
any table.
"""

BRIEF = 0.005
"""Seconds for which a small transaction may block the event loop.

A single change takes a tenth of that, unless other programs hold the kernel's lock.  So requests for /healthz don't
wait for other programs.
"""


def _in_thread(
    method: Callable[Concatenate[Kernel, Arguments], Result],
) -> Callable[Concatenate[AsyncKernel, Arguments], Coroutine[Any, Any, Result]]:
    async def run(self: AsyncKernel, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return await self._worker.run(partial(method, self._kernel, *args, **kwargs))

    return run


class AsyncKernel:
    """A `Kernel` off the event loop: all calls run one after the other in a thread of its own.

    A call that is cancelled has happened or will still happen, so the kernel's state is then unknown.
    """

    def __init__(self) -> None:
        self._kernel = Kernel()
        self._worker = Worker("kernel")

    prepare = _in_thread(Kernel.prepare)
    generation = _in_thread(Kernel.generation)
    check = _in_thread(Kernel.check)
    read_back = _in_thread(Kernel.read_back)
    read_ahead = _in_thread(Kernel.read_ahead)
    compare = _in_thread(Kernel.compare)

    async def apply(self, transaction: Transaction) -> Commit:
        """Apply a transaction, as `Kernel.apply` does."""
        hold_up = BRIEF if len(transaction.text) <= MOST_CHARACTERS else 0.0
        return await self._worker.run(self._kernel.apply, transaction, hold_up=hold_up)

    async def check_in_child(self, transaction: Transaction) -> None:
        """Check a transaction in another process, which may crash on what libnftables finds in our tables.

        Raises:
            ChildCrashed: it crashed, and so would this process.
            Refused, Unavailable: as `Kernel.check` does, or no process can be started.
        """
        try:
            await self._worker.run(in_child, check_text, transaction.text)
        except ChildCrashed as error:
            raise ChildCrashed(f"{error}; {LIKELY_CAUSE}") from error

    def close(self) -> None:
        """End the thread, after its present call."""
        self._worker.close()
