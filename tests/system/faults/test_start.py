"""An agent that can't load its rules yet says so, and what it waits for, to whoever asks."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from nftproxy.lab import Origin, endpoint
from tests.support.apiserver import ApiServer
from tests.system.faults.bench import PERMISSIONS, Bench, endpoints, pod, service, vip


@pytest.fixture
def stopped(bench: Bench) -> Iterator[Bench]:
    """The agent's bench, without an agent; at the end it runs again and may do everything."""
    bench.stop()
    yield bench
    bench.server.rbac = PERMISSIONS
    bench.wait_until_right(60)


def without(plural: str) -> list[tuple[str, str, str]]:
    """The agent's permissions except for one resource."""
    return [each for each in PERMISSIONS if each[1] != plural]


def test_an_agent_that_may_not_list_endpoints(stopped: Bench, server: ApiServer) -> None:
    """It isn't ready, and answers, metrics and the log name what is missing; it is alive, and ready once it may."""
    server.rbac = without("endpointslices")
    known = stopped.log().count("no rules are loaded yet")
    stopped.start()
    stopped.wait_until(lambda: stopped.log().count("no rules are loaded yet") > known, 60)
    for path, status in (("/healthz", 503), ("/livez", 200)):
        reply = stopped.ask(path, 10256)
        body = json.loads(reply.body)
        assert (reply.status, body["healthy"]) == (status, False)
        assert body["waitingFor"][0] == "the first listing of endpointslices"
    assert stopped.metric('nftproxy_waiting{for="the first listing of endpointslices"}') == 1
    assert "no rules are loaded yet: waiting for the first listing of endpointslices\n" in stopped.log()
    assert stopped.lab.connect(Origin.POD, vip(3), 80) == endpoint(pod(3), 8080), "the rules of before stay"
    server.rbac = PERMISSIONS
    stopped.wait_until(lambda: stopped.healthz().status == 200, 60)
    assert "waitingFor" not in json.loads(stopped.healthz().body)
    assert stopped.metric('nftproxy_waiting{for="the first listing of endpointslices"}') == 0


def test_an_agent_that_may_not_list_service_cidrs(stopped: Bench, server: ApiServer) -> None:
    """It goes on without them, is ready, and follows all else."""
    server.rbac = without("servicecidrs")
    stopped.start()
    stopped.wait_until(lambda: "servicecidrs may not be listed: going on without them" in stopped.log(), 60)
    server.put(service(95), endpoints(95))
    stopped.wait_until(lambda: stopped.lab.connect(Origin.POD, vip(95), 80) == endpoint(pod(95), 8080), 60)
    assert stopped.healthz().status == 200
