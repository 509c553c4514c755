"""Unix sockets that have a path: making one that only its user may connect to, and asking who is at the other end."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple

ROOT = 0
"""The user who may ask anything."""

DIRECTORY_MODE, SOCKET_MODE = 0o700, 0o600

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: process, user, group


class Peer(NamedTuple):
    """Who is at the other end of a socket; `process` is 0 if it isn't to be seen from here (another container's)."""

    process: int
    user: int


def peer(connected: socket.socket) -> Peer:
    """Who connected, or who listens where we have connected (SO_PEERCRED, unix(7))."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(found)
    return Peer(process, user)


def listen(path: Path, backlog: int) -> socket.socket:
    """A socket that listens at a path, in place of one on which nobody listens any more.

    It is made under another name, and gets this one when it listens: nobody finds one that isn't ready, or that is open
    to others.  A directory that isn't there is made, for its owner alone.

    Raises:
        OSError: it can't be made, or somebody else listens there, or there is something that is no socket.
    """
    path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    _make_sure_nobody_listens(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.unlink(missing_ok=True)
        made.bind(str(new))
        new.chmod(SOCKET_MODE)
        made.listen(backlog)
        new.rename(path)
    except BaseException:
        made.close()
        new.unlink(missing_ok=True)
        raise
    return made


def _make_sure_nobody_listens(path: Path) -> None:
    """Raise OSError if there is anything at a path but the socket of a process that has ended."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "there is something that is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.setblocking(False)
            asking.connect(str(path))
            who = peer(asking)
    except (FileNotFoundError, ConnectionRefusedError):
        return
    except BlockingIOError as error:  # so many wait that it isn't known who listens
        raise OSError(errno.EADDRINUSE, "another process listens there") from error
    raise OSError(errno.EADDRINUSE, f"process {who.process} of user {who.user} listens there")
