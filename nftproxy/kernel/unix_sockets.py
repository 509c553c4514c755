"""Unix sockets that have a path: a listener for its own user alone, and the peer of a connection."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple

ROOT = 0
"""The user who is allowed all requests."""

DIRECTORY_MODE, SOCKET_MODE = 0o700, 0o600

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: process, user, group


class Peer(NamedTuple):
    """The other end of a connection.  `process` is 0 if it can't be seen from here (another container's)."""

    process: int
    user: int


def peer(connected: socket.socket) -> Peer:
    """Return the process that connected, or that listens where we have connected (SO_PEERCRED, unix(7))."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(found)
    return Peer(process, user)


def listen(path: Path, backlog: int) -> socket.socket:
    """Return a socket that listens at a path, in place of a stale socket without a listener.

    The socket is made under another name and renamed once it listens, so a client never finds a socket that isn't ready
    or that is open to other users.  A missing directory is made, for its owner alone.

    Raises:
        OSError: the socket can't be made, another process listens there, or the path is no socket.
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
    """Raise OSError if the path has anything but the socket of a process that has ended."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that isn't a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.setblocking(False)
            asking.connect(str(path))
            who = peer(asking)
    except (FileNotFoundError, ConnectionRefusedError):
        return
    except BlockingIOError as error:  # the backlog is full, so the listener is unknown
        raise OSError(errno.EADDRINUSE, "another process listens there") from error
    raise OSError(errno.EADDRINUSE, f"process {who.process} of user {who.user} listens there")


def network_namespace() -> str:
    """Return the name of this thread's network namespace, as "net:[4026531840]", "" if it can't be read."""
    try:
        return str(Path("/proc/thread-self/ns/net").readlink())
    except OSError:
        return ""
