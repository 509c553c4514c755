"""Health over HTTP, of a healthy agent and while the kernel refuses all transactions."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab, Origin, Outcome, endpoint

from tests.system.faults.bench import Bench, endpoints, node, pod, service, vip

CHECK_PORT = 32100
FAILURES = 'kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"}'


def local_service() -> dict[str, Any]:
    """A LoadBalancer Service with a health-check node port."""
    return service(
        50,
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=CHECK_PORT,
        ports=[{"port": 80, "nodePort": 30050}],
    )


def check_body(count: int, *, is_healthy: bool) -> dict[str, object]:
    """The body of a health-check node port."""
    return {
        "service": {"namespace": "shop", "name": "s50"},
        "localEndpoints": count,
        "serviceProxyHealthy": is_healthy,
    }


@contextmanager
def another_owner(lab: Lab, family: str = "ip") -> Iterator[None]:
    """Make another program own a table of our name.  As long as it does, the kernel refuses the agent's changes."""

    def take() -> Callable[[str], tuple[int, str, str]]:
        command: Callable[[str], tuple[int, str, str]] = importlib.import_module("nftables").Nftables().cmd
        status, _, error = command(f"delete table {family} nftproxy\nadd table {family} nftproxy {{ flags owner; }}")
        assert status == 0, error
        return command

    owner = lab.node.call(take)
    try:
        yield
    finally:
        del owner


def test_all_is_well(bench: Bench, server: ApiServer) -> None:
    """Each path answers with kube-proxy's fields."""
    server.put(local_service(), endpoints(50, "10.1.0.9", "10.1.0.10", "10.1.1.9"))
    bench.wait_until_right()
    for path in ("/healthz", "/livez"):
        reply = bench.ask(path, 10256)
        body = json.loads(reply.body)
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        eligible = {"nodeEligible": True} if path == "/healthz" else {}
        times = {"lastUpdated": body["lastUpdated"], "currentTime": body["currentTime"]}
        families = {
            name: {"lastUpdated": body["status"][name]["lastUpdated"], "healthy": True} for name in ("IPv4", "IPv6")
        }
        assert body == times | eligible | {"healthy": True, "status": families}
    assert bench.ask("/proxyMode", 10249).body == b"nftables"
    assert bench.ask("/healthz", 10249).status == 200
    assert bench.metric('kubeproxy_proxy_healthz_total{code="200"}') >= 1
    assert bench.metric('kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}') > 0
    assert bench.metric(FAILURES) == 0


def weight(bench: Bench) -> str:
    """The number of the node's own endpoints as the health-check node port has it, "" while nothing listens there."""
    with contextlib.suppress(ConnectionRefusedError):
        return bench.ask("/", CHECK_PORT, "192.168.0.2").headers["X-Load-Balancing-Endpoint-Weight"]
    return ""


def test_health_check_node_port(bench: Bench, server: ApiServer) -> None:
    """At any path the health-check node port returns the number of the node's own endpoints."""
    server.put(local_service(), endpoints(50, "10.1.0.9", "10.1.0.10", "10.1.1.9"))
    bench.wait_until(lambda: weight(bench) == "2")
    reply = bench.ask("/any/path", CHECK_PORT, "192.168.0.2")
    assert reply.status == 200
    assert json.loads(reply.body) == check_body(2, is_healthy=True)
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    server.put(endpoints(50, "10.1.1.9"))
    bench.wait_until(lambda: bench.ask("/", CHECK_PORT, "192.168.0.2").status == 503)
    reply = bench.ask("/", CHECK_PORT, "192.168.0.2")
    assert json.loads(reply.body) == check_body(0, is_healthy=True)
    assert reply.headers["X-Load-Balancing-Endpoint-Weight"] == "0"


def test_node_about_to_go(bench: Bench, server: ApiServer) -> None:
    """A node that the autoscaler is about to remove isn't eligible, though the agent is healthy."""
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    server.put(node() | {"spec": {"taints": [taint]}})
    bench.wait_until(lambda: bench.healthz().status == 503)
    body = json.loads(bench.healthz().body)
    assert (body["nodeEligible"], body["healthy"]) == (False, True)
    assert bench.ask("/livez", 10256).status == 200
    server.put(node())
    bench.wait_until(lambda: bench.healthz().status == 200)


def test_the_kernel_refuses(bench: Bench, server: ApiServer) -> None:
    """While the kernel refuses all transactions, the agent becomes unhealthy and counts failures, and then recovers."""
    server.put(local_service(), endpoints(50, "10.1.0.9"))
    bench.wait_until_right()
    failures = bench.metric(FAILURES)
    with another_owner(bench.lab):
        server.put(service(60), endpoints(60, "10.1.0.60"))
        bench.wait_until(lambda: bench.healthz().status == 503)
        body = json.loads(bench.healthz().body)
        assert (body["nodeEligible"], body["healthy"], body["status"]["IPv4"]["healthy"]) == (True, False, False)
        assert body["lastUpdated"] < body["currentTime"]
        assert bench.ask("/livez", 10256).status == 200, "IPv6 follows, so a restart would only do harm"
        reply = bench.ask("/", CHECK_PORT, "192.168.0.2")
        assert reply.status == 503
        assert json.loads(reply.body) == check_body(1, is_healthy=False)
        assert bench.metric(FAILURES) > failures
    bench.wait_until_right()
    bench.wait_until(lambda: bench.healthz().status == 200)
    assert bench.ask("/livez", 10256).status == 200
    assert bench.ask("/", CHECK_PORT, "192.168.0.2").status == 200
    assert bench.lab.connect(Origin.POD, vip(60), 80) == endpoint("10.1.0.60", 8080)


@pytest.mark.slow
def test_the_kernel_refuses_ipv6(bench: Bench, server: ApiServer) -> None:
    """While another program owns the IPv6 table, IPv4 is healthy and follows every change by small transactions."""
    server.put(local_service(), endpoints(50, "10.1.0.9"))
    bench.wait_until_right()
    with another_owner(bench.lab, "ip6"):
        bench.wait_until(lambda: not json.loads(bench.healthz().body)["status"]["IPv6"]["healthy"])
        loads = bench.log().count("loaded the rules")
        for number in (80, 81, 82):
            server.put(service(number), endpoints(number))
            reached = endpoint(pod(number), 8080)
            bench.wait_until(lambda number=number, reached=reached: is_reached(bench, number, reached))  # type: ignore[misc]
        assert bench.log().count("loaded the rules") == loads
        assert json.loads(bench.healthz().body)["status"]["IPv4"]["healthy"]
        assert bench.ask("/livez", 10256).status == 200
        assert bench.ask("/", CHECK_PORT, "192.168.0.2").status == 200, "this Service is of IPv4 only"
    bench.wait_until_right(60)
    bench.wait_until(lambda: bench.healthz().status == 200)


def is_reached(bench: Bench, number: int, expected: Outcome) -> bool:
    """Whether a Service leads to its pod."""
    return bench.lab.connect(Origin.POD, vip(number), 80) == expected
