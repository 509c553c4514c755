"""Network namespaces without names: each is a thread of its own that has left the others' network.

Nothing is mounted or registered anywhere, so the kernel removes a namespace as soon as its thread, its processes
and its sockets are gone, however this process ends.  Two facts carry everything else:

* a socket belongs to the namespace of the thread that created it, whichever thread uses it afterwards;
* a process starts in the namespace of the thread that started it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CLONE_NEWNET = 0x40000000  # linux/sched.h; Python has os.unshare only from 3.12
NETLINK_NETFILTER, NLM_F_REQUEST, NLM_F_ACK = 12, 1, 4  # linux/netlink.h
CONNTRACK_DELETE = 1 << 8 | 2  # linux/netfilter: NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE


class LabError(Exception):
    """The lab itself failed: what it says about connections can't be relied on."""


def _leave_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        number = ctypes.get_errno()
        raise LabError(f"no network namespace: {os.strerror(number)}")


class Namespace:
    """A new network namespace and the one thread that works in it.

    Args:
        name: for humans, in thread names and errors.

    Raises:
        LabError: the namespace can't be made, usually for lack of CAP_SYS_ADMIN.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._processes: list[subprocess.Popen[Any]] = []
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"namespace {name}")
        try:
            self._executor.submit(_leave_network).result()
        except BaseException:
            self._executor.shutdown()
            raise
        self._thread_id = self.call(threading.get_native_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Namespace {self.name}>"

    @property
    def path(self) -> str:
        """The namespace as a file, while it is open: what `nsenter --net=` and `ip link ... netns` take."""
        return f"/proc/{os.getpid()}/task/{self._thread_id}/ns/net"

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns, or raises, when it runs inside the namespace; one call at a time."""
        if threading.get_native_id() == getattr(self, "_thread_id", None):
            return function(*args, **kwargs)
        return self._executor.submit(function, *args, **kwargs).result()

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket of this namespace; any thread may use it, and the caller closes it."""
        return self.call(socket.socket, family, kind, protocol)

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process inside; `options` are `subprocess.Popen`'s.

        It is killed if it still runs when the namespace is closed, and by the kernel if this process itself is killed:
        `setpriv` becomes the program, and lives no longer than the thread that started it.
        """
        leashed = ["setpriv", "--pdeathsig", "KILL", *command]
        process: subprocess.Popen[Any] = self.call(lambda: subprocess.Popen(leashed, **options))
        self._processes.append(process)
        return process

    def run(self, command: Sequence[str], text: str | None = None) -> str:
        """Standard output of a command that runs inside.

        Args:
            command: the program and its arguments.
            text: its standard input.

        Raises:
            LabError: it exits with another status than 0; the message has its standard error.
        """
        done = self.call(subprocess.run, command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"{self.name}: {' '.join(command)}: status {done.returncode}: {done.stderr}")
        return str(done.stdout)

    def ip(self, *commands: str) -> None:
        """Run `ip` commands, each without the leading "ip", as one batch that stops at the first failure."""
        self.run(["ip", "-batch", "-"], "".join(f"{command}\n" for command in commands))

    def sysctl(self, settings: dict[str, str]) -> None:
        """Write kernel settings, by their path below /proc/sys/net.

        Raises:
            OSError: this kernel hasn't one of them, or refuses the value.
        """

        def write() -> None:
            for name, value in settings.items():
                Path("/proc/sys/net", name).write_text(f"{value}\n", encoding="ascii")

        self.call(write)

    def flush_conntrack(self) -> None:
        """Make connection tracking forget every flow in this namespace."""
        # struct nlmsghdr and struct nfgenmsg; no attributes means every flow
        request = struct.pack("=IHHIIBBH", 20, CONNTRACK_DELETE, NLM_F_REQUEST | NLM_F_ACK, 0, 0, 0, 0, 0)
        with self.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink:
            netlink.send(request)
            (number,) = struct.unpack_from("=i", netlink.recv(4096), 16)  # struct nlmsgerr
        if number:
            raise LabError(f"{self.name}: conntrack was not flushed: {os.strerror(-number)}")

    def close(self) -> None:
        """Kill the processes that still run and end the thread; the namespace goes with its last socket."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._executor.shutdown()
