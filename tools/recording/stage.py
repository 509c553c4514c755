"""The stage of the recorded commands: a node with its agent, pods that serve, clients that stay connected.

The agent's socket has its usual path below /run, which is a directory of this process's own meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nftproxy_conformance.lab.echo import Conversation

from tools.demo import BALANCER, CART, WEB, WEB_NODE_PORT, Cluster, scratch

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x00020000, 0x4000, 1 << 18  # linux/sched.h, linux/mount.h
PATIENCE = 30.0  # seconds for the agent to answer, which takes a second
CONVERSATIONS = ((WEB, 80, 9), (CART, 80, 4), (BALANCER, 443, 3))
"""The connections that a pod of the node keeps: address, port and number."""


class Stage:
    """A node on which commands can be run.

    Attributes:
        directory: of the commands, with the manifests and the configuration of the example.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.directory = cluster.manifests.parent
        self._cluster = cluster

    def run(self, arguments: Sequence[str]) -> list[str]:
        """Run `nftproxy` with these arguments, and return its lines.

        Raises:
            RuntimeError: it fails.  The message has its output.
        """
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        command = [sys.executable, "-m", "nftproxy", *arguments]
        process = self._cluster.node.node.popen(
            command, cwd=self.directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        output, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"nftproxy {' '.join(arguments)}: {output}{errors}{self._cluster.agent.log()}")
        return str(output).splitlines()

    def until_it_runs(self, arguments: Sequence[str]) -> list[str]:
        """The same, once it succeeds: an agent is healthy some time after its rules are there."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.run(arguments)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)


def own_run_directory() -> None:
    """Give this process a /run of its own, so that the machine's stays untouched."""
    libc = ctypes.CDLL(None, use_errno=True)
    for done in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None),
    ):
        if done:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def stage() -> Iterator[Stage]:
    """A node whose agent has loaded its rules, with connections to some Services."""
    with ExitStack() as stack:
        cluster = stack.enter_context(scratch())
        cluster.start_agent()
        for address, port, count in CONVERSATIONS:
            for _ in range(count):
                _keep(stack, cluster.shopper.talk(address, port))
        for _ in range(5):
            _keep(stack, cluster.outside.talk(cluster.node.address, WEB_NODE_PORT))
        yield Stage(cluster)


def _keep(stack: ExitStack, conversation: Conversation) -> None:
    """Stay connected until the end."""
    stack.callback(conversation.close)
    conversation.ask()
