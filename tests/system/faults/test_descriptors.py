"""An agent without file descriptors answers, and says why it does nothing else."""

from __future__ import annotations

import os
import signal

import pytest
from nftproxy_conformance.apiserver import ApiServer

from tests.system.faults.bench import Bench, service
from tests.system.faults.poor import FILES

AGENT = "tests.system.faults.leaky"
NONE_LEFT = f"NFT020: no file descriptor is left (Too many open files; this process may have {FILES})"


@pytest.mark.slow
def test_an_agent_without_descriptors_says_so(bench: Bench, server: ApiServer) -> None:
    """While no descriptor is left, `status` and health answer and say so, changes are made, and the log says when."""
    bench.wait_until_right()
    os.kill(bench.process_id, signal.SIGUSR1)
    bench.wait_until(lambda: NONE_LEFT in bench.command("status").out)
    answers = [bench.healthz() for _ in range(20)]
    server.put(service(71))
    bench.wait_until_right()
    report = bench.command("status")
    os.kill(bench.process_id, signal.SIGUSR2)
    assert [each.status for each in answers] == [200] * 20
    assert [each for each in answers if NONE_LEFT.encode() in each.body]
    assert NONE_LEFT in report.out, report.out
    bench.wait_until(lambda: "NFT020" not in bench.command("status").out)
    begun, ended = map(bench.log().count, ("no file descriptor is left", "there are file descriptors again"))
    assert begun == ended > 0
