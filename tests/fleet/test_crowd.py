"""`status --all-nodes` in a cluster of 300 nodes: its time, its memory, and how its cost grows."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nftproxy_conformance.apiserver import ApiServer, ExecRequest, ExecResult

from nftproxy.fleet.asking import AT_ONCE
from nftproxy.sources import tls
from tests.support.fleet import CHECKOUT, FleetOfAgents, RunCommand, answering, hanging, status_of
from tests.support.waiting import PATIENCE

NODES = 300
MOST_MEMORY = 200 * 2**20
"""Bytes of the command."""
_MEASURED = """
import resource, subprocess, sys, time
started = time.monotonic()
done = subprocess.run(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{time.monotonic() - started:.1f} s, of which {used.ru_utime + used.ru_stime:.1f} s of processor time")
print(used.ru_maxrss)
sys.exit(done.returncode)
"""
"""Runs a command, and prints its time and its peak of memory in KiB.  A child of pytest would begin with that peak."""


class Crowd:
    """Agents that answer once `AT_ONCE` of them are asked at the same time.  `most` is the largest such number."""

    def __init__(self) -> None:
        self.most = 0
        self._asked = 0
        self._are_enough = asyncio.Event()

    def one(self, answer: RunCommand) -> RunCommand:
        """An agent of the crowd."""

        async def run(request: ExecRequest) -> ExecResult:
            self._asked += 1
            self.most = max(self.most, self._asked)
            if self.most >= AT_ONCE:
                self._are_enough.set()
            await self._are_enough.wait()
            self._asked -= 1
            return await answer(request)

        return run


@pytest.mark.slow
def test_300_nodes(tmp_path: Path) -> None:
    """300 agents are asked in at most 200 MB, 64 at the same time, and never more."""
    crowd = Crowd()
    with ApiServer(tls=True, authenticate=True) as server:
        cluster = FleetOfAgents(server, tmp_path)
        for number in range(NODES - 3):
            cluster.add(f"node-{number:03}", crowd.one(status_of(f"node-{number:03}")))
        for number in (297, 298):
            warned = status_of(f"node-{number}", warnings=("NFT404: IPv6 isn't forwarded",))
            cluster.add(f"node-{number}", crowd.one(warned))
        cluster.add("node-299", crowd.one(answering(b"", 1, "error: NFT023: no agent answers")), is_ready=False)
        *lines, seconds, peak = _measured(tmp_path, "--timeout", str(PATIENCE))
    sys.stdout.write(f"{NODES} nodes: {seconds}, {int(peak) / 1024:.0f} MB\n")
    assert lines[0] == "300 nodes: 297 well, 2 with warnings, 1 doesn't answer"
    assert [line.split()[:2] for line in lines[2:]] == [
        ["NODE", "STATE"],
        ["node-299", "NoAnswer"],
        ["node-297", "Warnings"],
        ["node-298", "Warnings"],
    ]
    assert int(peak) * 1024 < MOST_MEMORY
    assert crowd.most == AT_ONCE


@pytest.mark.slow
def test_a_node_that_hangs(tmp_path: Path) -> None:
    """The last of 300 nodes hangs, which costs its time-out: 3 s for the agent, and 3 s for starting the command."""
    with ApiServer(tls=True, authenticate=True) as server:
        cluster = FleetOfAgents(server, tmp_path)
        for number in range(NODES - 1):
            cluster.add(f"node-{number:03}", status_of(f"node-{number:03}"))
        cluster.add("node-299", hanging)
        *lines, seconds, _ = _measured(tmp_path)
    sys.stdout.write(f"{NODES} nodes of which one hangs: {seconds}\n")
    assert "node-299   NoAnswer   no answer within 6 s" in lines


def _measured(directory: Path, *options: str) -> list[str]:
    """Run `status --all-nodes` as a process, and return its output, its time, and its peak of memory in KiB."""
    status = (sys.executable, "-m", "nftproxy", "status", "--all-nodes", "--kubeconfig", str(directory / "kubeconfig"))
    command = [sys.executable, "-c", _MEASURED, *status, *options]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_further_node_costs_the_same_in_any_crowd(tmp_path: Path) -> None:
    """The functions that are called for 70 further nodes are as many as for the 70 before."""
    with ApiServer(tls=True, authenticate=True) as server:
        cluster = FleetOfAgents(server, tmp_path)
        costs = []
        for part in "abc":
            for number in range(70):
                cluster.add(f"node-{part}{number}", status_of(f"node-{part}{number}"))
            costs.append(_calls(cluster))
    first, second, third = costs
    assert third - second < 1.2 * (second - first)


def _calls(cluster: FleetOfAgents) -> int:
    """Return how many functions `status --all-nodes` calls and leaves."""
    tally = itertools.count()
    sys.setprofile(lambda *_: next(tally) and None)
    try:
        done = cluster.nftproxy("status", "--all-nodes", "--timeout", str(PATIENCE))
    finally:
        sys.setprofile(None)
    assert done.status == 0
    return next(tally)


def test_all_nodes_share_a_context_of_tls(tmp_path: Path) -> None:
    """The certificates of the kubeconfig are read once for the lists and all nodes together."""
    tls.shared_contexts.cache_clear()
    with ApiServer(tls=True, authenticate=True) as server:
        cluster = FleetOfAgents(server, tmp_path)
        for number in range(5):
            cluster.add(f"node-{number}", status_of(f"node-{number}"))
        assert cluster.nftproxy("status", "--all-nodes").out == "5 nodes: 5 well\n"
    assert tls.shared_contexts.cache_info().misses == 1
