"""The standard streams of the program: closed, full, stuck or without a reader."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT

PROGRAM = [sys.executable, "-m", "nftproxy"]
EXAMPLE = CHECKOUT / "examples" / "cluster-ip"
RENDER = ["render", str(EXAMPLE / "manifests"), "--config", str(EXAMPLE / "config.yaml"), "--node", "node-a"]


def shell(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program with a redirection of bash."""
    command = ["bash", "-c", f'"$@" {redirection}', "bash", *PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, check=False)


@pytest.fixture
def stuck() -> Iterator[int]:
    """The writing end of a full pipe that nobody reads."""
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * size)
    yield writing
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("arguments", [["--config", "{bad}"], ["--no-such-flag"], ["--cleanup=perhaps"]])
def test_an_agent_that_ends_waits_for_no_reader_of_its_error(tmp_path: Path, stuck: int, arguments: list[str]) -> None:
    """`run` ends with status 2 although nobody reads its errors: of the configuration, of flags, and of a flag."""
    bad = tmp_path / "config.yaml"
    bad.write_text("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: [5]\n")
    command = [*PROGRAM, "run", *(each.format(bad=bad) for each in arguments)]
    assert subprocess.run(command, stderr=stuck, cwd=CHECKOUT, check=False, timeout=120).returncode == 2


def _sockets() -> tuple[int, int]:
    """The reading and the writing end of a stream that is full."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            writing.send(b"x" * 1024)
    writing.setblocking(True)
    return reading.detach(), writing.detach()


LAST_WORDS = """\
import faulthandler, os, sys
from nftproxy.commands.standard_streams import unblock_errors
unblock_errors()
faulthandler.enable()
sys.stderr.write("x" * 10**6)
os.abort()
"""


@pytest.mark.parametrize("pair", [os.pipe, pty.openpty, _sockets])
def test_a_crash_waits_for_no_reader_of_its_last_words(pair: Callable[[], tuple[int, int]]) -> None:
    """A pipe, terminal or socket that nobody reads keeps no process from its end, and blocks others as before."""
    reading, writing = pair()
    command = [sys.executable, "-c", LAST_WORDS]
    assert subprocess.run(command, stderr=writing, cwd=CHECKOUT, check=False, timeout=120).returncode == -signal.SIGABRT
    assert os.get_blocking(writing)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_a_log_that_can_not_be_written(tmp_path: Path, redirection: str) -> None:
    """`run` does its work with standard error closed or full, and no other file has its number."""
    file = tmp_path / "written"
    assert shell(redirection, "run", "--v=6", "--write-config-to", str(file)).returncode == 0
    assert file.read_text().startswith("apiVersion: kubeproxy.config.k8s.io/v1alpha1\n")


@pytest.mark.parametrize("redirection", ["2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_children_have_the_streams_that_were_closed(tmp_path: Path, redirection: str) -> None:
    """A closed stream is /dev/null, for the processes that the program executes too."""
    file = tmp_path / "streams"
    child = f"[os.readlink(f'/proc/self/fd/{{number}}') for number in {[0, 2]}]"
    code = (
        "import os, sys\nfrom nftproxy.commands.standard_streams import open_closed_streams\nopen_closed_streams()\n"
        f"os.execv(sys.executable, [sys.executable, '-c', \"import os; open('{file}', 'w').write(str({child}))\"])"
    )
    command = ["bash", "-c", f'"$@" {redirection}', "bash", sys.executable, "-c", code]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=CHECKOUT, check=True)
    assert file.read_text() == "['/dev/null', '/dev/null']"


@pytest.mark.parametrize("arguments", [["version"], RENDER])
def test_output_without_room(arguments: list[str]) -> None:
    """A full disk is an error with status 2, whether the output is longer than a buffer or not."""
    done = shell(">/dev/full", *arguments)
    assert (done.returncode, done.stderr) == (2, "Error: standard output: No space left on device\n")


def test_output_that_nobody_reads() -> None:
    """A closed standard output is no error, and a reader that has ended is status 1 without a word."""
    done = shell(">&-", *RENDER)
    assert (done.returncode, done.stderr) == (0, "")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*PROGRAM, *RENDER], stdout=writing, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
