"""Three agents that meet faults, and the dashboard's queries, which Prometheus answers."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import RealHost, RealNetwork
from nftproxy_conformance.lab.topology import SERVICE_CIDR, SERVICE_CIDR6

from tests.support.cluster import IP
from tests.support.prometheus import MONITORING, Prometheus
from tests.system.e2e.agent import Agent
from tests.system.e2e.objects import node, service, service_cidr, slice_of
from tests.system.e2e.silent_town import Connections
from tools.monitoring.picture import Line

DASHBOARD = MONITORING / "dashboard.json"
NODES = ("node-a", "node-b", "node-c")
CONFIG = "metricsBindAddress: 0.0.0.0:10249\nnftproxy: {serviceCounts: true}\n"
VARIABLES = {"$node": ".*", "$__rate_interval": "10s", "$__range": "1m"}
STEP = 2
"""Seconds between two points."""
EMPTY, CLOSED = "10.96.0.12", "203.0.113.1"
"""A Service without endpoints, and another that doesn't admit the client."""
MANY = range(5_000, 5_500)
"""The numbers of Services that come together: the slowest change."""
TRIGGERED = "endpoints.kubernetes.io/last-change-trigger-time"


class Scene(NamedTuple):
    """The nodes' agents, the API server and a client on node-a."""

    agents: dict[str, Agent]
    server: ApiServer
    client: RealHost
    prometheus: Prometheus


def _line(legend: str, series: dict[str, Any], start: float) -> Line:
    name = re.sub(r"{{(\w+)}}", lambda match: series["metric"].get(match[1], ""), legend)
    return Line(name, [(at - start, float(value)) for at, value in series["values"]])


@contextmanager
def _scene(directory: Path) -> Iterator[Scene]:
    """Three nodes with agents of the same configuration, which Prometheus has scraped."""
    with RealNetwork() as network, ExitStack() as stack:
        nodes = {name: network.node(name) for name in NODES}
        first = nodes["node-a"]
        made = ApiServer(hosts=(first.address,), tls=True, authenticate=True, make_socket=first.namespace.socket)
        server = stack.enter_context(made)
        server.put(service_cidr("kubernetes", SERVICE_CIDR, SERVICE_CIDR6))
        server.put(service("web", sessionAffinity="ClientIP"), service("empty", vips=(EMPTY,)))
        server.put(
            service(
                "closed",
                vips=("10.96.0.13",),
                type="LoadBalancer",
                balanced=(CLOSED,),
                loadBalancerSourceRanges=["192.0.2.0/24"],
            )
        )
        server.put(slice_of("10.1.1.4@node-b", name="closed"))
        nodes["node-b"].pod("web-b", "10.1.1.4", "fd00:1:0:1::4").serve(8080)
        first.load("table ip kube-proxy { }")
        kubeconfig = server.write_kubeconfig(directory / "kubeconfig")
        agents = {name: Agent(nodes[name].namespace, name, server, directory, CONFIG) for name in NODES}
        for name, agent in agents.items():
            server.put(node(name, nodes[name].address, nodes[name].address6))
            stack.callback(agent.kill)
            agent.launch("--agent-socket=", f"--kubeconfig={kubeconfig}")
            agent.wait_until_healthy()
        addresses = {name: each.address for name, each in nodes.items()}
        rules = (MONITORING / "rules.yaml").read_text()
        prometheus = stack.enter_context(Prometheus(first.namespace, directory, rules, nodes=addresses))
        prometheus.wait_until(lambda: len(prometheus.query("up == 1")) == len(NODES), "all agents are scraped")
        yield Scene(agents, server, first.pod("client", "10.1.0.9", "fd00:1::9"), prometheus)


def _change(scene: Scene, second: int) -> None:
    """Change an EndpointSlice, and connect to a Service that serves, and to both that don't."""
    changed = slice_of("10.1.1.4@node-b", *(["10.1.2.4@node-c"] if second % 2 else []))
    changed["metadata"]["annotations"] = {TRIGGERED: datetime.now(UTC).isoformat()}
    scene.server.put(changed)
    for address, number in ((IP.vip, 1), (EMPTY, 4), (CLOSED, 1 + second % 3)):
        with closing(Connections(scene.client, address, may_fail=True)) as connections:
            connections.begin(number)
            connections.wait(0.05)


def _stop(scene: Scene) -> None:
    os.kill(scene.agents["node-b"].process_id, signal.SIGSTOP)


def _go_on(scene: Scene) -> None:
    os.kill(scene.agents["node-b"].process_id, signal.SIGCONT)


def _configure(scene: Scene) -> None:
    """Give the agent of node-c another configuration, with which it starts anew."""
    file = scene.agents["node-c"].config
    file.write_text(f"{file.read_text()}oomScoreAdj: -998\n")


def _grow(scene: Scene) -> None:
    scene.server.put(*(service(f"s{number}", vips=(f"10.96.{number >> 8}.{number & 255}",)) for number in MANY))


FAULTS = (_stop, _go_on, _configure, _grow)
"""What happens after each fifth of the time."""


def record(targets: Iterable[dict[str, Any]], directory: Path, seconds: int) -> dict[str, list[Line]]:
    """Return Prometheus' answers to the queries of panels, each by its `expr`, after this time with all faults."""
    with _scene(directory) as scene:
        start, faults = time.time(), dict(enumerate(FAULTS, 1))
        for second in range(seconds):
            if fault := faults.pop((len(FAULTS) + 1) * second // seconds, None):
                fault(scene)
            _change(scene, second)
            time.sleep(max(0.0, start + second + 1 - time.time()))
        answers, end = {}, time.time()
        for each in targets:
            expr = re.sub(r"\$\w+", lambda match: VARIABLES[match[0]], each["expr"])
            found = scene.prometheus.query_range(expr, start, end, STEP)
            answers[each["expr"]] = [_line(each["legendFormat"], series, start) for series in found]
        return answers
