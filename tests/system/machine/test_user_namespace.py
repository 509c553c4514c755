"""The agent in a user namespace, as with rootless k3s, kind and Sysbox: it is root only over its own network."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.source_agent import SourceAgent

NAMESPACES = ("--user", "--map-root-user", "--net")


@pytest.mark.slow
def test_the_agent_serves(tmp_path: Path) -> None:
    """`run` loads the rules, follows changes, mends foreign changes of its table, and ends by SIGTERM."""
    if subprocess.run(["unshare", *NAMESPACES, "true"], check=False).returncode:
        pytest.skip("this machine makes no user namespaces")
    agent = SourceAgent(tmp_path, *NAMESPACES)
    agent.write("10.96.0.10")
    with agent:
        agent.wait_until_served("10.96.0.10")
        agent.write("10.96.0.10", "10.96.0.11")
        agent.wait_until_served("10.96.0.11")
        agent.run("nft", "flush", "map", "ip", "nftproxy", "services")
        agent.wait_until_served("10.96.0.11")
        assert agent.stop() == 0, agent.log.read_text()
