"""A log that nobody reads: a container runtime that hangs keeps the agent's standard error open."""

from __future__ import annotations

import fcntl
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.source_agent import SourceAgent


@pytest.mark.slow
def test_the_agent_goes_on(tmp_path: Path) -> None:
    """With a full pipe the agent serves changes, answers at its socket and for health, counts, and ends by SIGTERM."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # full after the agent's first line
    agent = SourceAgent(tmp_path, "--net", more="logging: {verbosity: 4}\n", stderr=writing)
    agent.write("10.96.0.10")
    with agent:
        os.close(writing)
        agent.wait_until_served("10.96.0.10")
        for number in range(11, 15):
            agent.write("10.96.0.10", f"10.96.0.{number}")
            agent.wait_until_served(f"10.96.0.{number}")
        agent.run("ip", "link", "set", "lo", "up")
        assert agent.run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:10256/livez") == "200"
        metrics = agent.run("curl", "-s", "http://127.0.0.1:10249/metrics")
        dropped = re.search(r"^nftproxy_log_lines_dropped_total (\d+)\.0$", metrics, re.MULTILINE)
        assert dropped
        assert int(dropped[1]) > 0
        status = agent.run(sys.executable, "-m", "nftproxy", "status", "--agent-socket", str(agent.socket_path))
        assert "\nLog:              lines that were dropped, as nobody read them in time: " in status
        assert agent.stop() == 0
    os.close(reading)
