"""A process ends on a signal, even if its loop or a thread hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from nftproxy.agent.lifecycle import shutdown
from tests.support.processes import killed_on_error
from tests.support.waiting import PATIENCE

LOOP = "time.sleep(3600)"
THREAD = "await asyncio.to_thread(time.sleep, 3600)"
IN_ORDER = "await asyncio.sleep(0)"
PROGRAM = """
import asyncio, logging, signal, sys, time
from nftproxy.agent.lifecycle.shutdown import SIGNALS, ends_in_any_case

async def main():
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    with ends_in_any_case(1.0, lambda: print("at last", flush=True)):
        print("ready", flush=True)
        {work}
        await stopping.wait()
        print("in good order", flush=True)

logging.basicConfig(stream=sys.stdout)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("work", "said"),
    [(IN_ORDER, "in good order"), (LOOP, "some work hangs"), (THREAD, "some work hangs")],
    ids=["in order", "the loop hangs", "a thread hangs"],
)
def test_ends_in_any_case(work: str, said: str, number: int) -> None:
    """A process ends in good order if it can, and without waiting if it can't, with the same status."""
    code = PROGRAM.format(work=work)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, killed_on_error(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert said in output
    assert ("good order" in output) != ("hangs" in output)
    assert ("at last" in output) == ("hangs" in output)


AFTERWARDS = """
import asyncio, os, signal
from nftproxy.agent.lifecycle.shutdown import SIGNALS, asked_to_end, ends_in_any_case

async def main():
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, print, "the loop's handler")
    with ends_in_any_case():
        pass

asyncio.run(main())
os.kill(os.getpid(), {number})
print("asked to end:", asked_to_end.is_set())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_the_loop_is_noted(number: int) -> None:
    """An agent that is about to execute itself notes a signal that comes after its loop, and ends in good order."""
    program = [sys.executable, "-c", AFTERWARDS.format(number=int(number))]
    ended = subprocess.run(program, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert ended.stdout == "asked to end: True\n"


def test_a_closed_descriptor_ends_the_thread() -> None:
    """An agent that executes itself closes all descriptors, and the thread that reads signals ends without a word."""
    hearing, writing = socket.socketpair()
    os.close(hearing.fileno())
    with writing:
        shutdown._pass_signals_on(hearing, -1, 60.0, lambda: None)
    hearing.detach()
