"""Our programs as processes in a network namespace: the agent above all, and the cost of its processes."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nftproxy_conformance.lab import Namespace

from tests.support.waiting import PATIENCE, wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
Number = TypeVar("Number", int, float)
_PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED of Linux, include/linux/posix-timers_types.h: the low bits of the clock of another process."""


def start_module(namespace: Namespace, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
    """Start `python -m` with these arguments in a namespace.  `options` are those of `subprocess.Popen`."""
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)} | options.pop("env", {})
    return namespace.popen([sys.executable, "-m", *arguments], cwd=CHECKOUT, env=environment, **options)


@contextmanager
def killed_on_error(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill a process if the context ends by an error.  Else `with Popen` would wait for the process for ever."""
    try:
        yield
    except BaseException:
        kill(process)
        raise


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a process, and wait for its end."""
    process.kill()
    process.wait()


class KilledAtEnd:
    """A context manager that kills its process, which `__enter__` of the subclass starts."""

    _process: subprocess.Popen[Any]

    def __exit__(self, *_: object) -> None:
        kill(self._process)


class AgentProcess:
    """`nftproxy run` in a node's namespace.  It can be started again, and all its lives append to the same log.

    Args:
        namespace: the node's.
        log_path: the file of its log.
        module: the program, if it isn't `nftproxy` itself.
    """

    def __init__(self, namespace: Namespace, log_path: Path, module: str = "nftproxy") -> None:
        self.log_path = log_path
        self._namespace = namespace
        self._program = module
        self._process: subprocess.Popen[Any] | None = None

    def launch(self, *arguments: str) -> None:
        """Start the process with these options, and don't wait."""
        self._process = self.start_another(*arguments)

    def start_another(self, *arguments: str) -> subprocess.Popen[Any]:
        """Start another agent beside it, which writes to the same log."""
        with self.log_path.open("a") as log:
            return start_module(self._namespace, self._program, "run", *arguments, stdout=log, stderr=log)

    @property
    def process_id(self) -> int:
        """The number of the process, which must be running."""
        assert self._process is not None
        assert self._process.poll() is None, f"the agent has ended by itself: {self.log()}"
        return self._process.pid

    @property
    def pid(self) -> int | None:
        """The number of the last process that was launched, None if none was, or somebody has waited for its end."""
        return None if self._process is None else self._process.pid

    @property
    def is_stopped(self) -> bool:
        """Whether no process has been launched, or somebody has waited for the end of the last process."""
        return self._process is None

    @property
    def has_died(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def stop(self, *, may_be_starting: bool = False) -> None:
        """End it by SIGTERM, as the kubelet does.  Python dies of that before it has set its handler."""
        self.terminate()
        status = self.await_end()
        assert status in ((0, -signal.SIGTERM) if may_be_starting else (0,)), f"status {status}: {self.log()}"

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        os.kill(self.process_id, signal.SIGTERM)

    def kill(self) -> None:
        """End the process by SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self.await_end()

    def await_end(self) -> int:
        """Wait for its end, and return its exit status.  A process that hangs is killed, and this raises."""
        assert self._process is not None
        process, self._process = self._process, None
        with killed_on_error(process):
            return process.wait(PATIENCE)

    def log(self) -> str:
        """The output so far."""
        return self.log_path.read_text()

    @contextmanager
    def logging(self, text: str, times: int = 1) -> Iterator[None]:
        """At the end of the context wait until the log has the text `times` more times than at its beginning."""
        before = self.log().count(text)
        yield
        wait_until(lambda: self.log().count(text) >= before + times, self.log)

    def check_log(self) -> None:
        """Assert that it has logged no error and no traceback."""
        errors = [line for line in self.log().splitlines() if " ERROR " in line or line.startswith("Traceback")]
        assert not errors, self.log()

    # Its cost, with all the processes that it has started

    @property
    def cpu(self) -> float:
        """User and system time so far, in seconds."""
        return _sum_of_family(self.process_id, cpu_seconds)

    @property
    def resident(self) -> int:
        """Resident memory in bytes."""
        return memory(self.process_id)

    @property
    def peak(self) -> int:
        """The greatest that resident memory has been, in bytes."""
        return _sum_of_family(self.process_id, partial(_memory, "VmHWM"))


def cpu_seconds(process_id: int) -> float:
    """The processor time that a process has taken, to the nanosecond (clock_getcpuclockid(3)).

    The times in /proc/PID/stat are counted in ticks of 10 ms, and a change takes a fifth of a tick.
    """
    return time.clock_gettime(~process_id << 3 | _PROCESS_CLOCK)


def memory(process_id: int) -> int:
    """The resident memory of a process in bytes, with the pages that processes it has started have for themselves."""
    return _sum_of_family(process_id, lambda each: _memory("VmRSS", each) if each == process_id else _own_pages(each))


@contextmanager
def no_files_left() -> Iterator[None]:
    """Let this process have as many files open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (1 + max(int(each.name) for each in Path("/proc/self/fd").iterdir()), hard)
        )
        with suppress(OSError):
            while True:
                opened.append(os.dup(opened[0]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in opened:
            os.close(each)


def peak_growth() -> Callable[[], int]:
    """Begin the peak of this process's resident memory anew.  The function returns its growth since in bytes.

    The peak of getrusage(2) never begins anew.  After a greater peak of an earlier test it would hide growth.
    """
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): begin VmHWM anew
    before = _memory("VmHWM", os.getpid())
    return lambda: _memory("VmHWM", os.getpid()) - before


def _own_pages(process_id: int) -> int:
    text = Path(f"/proc/{process_id}/smaps_rollup").read_text()
    return 1024 * sum(int(size) for size in re.findall(r"^Private_\w+: +(\d+) kB$", text, re.MULTILINE))


def _sum_of_family(process_id: int, figure: Callable[[int], Number]) -> Number:
    """The sum over a process and all that it has started, without those that end meanwhile."""
    total = figure(process_id)
    for task in Path(f"/proc/{process_id}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                with suppress(OSError):
                    total += _sum_of_family(int(child), figure)
    return total


def _memory(name: str, process_id: int) -> int:
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
