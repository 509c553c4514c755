"""A lock that admits a single agent to each network namespace.

The lock is a group of the kernel's packet log (nfnetlink_log) to which no rule logs.  It fits for three reasons:

* Only a process with CAP_NET_ADMIN in the network namespace can bind a group, so no other process can keep agents
  waiting.
* A group has a single socket at a time, and the kernel releases it with the socket, however the process ends.
* A group belongs to the network namespace, as rules do.

A table with the flag `owner` has the same properties, but `nft -j` of nft 1.0.6 reads past an array when it prints that
flag, so it could crash other programs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from pathlib import Path
from typing import NamedTuple, Self

from nftproxy.kernel.nfnetlink.modules import advice
from nftproxy.kernel.nfnetlink.sockets import NETLINK_NETFILTER, bodies, open_socket
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_tables
from nftproxy.netlink.codec import ACKNOWLEDGE, bind_log_group

GROUP = 0x6E66
"""The group's number ("nf"), of 65,536.  Programs that log packets use small ones."""
INHERITED = "NFTPROXY_LOCK"
"""The environment variable that names the lock's file descriptor to the next program image of this process."""


class LockHolder(NamedTuple):
    """The process that has the lock.  `process` is 0 if it can't be seen from here, as another container's can't."""

    process: int


class AgentLock:
    """The lock of the network namespace of the thread that makes this, until it is closed."""

    def __init__(self, inherited: socket.socket | None = None) -> None:
        """Open the socket, unless it is inherited from the previous program image.

        Raises:
            OSError: no socket can be opened.
        """
        self._socket = inherited or open_socket()

    @classmethod
    def of_this_process(cls) -> Self:
        """The lock that this process held before it executed itself, or one that is yet to be acquired."""
        number = os.environ.pop(INHERITED, "")
        with contextlib.suppress(OSError, ValueError):
            left = socket.socket(fileno=int(number))
            if left.family == socket.AF_NETLINK:
                left.set_inheritable(False)
                return cls(left)
            left.detach()  # another kind of socket is not ours
        return cls()

    def acquire(self) -> bool:
        """Take the lock, if no other process has it.  True also if this process has it already.

        Raises:
            Unavailable: this kernel has no such lock, or the process lacks CAP_NET_ADMIN.
        """
        try:
            for _ in bodies(self._socket, bind_log_group(GROUP)):
                pass
        except OSError as error:
            if error.errno == errno.EBUSY:  # bound by this very socket
                return True
            if error.errno == errno.EPERM and _is_permitted(self._socket):
                return False
            why = "it takes CAP_NET_ADMIN" if error.errno == errno.EPERM else "it has no nfnetlink_log"
            why += f" ({error.strerror}){advice(error, 'nfnetlink_log')}"
            raise Unavailable(f"this kernel has no lock for agents: {why}") from error
        return True

    def keep_over_exec(self) -> int:
        """Pass the lock to the next program image of this process.  Return the file descriptor that must stay open."""
        number = self._socket.detach()
        os.set_inheritable(number, True)
        os.environ[INHERITED] = str(number)
        return number

    def close(self) -> None:
        """Give the lock back."""
        self._socket.close()


def holder() -> LockHolder | None:
    """Return the present holder of the lock, or None.

    Raises:
        Unavailable: as `AgentLock.acquire`.
    """
    with contextlib.closing(AgentLock()) as asking:
        return None if asking.acquire() else LockHolder(_process())


def _is_permitted(kernel: socket.socket) -> bool:
    """True if this process may ask nfnetlink anything.  So "not permitted" means that the group is taken."""
    try:
        for _ in bodies(kernel, nf_tables.request(nf_tables.GET_GENERATION, ACKNOWLEDGE, 0)):
            pass
    except OSError:
        return False
    return True


def _process() -> int:
    """Return the process that has bound the group, found by the socket's port and inode, or 0 if unknown."""
    with contextlib.suppress(OSError):
        rows = map(str.split, Path("/proc/net/netfilter/nfnetlink_log").read_text().splitlines())
        ports = {row[1] for row in rows if row[0] == str(GROUP)}
        sockets = map(str.split, Path("/proc/net/netlink").read_text().splitlines()[1:])
        inodes = {row[-1] for row in sockets if row[1] == str(NETLINK_NETFILTER) and row[2] in ports}
        wanted = re.compile(rf"socket:\[(?:{'|'.join(inodes)})\]") if inodes else None
        for found in Path("/proc").glob("[0-9]*/fd/*") if wanted else ():
            with contextlib.suppress(OSError):
                if wanted and wanted.fullmatch(str(found.readlink())):
                    return int(found.parts[2])
    return 0
