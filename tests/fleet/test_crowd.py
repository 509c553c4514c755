"""`status --all-nodes` in a cluster of 300 nodes, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nftproxy_conformance.apiserver import ApiServer

from tests.support.fleet import CHECKOUT, FleetOfAgents, hanging, status_of

pytestmark = pytest.mark.slow

NODES = 300
MOST_MEMORY = 200 * 2**20
"""Bytes of the command."""
_MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""
"""Runs a command, and prints its peak of memory in KiB.  A child of pytest would begin with the peak of pytest."""


def test_300_nodes(tmp_path: Path) -> None:
    """300 agents are asked in at most 200 MB, and an agent that hangs costs only its own row."""
    with ApiServer(tls=True, authenticate=True) as server:
        cluster = FleetOfAgents(server, tmp_path)
        for number in range(NODES - 3):
            cluster.add(f"node-{number:03}", status_of(f"node-{number:03}"))
        for number in (297, 298):
            cluster.add(f"node-{number}", status_of(f"node-{number}", warnings=("NFT404: IPv6 isn't forwarded",)))
        cluster.add("node-299", hanging, is_ready=False)
        command = [
            sys.executable,
            "-c",
            _MEASURED,
            sys.executable,
            "-m",
            "nftproxy",
            "status",
            "--all-nodes",
            "--kubeconfig",
            str(tmp_path / "kubeconfig"),
        ]
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    *lines, peak = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0] == "300 nodes: 297 well, 2 with warnings, 1 doesn't answer"
    assert [line.split()[:2] for line in lines[2:]] == [
        ["NODE", "STATE"],
        ["node-299", "NoAnswer"],
        ["node-297", "Warnings"],
        ["node-298", "Warnings"],
    ]
    assert int(peak) * 1024 < MOST_MEMORY
