"""Run a function in a process that may die, and in a network namespace of its own.

The child is a new interpreter: a fork of a process with threads may hang (and warns since Python 3.12), and only a
process without threads can enter a user namespace.  A spawned `multiprocessing` child runs the caller's main module
again and leaves a tracker process behind.  The function, its arguments and its result travel as pickles, so the
function must be importable by name.

A new interpreter takes 45 ms of processor time, a fork 2 ms.  So an agent forks the children for its start while it has
no threads yet (`forked_ahead`).  They wait for their calls as a new interpreter does.

A new network namespace needs CAP_SYS_ADMIN.  Without it the child makes a user namespace first, in which it is root.
libnftables behaves the same there, except for a smaller limit on a transaction (libnftables.py, TooLarge).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

from nftproxy.kernel.process_resources import allowed_files
from nftproxy.model.errors import Unavailable

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4  # linux/prctl.h
LAST_WORDS = 300  # characters of a dead child's standard error that are worth repeating
TIMEOUT = 120.0  # seconds: loading 400,000 elements twice and listing them takes 20
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ChildDied(Unavailable):
    """The child ended without an answer: by a signal, of its own accord, or because its time was up."""


class ChildCrashed(ChildDied):
    """The child ended by a signal of `CRASHES`: the function, or the library that it calls, is at fault."""


def in_scratch_namespace(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Call an importable function in a new network namespace, which goes away with the process that it runs in.

    Blocks for as long as that takes, at most `TIMEOUT`.

    Raises:
        ChildDied: the function, or the library that it calls, took the process down.
        Unavailable: this process may not make network namespaces.
        Exception: what the function raises, with the child's traceback as a note.
    """
    return _run_in_child(pickle.dumps((_enter_scratch_namespace, function, args, kwargs)))  # type: ignore[return-value]


def in_scratch_namespace_if_allowed(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """`in_scratch_namespace`, or `in_child` where this process may not make network namespaces."""
    return _run_in_child(pickle.dumps((_enter_if_allowed, function, args, kwargs)))  # type: ignore[return-value]


def in_child(function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
    """Call an importable function in a process that may die, in the network namespace of this process.

    Raises:
        ChildDied: the function, or the library that it calls, took the process down.
        Exception: what the function raises, with the child's traceback as a note.
    """
    return _run_in_child(pickle.dumps((_stay, function, args, kwargs)))  # type: ignore[return-value]


@contextlib.contextmanager
def forked_ahead(count: int) -> Iterator[None]:
    """Fork the children of the next `count` calls now, in a process without threads.

    A child has no files of this process, and none of its later memory.  The end of the context ends unused children.
    """
    with contextlib.suppress(Unavailable):  # each call tries again
        _ahead.extend(_start(_serve) for _ in range(count))
    try:
        yield
    finally:
        while child := _forked():
            with child:
                child.kill()


_ahead: list[subprocess.Popen[bytes]] = []


def _forked() -> subprocess.Popen[bytes] | None:
    try:
        return _ahead.pop()
    except IndexError:
        return None


def _serve() -> NoReturn:
    """Run in a fork: answer a call, and never execute the program."""
    try:
        _die_with_parent()
        os.closerange(3, allowed_files())  # `Popen` waits until its pipe among these is closed
        answer()
        os._exit(0)
    except BaseException:  # noqa: BLE001 -- nothing of the parent's code may follow
        traceback.print_exc()
    finally:
        os._exit(1)


def _start(instead: Callable[[], NoReturn] | None = None) -> subprocess.Popen[bytes]:
    """Start a child that waits for a call: a new interpreter, or a fork that runs `instead`."""
    script = f"import sys; sys.path[:] = {sys.path!r}; from nftproxy.kernel.child_process import answer; answer()"
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            [sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=instead
        )
    except OSError as error:
        raise Unavailable(f"no process can be started: {error.strerror or error}") from error


def _run_in_child(call: bytes) -> object:
    with _forked() or _start() as child:
        try:
            output, last_words = child.communicate(call, TIMEOUT)
        except subprocess.TimeoutExpired:
            child.kill()
            raise ChildDied(f"no answer from a process in {TIMEOUT:.0f} s") from None
    if not output:
        kind = ChildCrashed if -child.returncode in CRASHES else ChildDied
        raise kind(_cause_of_death(child.returncode, last_words.decode(errors="replace")))
    succeeded, value = pickle.loads(output)
    if not succeeded:
        raise value
    return value


def _cause_of_death(code: int, last_words: str) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    words = last_words.strip()[-LAST_WORDS:].replace("\n", "; ")
    return f"the process that used libnftables {how}" + (f": {words}" if words else "")


def answer() -> None:
    """Run in the child: read a call from standard input, make it in its namespace, and write the outcome."""
    output = os.dup(1)
    os.dup2(2, 1)  # other output is not the answer
    try:
        with os.fdopen(0, "rb", closefd=False) as call:  # not sys.stdin, which is the parent's in a fork
            enter_namespace, function, args, kwargs = pickle.load(call)
        enter_namespace()
        _die_with_parent()  # anew, as a new user namespace clears it
        _leave_no_core()
        outcome = True, function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 -- the caller gets it
        error.add_note(f"In the network namespace's process:\n{traceback.format_exc()}")
        outcome = False, error
    with os.fdopen(output, "wb") as file:
        file.write(pickle.dumps(outcome))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _leave_no_core() -> None:
    """Let a crash of a library, which may be expected, leave no core file and start no collector of cores."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _stay() -> None:
    pass


def _enter_if_allowed() -> None:
    with contextlib.suppress(Unavailable):
        _enter_scratch_namespace()


def _enter_scratch_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(CLONE_NEWNET)
        return
    except OSError:
        pass  # no CAP_SYS_ADMIN, but everyone has it in a user namespace of their own
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")  # the condition for mapping a group, see user_namespaces(7)
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        raise Unavailable(
            f"can't make a network namespace ({error.strerror}): it takes CAP_SYS_ADMIN, or user namespaces for all"
        ) from error


def unshare(flags: int) -> None:
    """Give this thread namespaces of its own.  `flags` are CLONE_NEWNET and the like.

    Raises:
        OSError: it may not.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:  # os.unshare is there since Python 3.12
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
