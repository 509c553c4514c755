"""One agent for each network namespace."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nftproxy.kernel.agent_lock import AgentLock, holder
from tests.conftest import CHECKOUT, NOBODY

HOLD = (
    "import time; from nftproxy.kernel.agent_lock import *; lock = AgentLock(); print(lock.acquire(), flush=True); "
    "time.sleep(100)"
)


@contextlib.contextmanager
def another_process(*, user: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that takes the lock, in the network namespace that the test is in."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, user=user, group=user
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("namespace")
def test_the_second_does_not_get_it() -> None:
    """Who comes second doesn't get the lock, until the first gives it back."""
    first, second = AgentLock(), AgentLock()
    assert holder() is None
    assert first.acquire()
    assert not second.acquire()
    first.close()
    assert second.acquire()
    second.close()


@pytest.mark.usefixtures("namespace")
def test_a_process_that_is_killed_gives_it_back() -> None:
    """However a process ends, its lock ends with it; until then others see which process has it."""
    lock = AgentLock()
    with another_process() as process:
        assert not lock.acquire()
        found = holder()
        assert found is not None
        assert (found.process, found.user, found.is_trusted) == (process.pid, os.geteuid(), True)
        process.kill()
        process.wait()
        assert lock.acquire()
    lock.close()


@pytest.mark.usefixtures("namespace")
def test_another_user_is_not_trusted() -> None:
    """Somebody who is neither root nor the agent's own user can't keep it waiting."""
    if not os.access(CHECKOUT, os.X_OK):
        pytest.skip("nobody may not read this checkout")
    with another_process(user=NOBODY):
        found = holder()
        assert found is not None
        assert (found.user, found.is_trusted) == (NOBODY, False)


@pytest.mark.usefixtures("namespace")
def test_many_may_ask_who_has_it() -> None:
    """However many ask, each gets an answer, also while the holder is busy and after it was."""
    lock = AgentLock()
    assert lock.acquire()
    for _ in range(1000):
        found = holder()
        assert found is not None
        assert found.is_trusted
        lock.answer()
    lock.answer()  # nobody asks
    assert None not in [holder() for _ in range(1000)]
    lock.close()
