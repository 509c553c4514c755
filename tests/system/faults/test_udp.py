"""A client that keeps its source port follows its Service, as the agent deletes the flow's conntrack entry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import PORT_UNREACHABLE, Lab, Origin, Outcome, endpoint

from tests.system.faults.bench import Bench, endpoints, service, vip
from tests.system.packets.manifests import Manifest

pytestmark = pytest.mark.slow

DNS = 80
VIP = vip(DNS)
CLIENT_PORT = 5353
UDP = [{"name": "", "port": 5300, "protocol": "UDP"}]


def dns(*addresses: str) -> Manifest:
    """The slice of the Service, which is empty without addresses."""
    return endpoints(DNS, *addresses, ports=UDP) | ({} if addresses else {"endpoints": []})


def ask(lab: Lab) -> Outcome:
    """The outcome of the next packet of the client's flow."""
    return lab.connect(Origin.POD, VIP, 53, "udp", sport=CLIENT_PORT)


@pytest.fixture
def udp(bench: Bench) -> Iterator[Bench]:
    """An agent, and a UDP Service with an endpoint that the client's flow has reached already."""
    server = bench.server
    server.put(service(DNS, ports=[{"port": 53, "protocol": "UDP"}]), dns("10.1.0.11"))
    bench.wait_until_right()
    bench.wait_until(lambda: ask(bench.lab) == endpoint("10.1.0.11", 5300))
    yield bench
    server.delete("Service", "shop", f"s{DNS}")
    server.delete("EndpointSlice", "shop", f"s{DNS}-1")
    bench.wait_until_right()


def test_a_flow_survives_a_time_without_endpoints(udp: Bench, server: ApiServer) -> None:
    """Without endpoints the flow is refused, and with a new endpoint it reaches that endpoint."""
    server.put(dns())
    udp.wait_until(lambda: ask(udp.lab) == PORT_UNREACHABLE)
    server.put(dns("10.1.0.12"))
    udp.wait_until(lambda: ask(udp.lab) == endpoint("10.1.0.12", 5300))


def test_a_flow_moves_when_its_endpoint_goes(udp: Bench, server: ApiServer) -> None:
    """A flow stays when endpoints join, and moves to another endpoint when its endpoint goes."""
    server.put(dns("10.1.0.11", "10.1.0.12", "10.1.0.13"))
    udp.wait_until_right()
    assert {ask(udp.lab) for _ in range(20)} == {endpoint("10.1.0.11", 5300)}
    server.put(dns("10.1.0.13"))
    udp.wait_until(lambda: ask(udp.lab) == endpoint("10.1.0.13", 5300))


def test_while_the_agent_is_away(udp: Bench, server: ApiServer) -> None:
    """A flow whose endpoint goes while the agent doesn't run moves to the new endpoint after the agent's start."""
    udp.stop()
    server.put(dns("10.1.0.14"))
    assert ask(udp.lab) == endpoint("10.1.0.11", 5300)
    udp.start()
    udp.wait_until(lambda: ask(udp.lab) == endpoint("10.1.0.14", 5300))


def test_other_flows_stay(udp: Bench, server: ApiServer) -> None:
    """A flow whose endpoint stays doesn't move when another endpoint goes."""
    server.put(dns("10.1.0.11", "10.1.0.12"))
    udp.wait_until_right()
    flows = {sport: udp.lab.connect(Origin.POD, VIP, 53, "udp", sport=sport) for sport in range(6000, 6040)}
    server.put(dns("10.1.0.11", "10.1.0.15", "10.1.0.16"))
    udp.wait_until(lambda: "10.1.0.12" not in str(again(udp.lab, flows)))
    stayed = {sport for sport, outcome in flows.items() if outcome == endpoint("10.1.0.11", 5300)}
    assert stayed
    assert {outcome for sport, outcome in again(udp.lab, flows).items() if sport in stayed} == {
        endpoint("10.1.0.11", 5300)
    }


def again(lab: Lab, flows: dict[int, Outcome]) -> dict[int, Outcome]:
    """The outcomes of these flows' next packets, by source port."""
    return {sport: lab.connect(Origin.POD, VIP, 53, "udp", sport=sport) for sport in flows}
