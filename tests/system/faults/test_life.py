"""The agent starts, stops and starts again, with no more rights than it needs."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import yaml

from nftproxy.lab import Origin, Outcome, Probe, endpoint
from nftproxy.lab.apiserver import ApiServer
from tests.system.faults.bench import PLURALS, Bench, pod, service, vip

LOADED = "loaded the rules"
"""What the agent says when it has."""


def test_permissions(bench: Bench) -> None:
    """What the agent is allowed (see the bench) is all that it asks for: nothing is refused, now or at its start."""
    bench.stop()
    bench.count_anew()
    bench.start()
    bench.wait_until_right()
    asked = {(request.verb, request.resource) for request in bench.requests()}
    assert {(verb, plural) for verb in ("list", "watch") for plural in PLURALS} <= asked
    assert [request for request in bench.requests() if request.status >= 400] == []
    assert all(request.status == 201 for request in bench.requests(verb="create"))


def test_rules_stay(bench: Bench, server: ApiServer) -> None:
    """After SIGTERM every rule is still there, and works; what is deleted meanwhile goes with the next start."""
    server.put(service(70))
    bench.wait_until_right()
    before = bench.held()
    bench.stop()
    assert server.watches() == 0
    assert bench.held() == before
    assert bench.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080)
    server.delete("Service", "shop", "s70")
    bench.start()
    bench.wait_until_right()
    assert bench.held() != before


def test_ends_while_a_plugin_hangs(bench: Bench, tmp_path: Path) -> None:
    """SIGTERM ends an agent that waits for a credential plugin, with all that the plugin has started."""
    bench.stop()
    kubeconfig = bench.kubeconfig
    before = kubeconfig.read_text()
    config = yaml.safe_load(before)
    script = "trap '' TERM; sleep 3600 & echo $$ $! > \"$1\"; wait"
    pids = tmp_path / "pids"
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh"}
    config["users"][0]["user"] = {"exec": plugin | {"args": ["-c", script, "sh", str(pids)]}}
    kubeconfig.write_text(yaml.safe_dump(config))
    try:
        bench.start()
        bench.wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    finally:
        bench.stop()
        kubeconfig.write_text(before)
    bench.wait_until(lambda: all(_is_gone(int(pid)) for pid in pids.read_text().split()))
    bench.start()
    bench.wait_until_right()


def _is_gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    return True


def test_a_restart_disturbs_nobody(bench: Bench) -> None:
    """Clients that connect all the time, while the agent stops, starts and loads its rules anew, see nothing of it."""
    outcomes: list[Outcome] = []
    is_over = threading.Event()

    def connect() -> None:
        while not is_over.is_set():
            outcomes.extend(bench.lab.connect_many([Probe(Origin.POD, vip(number), 80) for number in range(1, 6)]))

    client = threading.Thread(target=connect)
    client.start()
    try:
        for _ in range(2):
            bench.stop()
            before = bench.log().count(LOADED)
            bench.start()
            bench.wait_until(lambda: bench.log().count(LOADED) == before + 1)  # noqa: B023  # called at once
        bench.wait_until_right()
    finally:
        is_over.set()
        client.join()
    assert len(outcomes) > 100
    assert set(outcomes) == {endpoint(pod(number), 8080) for number in range(1, 6)}
