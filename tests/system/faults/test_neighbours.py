"""Another agent, or another proxy, on the agent's own node."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.system.faults.bench import ROOT, Bench
from tests.system.faults.test_life import LOADED

AGENT = "tests.system.faults.hasty"
WAITING = "another nftproxy (process {}) looks after this node: waiting until it has ended"
PATIENCE = 60.0
METRIC = 'nftproxy_other_proxies{proxy="kube-proxy"}'


def test_a_second_agent_waits_and_takes_over(bench: Bench) -> None:
    """A second agent says who it waits for, touches nothing, and begins when the first has ended."""
    loads = bench.log().count(LOADED)
    second = start(bench)
    try:
        bench.wait_until(lambda: WAITING.format(bench.process_id) in bench.log(), PATIENCE)
        assert bench.is_right()
        bench.stop()
        bench.wait_until(lambda: bench.log().count(LOADED) == loads + 1, PATIENCE)
        bench.wait_until_right(PATIENCE)
    finally:
        second.terminate()
        assert second.wait(PATIENCE) == 0
        bench.start()


def test_an_agent_that_waits_hears_sigterm(bench: Bench) -> None:
    """An agent that waits for another one ends at once when it is stopped."""
    said = bench.log().count("waiting until it has ended")
    second = start(bench)
    bench.wait_until(lambda: bench.log().count("waiting until it has ended") == said + 1, PATIENCE)
    second.terminate()
    assert second.wait(PATIENCE) == 0
    assert bench.is_right()


def start(bench: Bench) -> subprocess.Popen[Any]:
    """Start a second agent beside the bench's own, with the same log."""
    command = [sys.executable, "-m", AGENT, "run", "--config", str(bench.config_map.path)]
    with bench.log_path.open("a") as log:
        return bench.lab.node.popen(command, cwd=ROOT, stderr=log)


def traces(bench: Bench) -> float:
    """How many traces of kube-proxy the metrics show; -1 while nobody answers yet."""
    try:
        return bench.metric(METRIC)
    except OSError:
        return -1


def test_another_proxy_is_named_at_start_and_when_it_is_back(bench: Bench) -> None:
    """What kube-proxy has left is in log, metric and health at start, until it is gone, and again when it is back."""
    found = "there is the table ip kube-proxy (nftables mode); keep it from this node, then remove what it left"
    bench.stop()
    bench.lab.node.run(["nft", "add", "table", "ip", "kube-proxy"])
    before = bench.log().count(found)
    bench.start()
    for times in (1, 2):
        bench.wait_until(lambda: bench.log().count(found) == before + times, PATIENCE)  # noqa: B023  # called at once
        bench.wait_until(lambda: traces(bench) == 1, PATIENCE)
        (warning,) = json.loads(bench.healthz().body)["warnings"]
        assert found in warning
        bench.lab.node.run(["nft", "delete", "table", "ip", "kube-proxy"])
        bench.wait_until(lambda: traces(bench) == 0, PATIENCE)
        assert "warnings" not in json.loads(bench.healthz().body)
        if times == 1:
            bench.lab.node.run(["nft", "add", "table", "ip", "kube-proxy"])
    bench.wait_until_right(PATIENCE)
