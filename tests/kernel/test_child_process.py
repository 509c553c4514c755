"""Running a function in a network namespace of its own, in a process that may die."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import time
from pathlib import Path

import pytest

from nftproxy.kernel import child_process
from nftproxy.kernel.child_process import ChildDied, in_scratch_namespace
from nftproxy.model.errors import Refused, Unavailable
from tests.conftest import CLONE_NEWUSER, Run


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


def leave() -> None:
    """Exit without a word."""
    os._exit(3)


def sleep() -> None:
    """Hang."""
    time.sleep(60)


def where_no_namespace_can_be_made() -> str:
    """Become root of a user namespace that may have no namespaces, and ask for one."""
    user = os.geteuid()
    assert ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    for kind in ("user", "net"):
        Path(f"/proc/sys/user/max_{kind}_namespaces").write_text("0")
    try:
        in_scratch_namespace(interfaces)
    except Unavailable as error:
        return str(error)
    return ""


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
        with pytest.raises(ChildDied) as caught:
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
    with pytest.raises(ChildDied, match="no answer"):
        in_scratch_namespace(sleep)


def test_a_user_without_rights_gets_a_namespace_too(as_nobody: Run) -> None:
    """Without root a user namespace is made first, in which the function is root."""
    imports = "import os; from nftproxy.kernel.child_process import in_scratch_namespace"
    assert as_nobody(f"{imports}; print(in_scratch_namespace(os.geteuid), os.geteuid())") == "0 65534\n"


@pytest.mark.usefixtures("user_namespaces")
def test_where_no_namespace_can_be_made_it_is_said() -> None:
    """If neither kind of namespace is allowed, the error names the needed permission."""
    assert "it takes CAP_SYS_ADMIN, or user namespaces for all" in in_scratch_namespace(where_no_namespace_can_be_made)
