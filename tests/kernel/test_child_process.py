"""Running a function in a network namespace of its own, in a process that may die."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nftproxy.kernel import child_process
from nftproxy.kernel.child_process import (
    ChildCrashed,
    ChildDied,
    forked_ahead,
    in_child,
    in_scratch_namespace,
    in_scratch_namespace_if_allowed,
)
from nftproxy.model.errors import Refused, Unavailable
from tests.conftest import CHECKOUT, CLONE_NEWUSER, Run

LONG = 60_000  # milliseconds: the kernel ends a process at once
notes: list[str] = []
"""Lines that a process has noted, and its forks know."""


def interfaces() -> list[str]:
    """The names of this namespace's network interfaces."""
    return [name for _, name in socket.if_nameindex()]


def add(first: int, *, second: int) -> int:
    """Add, with arguments of both kinds."""
    print("not an answer", flush=True)  # noqa: T201 -- as a library might
    return first + second


def refuse() -> None:
    """Raise an error that has fields."""
    raise Refused("No such file or directory", "add element ip nftproxy services { x }")


def abort() -> None:
    """Die as a library with a failed assertion does."""
    os.write(2, b"python: evaluate.c:1: Assertion `never' failed.\n")
    os.abort()


def be_killed() -> None:
    """Die as a process does that the kernel ends for lack of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    """Exit without a word."""
    os._exit(3)


def sleep() -> None:
    """Hang."""
    time.sleep(60)


def announce(path: Path) -> None:
    """Make a file, and hang."""
    path.touch()
    time.sleep(600)


def are_there_notes() -> bool:
    """True in a process that has noted something, and in its forks."""
    return bool(notes)


def open_files() -> list[str]:
    """The kinds of this process's open files, as "pipe", without libffi itself, which libffi 3.8 has open."""
    names = [str(each.readlink()) for each in list(Path("/proc/self/fd").iterdir()) if each.is_symlink()]
    return [name.partition(":")[0] for name in names if "/libffi.so" not in name]


def forks_and_interpreters() -> list[bool]:
    """Make three calls where two forks are ready: which were answered by a fork?"""
    notes.append("here")
    with forked_ahead(2):
        return [in_child(are_there_notes) for _ in range(3)]


def files_of_fork_and_interpreter() -> tuple[list[str], list[str]]:
    """List the open files of a fork and of a new interpreter, as children of a process with many."""
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            os.set_inheritable(stack.enter_context(socket.socket()).fileno(), True)
        with forked_ahead(1):
            return in_child(open_files), in_child(open_files)


def death_of_fork(function: Callable[[], None], timeout: float) -> str:
    """Return the error for a fork that dies of a function, as the agent's does."""
    child_process.TIMEOUT = timeout
    with forked_ahead(1):
        faulthandler.enable()
        try:
            in_child(function)
        except ChildDied as error:
            return str(error)
    return ""


def are_children_left() -> bool:
    """Use one of three forks.  Return whether this process has a child afterwards, dead or alive."""
    with forked_ahead(3):
        in_child(os.getpid)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def namespace_name() -> str:
    """The name of this process's network namespace."""
    return str(Path("/proc/self/ns/net").readlink())


def where_no_namespace_can_be_made() -> tuple[str, bool]:
    """Become root of a user namespace without the right to make namespaces, and ask for a network namespace.

    Return the error, and whether a call that needs none was in the namespace of this process.
    """
    user = os.geteuid()
    assert ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    for kind in ("user", "net"):
        Path(f"/proc/sys/user/max_{kind}_namespaces").write_text("0")
    is_in_ours = in_scratch_namespace_if_allowed(namespace_name) == namespace_name()
    try:
        in_scratch_namespace(interfaces)
    except Unavailable as error:
        return str(error), is_in_ours
    return "", is_in_ours


@pytest.mark.usefixtures("namespace")
def test_the_namespace_is_new() -> None:
    """The function sees no interface but a loopback of its own."""
    assert in_scratch_namespace(interfaces) == ["lo"]


def test_arguments_go_in_and_the_result_comes_out() -> None:
    """Arguments of both kinds arrive, and printed output is not taken for the result."""
    assert in_scratch_namespace(add, 1, second=2) == 3


def test_an_exception_comes_back_whole() -> None:
    """An exception of the function is raised here, with its fields, its text and its traceback."""
    with pytest.raises(Refused) as caught:
        in_scratch_namespace(refuse)
    assert caught.value.message == "No such file or directory"
    assert caught.value.statement == "add element ip nftproxy services { x }"
    assert str(caught.value) == str(Refused(caught.value.message, caught.value.statement))
    assert "in refuse" in caught.value.__notes__[0]


def test_a_death_by_signal_is_named_with_the_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An abort ends only the child.  The error has its last output, and neither a core file nor output is left."""
    monkeypatch.chdir(tmp_path)
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (limit[1], limit[1]))
    try:
        with pytest.raises(ChildCrashed) as caught:
            in_scratch_namespace(abort)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limit)
    assert str(caught.value) == (
        "the process that used libnftables was killed by SIGABRT: python: evaluate.c:1: Assertion `never' failed."
    )
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_an_exit_is_a_death() -> None:
    """A library that calls exit() is distinguished from an answer."""
    with pytest.raises(ChildDied, match="exited with status 3"):
        in_scratch_namespace(leave)


def test_a_hanging_child_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that gives no answer in time is ended, and counts as dead."""
    monkeypatch.setattr(child_process, "TIMEOUT", 0.5)
    with pytest.raises(ChildDied, match="no answer") as caught:
        in_scratch_namespace(sleep)
    assert not isinstance(caught.value, ChildCrashed)


def test_a_killed_child_has_not_crashed() -> None:
    """If another process, or the kernel for lack of memory, kills the child, its library isn't to blame."""
    with pytest.raises(ChildDied, match="was killed by SIGKILL") as caught:
        in_scratch_namespace(be_killed)
    assert not isinstance(caught.value, ChildCrashed)


def test_a_user_without_rights_gets_a_namespace_too(as_nobody: Run) -> None:
    """Without root a user namespace is made first, in which the function is root."""
    imports = "import os; from nftproxy.kernel.child_process import in_scratch_namespace"
    assert as_nobody(f"{imports}; print(in_scratch_namespace(os.geteuid), os.geteuid())") == "0 65534\n"


@pytest.mark.slow
@pytest.mark.usefixtures("user_namespaces")
def test_where_no_namespace_can_be_made_it_is_said() -> None:
    """If neither kind of namespace is allowed, the error names the permission.  A call that needs none is made."""
    error, is_in_ours = in_scratch_namespace(where_no_namespace_can_be_made)
    assert "it takes CAP_SYS_ADMIN, or user namespaces for all" in error
    assert is_in_ours


@pytest.mark.usefixtures("namespace")
def test_a_namespace_is_made_where_it_is_allowed() -> None:
    """A call that needs no namespace of its own gets one all the same if it can."""
    assert in_scratch_namespace_if_allowed(namespace_name) != namespace_name()


def test_forks_answer_the_first_calls() -> None:
    """Each fork answers a call.  New interpreters answer all later calls."""
    assert in_child(forks_and_interpreters) == [True, True, False]


def test_a_fork_holds_no_files_of_its_parent() -> None:
    """A fork has the open files of a new interpreter, its pipes, even if its parent's files are inheritable."""
    assert in_child(files_of_fork_and_interpreter) == (["pipe"] * 4, ["pipe"] * 4)


@pytest.mark.parametrize(
    ("function", "timeout", "expected"),
    [
        (abort, 60.0, "was killed by SIGABRT: python: evaluate.c:1: Assertion `never' failed."),
        (leave, 60.0, "exited with status 3"),
        (sys.exit, 60.0, "exited with status 1: "),
        (sleep, 0.5, "no answer from a process in 0 s"),
    ],
)
def test_the_death_of_a_fork_is_named(function: Callable[[], None], timeout: float, expected: str) -> None:
    """A fork's death is reported as that of an interpreter, without a word of the agent's handler for faults."""
    assert expected in in_child(death_of_fork, function, timeout)


def test_no_fork_is_left() -> None:
    """Forks that got no call are ended with the context, and none stays as a zombie."""
    assert not in_child(are_children_left)


def test_forks_die_with_their_parent(tmp_path: Path) -> None:
    """If the parent is killed, a fork that waits for a call ends, and a fork that is amid its call too."""
    begun = tmp_path / "begun"
    code = (
        "from pathlib import Path\n"
        "from nftproxy.kernel import child_process\n"
        "from tests.kernel.test_child_process import announce\n"
        "with child_process.forked_ahead(2):\n"
        "    print(*(child.pid for child in child_process._ahead), flush=True)\n"
        f"    child_process.in_child(announce, Path({str(begun)!r}))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as parent:
        assert parent.stdout
        forks = [os.pidfd_open(int(number)) for number in parent.stdout.readline().split()]
        while not begun.exists():
            time.sleep(0.01)
        parent.kill()
    for fork in forks:
        waiting = select.poll()
        waiting.register(fork, select.POLLIN)
        assert waiting.poll(LONG)
        os.close(fork)
    assert len(forks) == 2
