"""Shutdown on a signal, even if the event loop or a thread hangs.

SIGTERM and SIGINT end the agent in good order: the transaction that is under way is finished, and sockets are closed.
But an unreachable file server, a DNS lookup, or a lock in the kernel can block the event loop, or a thread that Python
joins at exit, for any time.  So a separate thread reads the signals too, from the file descriptor that Python's C
handler writes them to at once, and ends the process after a second.  The rules stay in any case: a transaction happens
as a whole or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

from nftproxy.logs import warn
from nftproxy.model.codes import Code

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)

asked_to_end = threading.Event()
"""Set once such a signal has come.  An agent that is about to execute itself ends instead."""

GRACE = 0.8
"""Seconds from the signal until the process ends in any case.  A shutdown in good order takes some hundredths."""


@contextlib.contextmanager
def ends_in_any_case(grace: float = GRACE, at_last: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Inside this context, end the process `grace` seconds after a signal, if it still runs then.

    Call this inside the event loop.  `at_last` is called just before the end, in another thread.  It must not block.

    The loop's own signal handlers must be set before.  This takes over the file descriptor by which the loop learns of
    signals, and passes them on.  After the context, and after the loop, a signal only sets `asked_to_end`.
    """
    hearing, writing = socket.socketpair()
    writing.setblocking(False)
    loops = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    threading.Thread(
        target=_pass_signals_on, args=(hearing, loops, grace, at_last), name="signals", daemon=True
    ).start()
    try:
        yield
    finally:
        for number in SIGNALS:
            # The loop forgets its handler, so that it doesn't restore the default action when it is closed.
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, lambda *_: asked_to_end.set())
        # Not the loop's own descriptor: it is closed soon, and Python would log each failed write to it.
        signal.set_wakeup_fd(-1)
        writing.close()


def _pass_signals_on(hearing: socket.socket, loops: int, grace: float, at_last: Callable[[], object]) -> None:
    """Pass signals on to the event loop, and end the process `grace` seconds after SIGTERM or SIGINT."""
    while numbers := _received(hearing):
        with contextlib.suppress(OSError):  # the loop may be gone already
            os.write(loops, numbers)
        if any(number in SIGNALS for number in numbers):
            asked_to_end.set()
            time.sleep(grace)
            warn(Code.HANGING_END, "some work hangs: ending without it; the rules stay")
            at_last()
            logging.shutdown()
            os._exit(0)
    with contextlib.suppress(OSError):
        hearing.close()


def _received(hearing: socket.socket) -> bytes:
    """The next signals, b"" at the end.  An agent that executes itself closes the descriptor without asking."""
    try:
        return hearing.recv(16)
    except OSError:
        return b""
