"""A second agent, or another proxy, on the agent's node."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.processes import CHECKOUT
from tests.system.faults.bench import Bench
from tests.system.faults.test_life import LOADED

pytestmark = pytest.mark.slow

AGENT = "tests.system.faults.hasty"
WAITING = "another nftproxy (process {}) serves this node already: waiting until it has ended"
PATIENCE = 60.0
METRIC = 'nftproxy_other_proxies{proxy="kube-proxy"}'


def test_a_second_agent_waits_and_takes_over(bench: Bench) -> None:
    """A second agent names the process that it waits for, changes no rule, and begins when the first has ended."""
    with bench.logging(WAITING.format(bench.process_id)):
        second = bench.start_another(*bench.options)
    try:
        assert bench.is_right()
        with bench.logging(LOADED):
            bench.stop()
        bench.wait_until_right(PATIENCE)
    finally:
        second.terminate()
        assert second.wait(PATIENCE) == 0
        bench.start()


def test_an_agent_that_waits_ends_on_sigterm(bench: Bench) -> None:
    """An agent that waits for another agent ends on SIGTERM."""
    with bench.logging(WAITING.format(bench.process_id)):
        second = bench.start_another(*bench.options)
    second.terminate()
    assert second.wait(PATIENCE) == 0
    assert bench.is_right()


def test_log_health_and_status_name_the_holder_of_the_lock(bench: Bench) -> None:
    """While another process holds the lock, the agent's log, health, metrics and status name that process."""
    bench.stop()
    code = (
        "from nftproxy.kernel.agent_lock import *; lock = AgentLock(); print(lock.acquire(), flush=True); input(); "
        "lock.close()"
    )
    pipe = subprocess.PIPE
    with bench.lab.node.popen([sys.executable, "-c", code], cwd=CHECKOUT, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with bench.logging(WAITING.format(holder.pid)):
            bench.launch(*bench.options)
        ending = f"the end of another nftproxy (process {holder.pid})"
        bench.wait_until(lambda: ending in json.loads(bench.healthz().body)["waitingFor"], PATIENCE)
        assert (bench.healthz().status, bench.ask("/livez", 10256).status) == (503, 200)
        assert bench.metric(f'nftproxy_waiting{{for="{ending}"}}') == 1
        status = bench.command("status")
        assert status.status == 1
        assert f"waiting for {ending}" in status.out
        with bench.logging(LOADED):
            holder.stdin.write("\n")
            holder.stdin.flush()
    bench.wait_until_right(PATIENCE)
    assert bench.command("status").status == 0


def traces(bench: Bench) -> float:
    """The number of kube-proxy's traces in the metrics, or -1 while nobody answers yet."""
    try:
        return bench.metric(METRIC)
    except OSError:
        return -1


def test_another_proxy_is_named_at_start_and_when_it_is_back(bench: Bench) -> None:
    """Traces of kube-proxy show in log, metric and health at the start, until they are gone, and when they return."""
    found = "found the table ip kube-proxy (nftables mode); keep it from this node, then remove its rules"
    bench.stop()
    for is_running in (False, True):
        with bench.logging(found):
            bench.lab.node.run(["nft", "add", "table", "ip", "kube-proxy"])
            if not is_running:
                bench.start()
        bench.wait_until(lambda: traces(bench) == 1, PATIENCE)
        (warning,) = json.loads(bench.healthz().body)["warnings"]
        assert found in warning
        bench.lab.node.run(["nft", "delete", "table", "ip", "kube-proxy"])
        bench.wait_until(lambda: traces(bench) == 0, PATIENCE)
        assert "warnings" not in json.loads(bench.healthz().body)
    bench.wait_until_right(PATIENCE)
