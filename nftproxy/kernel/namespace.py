"""Anonymous network namespaces: each is a thread that has left the network of this process.

Nothing is mounted or registered, so the kernel removes a namespace as soon as its thread, its processes and its sockets
are gone, however this process ends.  Two facts make it work:

* A socket belongs to the namespace of the thread that created it.  Any thread may use it afterwards.
* A process starts in the namespace of the thread that started it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

from nftproxy.kernel.child_process import CLONE_NEWNET, unshare
from nftproxy.model.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")


class NetworkNamespace:
    """A new network namespace and its thread.

    Args:
        name: for thread names and errors.

    Raises:
        Unavailable: the namespace can't be made, usually for lack of CAP_SYS_ADMIN.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"namespace {name}")
        try:
            self._executor.submit(unshare, CLONE_NEWNET).result()
        except OSError as error:
            self._executor.shutdown()
            raise Unavailable(f"no network namespace: {error.strerror}") from error
        self._thread_id = self.call(threading.get_native_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Namespace {self.name}>"

    @property
    def path(self) -> str:
        """The namespace as a file, for `nsenter --net=` and `ip link ... netns`."""
        return f"/proc/{os.getpid()}/task/{self._thread_id}/ns/net"

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` inside the namespace, one call at a time, and return its result."""
        if threading.get_native_id() == getattr(self, "_thread_id", None):
            return function(*args, **kwargs)
        return self._executor.submit(function, *args, **kwargs).result()

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket of this namespace.  Any thread may use it, and the caller closes it."""
        return self.call(socket.socket, family, kind, protocol)

    def run(self, command: Sequence[str], text: str | None = None) -> str:
        """Run a command inside, and return its standard output.

        Args:
            command: the program and its arguments.
            text: its standard input.

        Raises:
            Unavailable: its exit status isn't 0.  The message has its standard error.
        """
        done = self.call(subprocess.run, command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"{self.name}: {' '.join(command)}: status {done.returncode}: {done.stderr}")
        return str(done.stdout)

    def ip(self, *commands: str) -> None:
        """Run `ip` commands, each without the leading "ip", as one batch that stops at the first failure."""
        self.run(["ip", "-batch", "-"], "".join(f"{command}\n" for command in commands))

    def sysctl(self, settings: Mapping[str, str]) -> None:
        """Write kernel settings, by their path below /proc/sys/net.

        Raises:
            OSError: this kernel lacks a setting, or refuses the value.
        """

        def write() -> None:
            for name, value in settings.items():
                Path("/proc/sys/net", name).write_text(f"{value}\n", encoding="ascii")

        self.call(write)

    def close(self) -> None:
        """End the thread.  The namespace goes with its last socket and process."""
        self._executor.shutdown()
