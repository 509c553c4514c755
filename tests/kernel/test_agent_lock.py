"""A single agent for each network namespace, by a lock that only CAP_NET_ADMIN can hold."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nftproxy.kernel.agent_lock import GROUP, INHERITED, AgentLock, LockHolder, holder
from nftproxy.model.errors import Unavailable
from nftproxy.netlink.codec import bind_log_group
from tests.conftest import CHECKOUT, Run

pytestmark = pytest.mark.usefixtures("namespace")

HOLD = (
    "import time; from nftproxy.kernel.agent_lock import *; lock = AgentLock(); print(lock.acquire(), flush=True); "
    "time.sleep(100)"
)


@contextlib.contextmanager
def another_process() -> Iterator[subprocess.Popen[str]]:
    """A process that takes the lock, in the network namespace of the test."""
    with subprocess.Popen([sys.executable, "-c", HOLD], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_agent_does_not_get_the_lock() -> None:
    """The second agent doesn't get the lock until the first gives it back."""
    first, second = AgentLock(), AgentLock()
    assert holder() is None
    assert first.acquire()
    assert first.acquire()
    assert not second.acquire()
    first.close()
    assert second.acquire()
    second.close()


def test_a_process_that_is_killed_gives_it_back() -> None:
    """The lock ends with its process, however that ends.  Until then the process is known."""
    lock = AgentLock()
    with another_process() as process:
        assert not lock.acquire()
        assert holder() == LockHolder(process.pid)
        process.kill()
        process.wait()
        assert lock.acquire()
    lock.close()


def test_only_the_right_to_change_rules_can_hold_it(as_nobody: Run) -> None:
    """A user without CAP_NET_ADMIN can take neither the lock nor a name on which agents wait, and gets the reason."""
    code = (
        "from nftproxy.kernel.agent_lock import AgentLock\n"
        "from nftproxy.model.errors import Unavailable\n"
        "try: print(AgentLock().acquire())\n"
        "except Unavailable as error: print(error)"
    )
    told = as_nobody(code)
    assert told == "this kernel has no lock for agents: it takes CAP_NET_ADMIN (Operation not permitted)\n"
    lock = AgentLock()
    assert lock.acquire()
    lock.close()


def test_a_name_that_anybody_may_take_is_no_lock() -> None:
    """A process that binds the abstract name of an agent's socket keeps no agent waiting."""
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind("\0nftproxy")
        lock = AgentLock()
        assert lock.acquire()
        lock.close()


def test_a_kernel_without_the_log_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nfnetlink_log in the kernel there is no lock, and the error names the module and how to load it."""
    request = bytearray(bind_log_group(GROUP))
    request[5] = 0x7F  # a subsystem that no kernel has: this one answers as it would without nfnetlink_log
    monkeypatch.setattr("nftproxy.kernel.agent_lock.bind_log_group", lambda _: bytes(request))
    with (
        contextlib.closing(AgentLock()) as lock,
        pytest.raises(Unavailable, match=r"no nfnetlink_log \(Invalid argument\): unless .*`modprobe nfnetlink_log`"),
    ):
        lock.acquire()


def test_the_lock_survives_exec() -> None:
    """A process that executes itself keeps the lock: no other process gets it in between."""
    code = (
        "import os, sys\n"
        "from nftproxy.kernel.agent_lock import AgentLock\n"
        "lock = AgentLock.of_this_process()\n"
        "print(lock.acquire(), flush=True)\n"
        "input()\n"
        "lock.keep_over_exec()\n"
        "os.execv(sys.executable, sys.orig_argv)"
    )
    other = AgentLock()
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=CHECKOUT, text=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == "True\n"
            assert holder() == LockHolder(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            for _ in range(100):
                assert not other.acquire()
        process.kill()
    assert other.acquire()
    other.close()


@pytest.mark.parametrize("text", ["", "999", "x"])
def test_an_inherited_descriptor_must_be_a_lock(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file descriptor that isn't there, or is none, counts as none: the lock is acquired as ever."""
    monkeypatch.setenv(INHERITED, text)
    lock = AgentLock.of_this_process()
    assert INHERITED not in os.environ
    assert lock.acquire()
    lock.close()
