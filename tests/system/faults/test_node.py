"""An agent whose node isn't as it must be says so: without a Node of its name, and without routes to pods."""

from __future__ import annotations

import json

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Namespace
from nftproxy_conformance.lab.topology import NODE_NAME

from tests.support.command import nftproxy
from tests.system.faults.bench import Bench, endpoints, node, service

AGENT = "tests.system.faults.hasty"


def warnings(bench: Bench) -> list[str]:
    """The warnings of /healthz, which status shows too."""
    found: list[str] = json.loads(bench.healthz().body).get("warnings", [])
    return found


@pytest.mark.slow
def test_a_node_name_that_names_no_node(bench: Bench, server: ApiServer) -> None:
    """Log, health and status name the missing Node once, until the cluster has it."""
    missing = f"NFT635: the cluster has no Node {NODE_NAME}: its addresses, zone and pod range are unknown"
    with bench.logging(missing):
        server.delete("Node", "", NODE_NAME)
    bench.wait_until(lambda: any(each.startswith(missing) for each in warnings(bench)))
    assert missing in bench.command("status").out
    server.put(service(80), endpoints(80))
    bench.wait_until_right()
    assert bench.log().count(missing) == 1, "a state is logged once"
    with bench.logging(f"the cluster has the Node {NODE_NAME} now"):
        server.put(node())
    bench.wait_until(lambda: warnings(bench) == [])
    bench.wait_until_right()


def test_pods_that_nothing_routes_to(bench: Bench, server: ApiServer) -> None:
    """Log, health and status name endpoints in clusterCIDR without a route, until there is a route."""
    unrouted = "NFT018: nothing routes to 10.1.77.5 (No route to host), which are endpoints in clusterCIDR"
    bench.lab.node.run(["ip", "route", "add", "unreachable", "10.1.77.0/24"])
    with bench.logging(unrouted):
        server.put(service(81), endpoints(81, "10.1.77.5", "10.1.1.5"))
    bench.wait_until(lambda: unrouted in warnings(bench))
    assert unrouted in bench.command("status").out
    with bench.logging("there are routes to all endpoints in clusterCIDR again"):
        bench.lab.node.run(["ip", "route", "delete", "unreachable", "10.1.77.0/24"])
    bench.wait_until(lambda: warnings(bench) == [])
    assert bench.log().count(unrouted) == 1, "a state is logged once"


def test_a_node_that_does_not_forward(bench: Bench) -> None:
    """Log, health and status name the sysctl of a family with Services, until the node forwards again."""
    warning = "NFT624: the node doesn't forward IPv4, as /proc/sys/net/ipv4/ip_forward is 0"
    with bench.logging(warning):
        bench.lab.node.sysctl({"ipv4/ip_forward": "0"})
    bench.wait_until(lambda: any(each.startswith(warning) for each in warnings(bench)))
    assert warning in bench.command("status").out
    with bench.logging("the node forwards each family that Services have again"):
        bench.lab.node.sysctl({"ipv4/ip_forward": "1"})
    bench.wait_until(lambda: warnings(bench) == [])
    assert bench.log().count(warning) == 1, "a state is logged once"


def test_an_agent_of_another_network_namespace(bench: Bench) -> None:
    """A command in another network namespace than the agent says so, and `doctor` doesn't quote that agent."""
    with Namespace("elsewhere") as pod:
        asking = ("--agent-socket", str(bench.socket_path))
        status = pod.call(lambda: nftproxy("status", *asking))
        doctor = pod.call(lambda: nftproxy("doctor", *asking))
    what = f"the agent at {bench.socket_path} works in another network namespace (net:["
    assert status.err.startswith(f"caveat: NFT019: {what}")
    assert f"the agent's configuration: {what}" in " ".join(doctor.out.split())
    assert "works in another" not in bench.command("status").err
