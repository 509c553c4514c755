"""The lab's network namespaces: they can run processes and flush conntrack."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from nftproxy.kernel.namespace import NetworkNamespace
from nftproxy.kernel.nfnetlink.sockets import bodies, open_socket
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import nf_conntrack
from nftproxy.netlink.codec import ACKNOWLEDGE, request


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
        asked = request(nf_conntrack.SUBSYSTEM, nf_conntrack.DELETE, ACKNOWLEDGE, socket.AF_UNSPEC)  # of all flows
        try:
            with self.call(open_socket) as netlink:
                list(bodies(netlink, asked))
        except OSError as error:
            raise LabError(f"{self.name}: conntrack was not flushed: {error.strerror}") from error

    def close(self) -> None:
        """Kill the processes that still run, and end the thread.  The namespace goes with its last socket."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        super().close()
