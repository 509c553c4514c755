"""File descriptors that the agent keeps for answers, for the time when it has no others.

Without them an agent at its limit of descriptors accepts no connection.  So `nftproxy status` and the probes of load
balancers would wait, and nothing would say why.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from nftproxy.kernel.process_resources import allowed_files
from nftproxy.logs import inform, warn
from nftproxy.model.codes import Code

SPARE = 4
"""Descriptors that are kept: as many answers at a time."""

_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


class Reserve:
    """Open descriptors, of which the reserve closes one whenever a connection needs it."""

    def __init__(self, size: int = SPARE, show: Callable[[Sequence[str]], None] = lambda _: None) -> None:
        """`show` gets the warnings that hold at present, whenever these change."""
        self._size = size
        self._show = show
        self._spare: list[int] = []
        self.is_short = False
        """Whether the process has no other descriptors."""
        if size:
            self.refill()

    def lend(self, error: OSError) -> bool:
        """Free a descriptor if an error says that none is left.  Return whether trying again may help."""
        if error.errno not in _NONE_LEFT or not self._size:
            return False
        if not self.is_short:
            self._note_shortage(error)
        if not self._spare:
            return False
        os.close(self._spare.pop())
        return True

    def refill(self) -> None:
        """Open missing descriptors again.  If all can be opened, note that the shortage has ended."""
        try:
            while len(self._spare) < self._size:
                self._spare.append(_open())
            os.close(_open())
        except OSError:
            return
        if self.is_short:
            self.is_short = False
            self._show(())
            inform("there are file descriptors again", of="")

    def _note_shortage(self, error: OSError) -> None:
        self.is_short = True
        text = (
            f"no file descriptor is left ({error.strerror}; this process may have {allowed_files()}): "
            f"the agent answers with {self._size} that it keeps, and can't open connections to the API"
        )
        warn(Code.NO_DESCRIPTORS, "%(text)s", of="", text=text)
        self._show([text])

    def close(self) -> None:
        """Close all descriptors."""
        while self._spare:
            os.close(self._spare.pop())


def _open() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


NO_RESERVE = Reserve(0)
"""For servers without a reserve."""
