"""The standard streams of a command: each is open, and an agent never waits for a reader of its errors."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import NoReturn

import click

from nftproxy.logs import UnblockedFile

_NAMES = ("stdin", "stdout", "stderr")
_LEAST_WAIT = struct.pack("@ll", 0, 1000)
"""A socket's time limit for a write (SO_SNDTIMEO), a struct timeval: a millisecond.  Zero is no limit."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed.  Else the next open file would have its number."""
    for number, name in enumerate(_NAMES):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def unblock_errors() -> None:
    """From now on, drop the errors of this process, and tracebacks, that would have to wait for a reader.

    A runtime that no longer reads standard error would else keep an agent that ends with an error from ending.
    """
    if sys.__stderr__ and sys.stderr is sys.__stderr__:
        descriptor = sys.stderr.fileno()
        _unblock(descriptor)
        sys.stderr = io.TextIOWrapper(
            UnblockedFile(descriptor), "utf-8", errors="backslashreplace", line_buffering=True
        )


def _unblock(descriptor: int) -> None:
    """Let no write to standard error wait.  The last words of a library or of faulthandler would else stop a crash.

    O_NONBLOCK would count for all processes that have the open file, so a pipe or terminal is opened anew.  A pipe of
    another user, or without /proc, can't be.  There `UnblockedFile` asks before each write.
    """
    mode = os.fstat(descriptor).st_mode
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(mode):
            with socket.socket(fileno=os.dup(descriptor)) as stream:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _LEAST_WAIT)
        elif not stat.S_ISREG(mode):
            again = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            os.dup2(again, descriptor)
            os.close(again)


def give_up_output(error: OSError) -> NoReturn:
    """End a command whose output can't be written: with status 1 if nobody reads it any more, as click does.

    Raises:
        click.ClickException: the output has no room.
        OSError: it is another error.
    """
    if error.errno not in (*_NO_ROOM, errno.EPIPE):
        raise error
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # for the rest, which the interpreter writes at its end
    if error.errno == errno.EPIPE:
        sys.exit(1)
    raise click.ClickException(f"standard output: {error.strerror}") from error
