"""A thousand connections to the agent, or hundreds of ports to listen on, don't stop the agent."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Origin, endpoint

from tests.support.waiting import PATIENCE
from tests.system.faults.bench import Bench, endpoints, pod, service, vip
from tests.system.faults.poor import FILES

pytestmark = pytest.mark.slow

AGENT = "tests.system.faults.poor"
CROWD = 4 * FILES


@contextlib.contextmanager
def silent_connections(bench: Bench, port: int) -> Iterator[None]:
    """Silent connections from the node itself, four times as many as the agent may have files open."""

    def connect() -> list[socket.socket]:
        opened = []
        for _ in range(CROWD):
            opened.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
            time.sleep(0.001)
        return opened

    opened = bench.lab.node.call(connect)
    try:
        yield
    finally:
        for each in opened:
            each.close()


def assert_it_lives(bench: Bench, server: ApiServer, number: int) -> None:
    """Assert that a change reaches the kernel, and that health probes are answered."""
    server.put(service(number), endpoints(number))
    bench.wait_until_right()
    assert bench.lab.connect(Origin.POD, vip(number), 80) == endpoint(pod(number), 8080)
    bench.wait_until(lambda: bench.healthz().status == 200)
    assert bench.ask("/livez", 10256).status == 200


def test_silent_connections(bench: Bench, server: ApiServer) -> None:
    """With four times as many silent connections as it may have files, the agent follows changes and answers probes."""
    with silent_connections(bench, 10256), silent_connections(bench, 10249):
        assert_it_lives(bench, server, 90)
        assert bench.metric("process_open_fds") < FILES / 2
    assert_it_lives(bench, server, 91)


def test_health_check_node_ports(bench: Bench, server: ApiServer) -> None:
    """With more health-check node ports than the limit of files, some are served, and Services and probes work."""
    for number in range(300):
        spec = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000 + number}
        ports = [{"port": 80, "nodePort": 30200 + number}]
        server.put(service(300 + number, ports=ports, **spec), endpoints(300 + number, "10.1.0.9"))
    bench.wait_until_right(60)
    assert_it_lives(bench, server, 92)
    assert bench.metric("process_open_fds") < FILES / 2
    assert bench.ask("/", 31000, "192.168.0.2").status == 200
    assert "Too many open files; retrying" in bench.log()
