"""Beside real programs' rules, what `explain --trace` and `doctor` say is the fate of a connection."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from nftproxy_conformance.lab import DROPPED, Namespace, Origin, Outcome, endpoint, obstacle

from tests.support.cluster import IP
from tests.support.command import nftproxy
from tests.system.e2e.objects import slice_of
from tests.system.faults.bench import Bench
from tests.system.incidents.programs import all_three, cni, docker, no_tables_left, ufw
from tests.system.incidents.rows import AWAY, WEB

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.slow]

Program = Callable[[Namespace, Path], AbstractContextManager[object]]
TO_POD = endpoint(f"{IP.away}", 8080)
DROPS = "by the kernel, in the chain FORWARD of the table filter of another program"


@pytest.mark.parametrize(
    ("program", "fate", "trace", "findings"),
    [
        (ufw, DROPPED, DROPS, ["NFT612", "(ufw)", "NFT636", "the chain FORWARD"]),
        (docker, DROPPED, DROPS, ["NFT612", "(Docker)", "NFT636", "the chain FORWARD"]),
        (cni, TO_POD, "as explained", []),
        (all_three, DROPPED, DROPS, ["NFT612", "(Docker, ufw)", "NFT636", "the chain FORWARD"]),
    ],
)
def test_the_answers_are_the_fate_of_a_connection(
    bench: Bench,
    program: Program,
    fate: Outcome,
    trace: str,
    findings: list[str],
    tmp_path: Path,
) -> None:
    """A connection of a pod to a pod elsewhere ends as the trace says, and `doctor` names the chain that drops it."""
    bench.server.put(WEB, slice_of(AWAY))
    bench.wait_until_right()
    assert bench.lab.connect(Origin.POD, IP.vip, 80) == TO_POD
    with no_tables_left(bench.lab.node), program(bench.lab.node, tmp_path):
        assert bench.lab.connect(Origin.POD, IP.vip, 80) == fate
        traced = bench.command("explain", f"{IP.vip}:80", "--trace", "--from", "10.1.0.200")
        options = ("--config", bench.config_map.path, "--hostname-override", "node-a", "--kubeconfig", bench.kubeconfig)
        answer = bench.lab.node.call(lambda: nftproxy("doctor", *options))
    assert (trace in traced.out, traced.status) == (True, int(fate == DROPPED)), traced.out
    assert [each for each in findings if each not in answer.out] == [], answer.out
    assert findings or not {"NFT612", "NFT636"} & set(answer.out.split()), answer.out
