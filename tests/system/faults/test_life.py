"""The agent starts, stops and starts again, with no more rights than it needs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Origin, Outcome, Probe, endpoint

from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from tests.support.background import repeating
from tests.system.faults.bench import PLURALS, Bench, endpoints, pod, service, vip

pytestmark = pytest.mark.slow

LOADED = "loaded the rules"
"""The log line after a load."""


def test_permissions(bench: Bench) -> None:
    """The agent's permissions suffice: no request is refused at its start or later."""
    bench.stop()
    bench.count_anew()
    bench.start()
    bench.wait_until_right()
    asked = {(request.verb, request.resource) for request in bench.requests()}
    assert {(verb, plural) for verb in ("list", "watch") for plural in PLURALS} <= asked
    assert [request for request in bench.requests() if request.status >= 400] == []
    assert all(request.status == 201 for request in bench.requests(verb="create"))


def test_rules_stay(bench: Bench, server: ApiServer) -> None:
    """After SIGTERM all rules stay and work, and a Service deleted meanwhile is dropped at the next start."""
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
    """SIGTERM ends an agent that waits for a credential plugin, and all processes of the plugin."""
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


DAMAGE = [
    "delete element ip nftproxy services { 10.96.0.3 . tcp . 80 }",
    "delete element ip nftproxy tcp-endpoints { 10.96.0.3 . 80 . 0.0.0.0 }",
    "add element ip nftproxy tcp-endpoints { 10.96.0.3 . 80 . 0.0.0.0 : 192.0.2.1 . 8080 }",
    "add element ip nftproxy masqueraded { 10.96.0.3 . tcp . 80 }",
    "flush set ip nftproxy fronts",
    "flush chain ip nftproxy draw",
    "insert rule ip nftproxy services ip daddr 10.96.0.3 drop",
    "add chain ip nftproxy own { type filter hook forward priority -300; policy drop; }",
]
"""Each command by itself keeps clients from a Service, or gives them access that they shouldn't have."""


def test_damage_while_no_agent_runs(bench: Bench) -> None:
    """An agent repairs at its start all damage that was done to the tables while no agent ran."""
    bench.stop()
    bench.lab.load("\n".join(DAMAGE))
    assert bench.lab.connect(Origin.POD, vip(3), 80) != endpoint(pod(3), 8080)
    start(bench)
    assert bench.is_right()
    assert bench.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080)
    installed = bench.lab.node.call(Kernel().read_back, Family.IPV4)
    assert installed
    assert "own" not in {each.name for each in installed.containers}


def test_a_restart_sends_what_differs(bench: Bench, server: ApiServer) -> None:
    """The transaction of a restart grows with the changes since the stop, and not with the cluster."""
    few = sent_at_start(bench)
    numbers = range(1000, 1300)
    server.put(*map(service, numbers), *map(endpoints, numbers))
    bench.wait_until_right()
    assert sent_at_start(bench) == few
    bench.stop()
    for number in numbers:
        server.delete("Service", "shop", f"s{number}")
        server.delete("EndpointSlice", "shop", f"s{number}-1")
    start(bench)
    assert bench.is_right()
    assert bench.metric(SENT) > few + len(numbers) * len("10.96.0.1 . tcp . 80")


SENT = 'nftproxy_transaction_bytes_sum{kind="full"}'
"""Bytes of an agent's loads."""


def sent_at_start(bench: Bench) -> float:
    """Restart the agent, and return the bytes of its first transaction."""
    bench.stop()
    start(bench)
    assert bench.is_right()
    return bench.metric(SENT)


def start(bench: Bench) -> None:
    """Start the agent, and wait until it has loaded its rules."""
    with bench.logging(LOADED):
        bench.start()


def _is_gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    return True


def test_a_restart_disturbs_nobody(bench: Bench) -> None:
    """No connection fails while the agent stops, starts and loads its rules again."""
    outcomes: list[Outcome] = []

    def connect() -> None:
        outcomes.extend(bench.lab.connect_many([Probe(Origin.POD, vip(number), 80) for number in range(1, 6)]))

    with repeating(connect):
        for _ in range(2):
            bench.stop()
            start(bench)
        bench.wait_until_right()
    assert len(outcomes) > 100
    assert set(outcomes) == {endpoint(pod(number), 8080) for number in range(1, 6)}
