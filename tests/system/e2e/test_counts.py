"""Counts of Services' connections, as Prometheus scrapes them from the agent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nftproxy_conformance.lab import Origin, obstacle

from tests.support.cluster import IP
from tests.system.e2e.agent import World, eventually
from tests.system.e2e.objects import service, slice_of

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.slow]

SERIES = r'^nftproxy_service_(\w+)_total{namespace="\w+",service="web",.*front="(\w+)"(.*)} (\d+)$'


def counts(world: World) -> dict[str, int]:
    """The counts of the Service web in a scrape, by metric, front and reason."""
    answer = world.http("http://127.0.0.1:10249/metrics")
    assert answer
    found = re.findall(SERIES, answer.body, re.MULTILINE)
    return {f"{what} {front}{reason}": int(value) for what, front, reason, value in found}


def test_counts_survive_all_that_happens(tmp_path: Path) -> None:
    """Counts continue through changes, repairs and full loads, and begin at 0 after a restart of the agent."""
    with World(tmp_path, more="nftproxy: {serviceCounts: true}\n") as world:
        world.put(service("web", vips=[IP.vip]))

        def connect(times: int) -> None:
            for _ in range(times):
                world.lab.connect(Origin.POD, IP.vip, 80)

        rejected = 'unserved_packets cluster_ip,reason="no_endpoint"'
        connect(2)
        eventually(lambda: counts(world), {rejected: 2})
        world.put(slice_of(IP.here, name="web"))
        connect(3)
        eventually(lambda: counts(world), {rejected: 2, "connections cluster_ip": 3})
        world.lab.load("add table ip nftproxy\nflush chain ip nftproxy services\n")
        world.settle()
        connect(4)
        eventually(lambda: counts(world), {rejected: 2, "connections cluster_ip": 7})
        world.lab.load("delete table ip nftproxy\n")
        world.settle()
        connect(5)
        eventually(lambda: counts(world), {rejected: 2, "connections cluster_ip": 12})
        world.agent.stop()
        world.agent.start()
        world.settle()
        assert counts(world) == {}
        connect(2)
        eventually(lambda: counts(world), {"connections cluster_ip": 2})
        world.agent.check_log()
