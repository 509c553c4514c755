"""One agent for each network namespace: the one that has the name of an abstract Unix socket (unix(7)).

Such names belong to the network namespace, as rules do, and to nobody once their process has ended, however it ended.
Any process may take one, and so could keep agents waiting; an agent waits only for one of its own user or of root's.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import NamedTuple

from nftproxy.kernel.unix_sockets import ROOT, peer

NAME = "\0nftproxy"


class Holder(NamedTuple):
    """Who has the lock; `process` is 0 if it isn't to be seen from here, as another container's isn't."""

    process: int
    user: int

    @property
    def is_trusted(self) -> bool:
        """Whether this may be an agent: it is root, or who we are."""
        return self.user in (ROOT, os.geteuid())


class AgentLock:
    """The lock of the network namespace of the thread that makes this; for as long as it isn't closed."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)

    def acquire(self) -> bool:
        """Take the lock, if nobody has it."""
        try:
            self._socket.bind(NAME)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        self._socket.listen()
        return True

    def fileno(self) -> int:
        """For who waits for somebody to ask: call `answer` then."""
        return self._socket.fileno()

    def answer(self) -> None:
        """Let somebody see who has the lock."""
        try:
            asking, _ = self._socket.accept()
        except OSError:
            return  # gone already
        asking.close()

    def close(self) -> None:
        """Give the lock back."""
        self._socket.close()


def holder() -> Holder | None:
    """Who has the lock now; None for nobody."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(NAME)
        except OSError as error:
            return None if error.errno == errno.ECONNREFUSED else Holder(0, ROOT)
        return Holder(*peer(asking))
