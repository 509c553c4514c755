"""The lab's network namespaces: they can run processes and flush conntrack."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Sequence
from typing import Any

from nftproxy.kernel.namespace import NetworkNamespace
from nftproxy.model.errors import Unavailable

NETLINK_NETFILTER, NLM_F_REQUEST, NLM_F_ACK = 12, 1, 4  # linux/netlink.h
CONNTRACK_DELETE = 1 << 8 | 2  # linux/netfilter: NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE


class LabError(Unavailable):
    """The lab itself failed, so outcomes of connections are unknown."""


class Namespace(NetworkNamespace):
    """A network namespace in which processes may run.  Arguments and errors are those of the base class."""

    def __init__(self, name: str) -> None:
        self._processes: list[subprocess.Popen[Any]] = []
        super().__init__(name)

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in the namespace, with options of `subprocess.Popen`.

        It is killed if it still runs when the namespace is closed, and by the kernel if this process itself is killed:
        `setpriv` becomes the program, and lives no longer than the thread that started it.
        """
        leashed = ["setpriv", "--pdeathsig", "KILL", *command]
        process: subprocess.Popen[Any] = self.call(lambda: subprocess.Popen(leashed, **options))
        self._processes.append(process)
        return process

    def flush_conntrack(self) -> None:
        """Delete every conntrack entry in this namespace."""
        # struct nlmsghdr and struct nfgenmsg.  Without attributes it deletes every flow.
        request = struct.pack("=IHHIIBBH", 20, CONNTRACK_DELETE, NLM_F_REQUEST | NLM_F_ACK, 0, 0, 0, 0, 0)
        with self.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink:
            netlink.send(request)
            (number,) = struct.unpack_from("=i", netlink.recv(4096), 16)  # struct nlmsgerr
        if number:
            raise LabError(f"{self.name}: conntrack was not flushed: {os.strerror(-number)}")

    def close(self) -> None:
        """Kill the processes that still run, and end the thread.  The namespace goes with its last socket."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        super().close()
