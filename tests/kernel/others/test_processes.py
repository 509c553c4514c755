"""Processes are found by their program, where they share our network and are worth believing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nftproxy.kernel.others.processes import Process, processes_called
from tests.conftest import NOBODY

WAIT = "import sys; print(flush=True); sys.stdin.read()"
PYTHON = str(Path(sys.executable).resolve())


@contextlib.contextmanager
def running(name: str, *, user: int = 0) -> Iterator[int]:
    """A process that was started under this name.  Yields its number."""
    arguments = [name, "-c", WAIT, "--flag"]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, executable=PYTHON, stdin=pipe, stdout=pipe, user=user) as process:
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.communicate()


@pytest.mark.usefixtures("namespace")
def test_a_process_by_its_program() -> None:
    """A process is found by the last part of its path, with its arguments.  Other processes are not."""
    with running("/usr/local/bin/kube-proxy") as number, running("kube-proxy-2"):
        (found,) = processes_called("kube-proxy")
    assert found == Process(number, ("/usr/local/bin/kube-proxy", "-c", WAIT, "--flag"))
    assert found.path("/etc/file") == Path(f"/proc/{number}/root/etc/file")
    assert list(processes_called("kube-proxy")) == []


@pytest.mark.usefixtures("namespace")
def test_another_users_process_is_not_believed() -> None:
    """A process that anybody could have started under this name says nothing."""
    with running("kube-proxy", user=NOBODY):
        assert list(processes_called("kube-proxy")) == []


def test_another_network_is_not_ours(request: pytest.FixtureRequest) -> None:
    """A process of another network namespace is no neighbour."""
    if os.geteuid():
        pytest.skip("starting it takes root")
    with running("kube-proxy-of-the-test"):
        assert len(list(processes_called("kube-proxy-of-the-test"))) == 1
        request.getfixturevalue("namespace")
        assert list(processes_called("kube-proxy-of-the-test")) == []
