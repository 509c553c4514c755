"""Ending when asked to, whatever hangs.

SIGTERM and SIGINT end the agent in good order: the transaction that is under way is finished, sockets are closed.  But
a file on a server that is away, a name that nobody resolves, or a kernel that holds a lock can keep the event loop, or
one of the threads that Python waits for at its end, for as long as it likes.  So a thread of its own hears the signals
too, by the file descriptor into which Python's C handler writes them at once, and ends the process after a second.  The
rules stay in any case: a transaction happens as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

from nftproxy.model.codes import Code

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)

asked_to_end = threading.Event()
"""Set once one of these has come; who is about to start anew ends instead."""

GRACE = 0.8
"""Seconds from the signal until the process ends in any case: a good order takes some hundredths."""


@contextlib.contextmanager
def ends_in_any_case(grace: float = GRACE, at_last: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Have the process ended so many seconds after a signal, if it still is there; to be used inside the event loop.

    `at_last` is called before that, in another thread; it must not wait for anything.

    The loop's own handlers of the signals must be there before: it hears of signals by the file descriptor that is
    taken over here, and has them passed on.  After the end of the context a signal sets `asked_to_end`, and no more.
    """
    hearing, writing = socket.socketpair()
    writing.setblocking(False)
    loops = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_hear, args=(hearing, loops, grace, at_last), name="signals", daemon=True).start()
    try:
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, lambda *_: asked_to_end.set())
        # Not the loop's own: that is closed soon, and what Python could not write there would be in the log.
        signal.set_wakeup_fd(-1)
        writing.close()


def _hear(hearing: socket.socket, loops: int, grace: float, at_last: Callable[[], object]) -> None:
    """Pass signals on to the event loop, and end the process some time after one that asks for it."""
    with hearing:
        while numbers := hearing.recv(16):
            with contextlib.suppress(OSError):  # the loop may be gone already
                os.write(loops, numbers)
            if any(number in SIGNALS for number in numbers):
                asked_to_end.set()
                time.sleep(grace)
                log.warning(
                    "something hangs: ending without waiting for it; the rules stay", extra={"code": Code.HANGING_END}
                )
                at_last()
                logging.shutdown()
                os._exit(0)
