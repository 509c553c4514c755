"""`Kernel` for an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from nftproxy.kernel.child_process import ChildCrashed, in_child
from nftproxy.kernel.libnftables import Kernel, check_text
from nftproxy.kernel.nfnetlink.element_batch import MOST_CHARACTERS
from nftproxy.kernel.worker import Worker
from nftproxy.rules.transaction import Commit, Transaction

LIKELY_CAUSE = "libnftables can't read our table, most likely a set that a newer nft has added to it"
"""The usual cause of a crash of the library: 1.0.6 crashes on any set that 1.1.2 or later has declared by `type`, in
any table.
"""

BRIEF = 0.005
"""Seconds for which a small transaction may block the event loop.

A single change takes a tenth of that, unless other programs hold the kernel's lock.  So requests for /healthz don't
wait for other programs.
"""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


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
