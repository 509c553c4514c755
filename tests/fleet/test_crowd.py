"""`status --all-nodes` in a cluster of 300 nodes, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nftproxy_conformance.apiserver import ApiServer

from tests.support.fleet import CHECKOUT, FleetOfAgents, hanging, status_of

NODES = 300
MOST_MEMORY = 200 * 2**20
"""Bytes of the command."""


def test_300_nodes(tmp_path: Path) -> None:
    """300 agents are asked, and one that hangs costs its own row only, in at most 200 MB."""
    with ApiServer(tls=True, authenticate=True) as server:
        cluster = FleetOfAgents(server, tmp_path)
        for number in range(NODES - 3):
            cluster.add(f"node-{number:03}", status_of(f"node-{number:03}"))
        for number in (297, 298):
            cluster.add(f"node-{number}", status_of(f"node-{number}", warnings=("NFT404: IPv6 isn't forwarded",)))
        cluster.add("node-299", hanging, is_ready=False)
        command = [
            sys.executable,
            "-m",
            "nftproxy",
            "status",
            "--all-nodes",
            "--kubeconfig",
            str(tmp_path / "kubeconfig"),
        ]
        with subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            lines = process.stdout.read().splitlines()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 1
    assert lines[0] == "300 nodes: 297 well, 2 with warnings, 1 doesn't answer"
    assert [line.split()[:2] for line in lines[2:]] == [
        ["NODE", "STATE"],
        ["node-299", "NoAnswer"],
        ["node-297", "Warnings"],
        ["node-298", "Warnings"],
    ]
    assert usage.ru_maxrss * 1024 < MOST_MEMORY
