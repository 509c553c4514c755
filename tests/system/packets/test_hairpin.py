"""Pods that reach themselves through a Service: the answer must come by way of the node."""

from __future__ import annotations

from typing import Any

import pytest

from nftproxy.lab import UNTOUCHED, Lab, Origin
from tests.support.factories import service, slice_of
from tests.system.packets.cluster import Cluster, Ip, at, each_ip, each_protocol, reached_in_all_ways

POD = Origin.POD


def make_cluster(lab: Lab, ip: Ip, protocol: str = "tcp", **tweaks: Any) -> Cluster:
    """A Service with all kinds of addresses, two endpoints here and one away."""
    told = reached_in_all_ways(ip, protocol, **tweaks)
    addresses = [f"{ip.here}@node-a", f"{ip.here2}@node-a", f"{ip.away}@node-b"]
    return Cluster(lab, told, slice_of(endpoints=addresses, ports=[f"http:8080/{protocol}"]))


@each_ip
@each_protocol
def test_a_pod_that_draws_itself_is_masqueraded(lab: Lab, ip: Ip, protocol: str) -> None:
    """Each endpoint here is masqueraded when it reaches itself by the ClusterIP, and is not when it reaches another."""
    cluster = make_cluster(lab, ip, protocol)
    for me, other in [(ip.here, ip.here2), (ip.here2, ip.here)]:
        outcomes = cluster.outcomes(POD, ip.vip, 80, protocol, source=me)
        assert outcomes == at(me, masqueraded=True) | at(other, ip.away)


@each_ip
@pytest.mark.parametrize("front", ["external", "balanced", "node"])
def test_a_pod_reaches_itself_by_external_addresses(lab: Lab, ip: Ip, front: str) -> None:
    """With policy Local, under which pods are not masqueraded, one that reaches itself is."""
    cluster = make_cluster(lab, ip, external_policy="Local")
    port = 30080 if front == "node" else 80
    outcomes = cluster.outcomes(POD, getattr(ip, front), port, source=ip.here)
    assert outcomes == at(ip.here, masqueraded=True) | at(ip.here2, ip.away)


@each_ip
def test_a_pod_reaches_itself_by_the_local_list(lab: Lab, ip: Ip) -> None:
    """With internalTrafficPolicy Local a pod that reaches itself is masqueraded."""
    cluster = make_cluster(lab, ip, internal_policy="Local")
    outcomes = cluster.outcomes(POD, ip.vip, source=ip.here)
    assert outcomes == at(ip.here, masqueraded=True) | at(ip.here2)


@each_ip
def test_a_pod_that_reaches_itself_is_masqueraded_without_a_detector(lab: Lab, ip: Ip) -> None:
    """Hairpins need no way to tell local sources."""
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]), slice_of(endpoints=[f"{ip.here}@node-a"]), cluster_cidrs=())
    assert cluster.outcomes(POD, ip.vip, source=ip.here) == at(ip.here, masqueraded=True)


@each_ip
def test_a_terminating_pod_still_reaches_itself(lab: Lab, ip: Ip) -> None:
    """An endpoint that is chosen as the last resort is masqueraded when it reaches itself."""
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]), slice_of(endpoints=[f"{ip.here}@node-a draining"]))
    assert cluster.outcomes(POD, ip.vip, source=ip.here) == at(ip.here, masqueraded=True)


@each_ip
@each_protocol
def test_answers_to_itself_come_back_translated(lab: Lab, ip: Ip, protocol: str) -> None:
    """The pod that reached itself sees the answer come from the virtual IP."""
    cluster = make_cluster(lab, ip, protocol)
    for outcome in cluster.connect(POD, ip.vip, 80, protocol, source=ip.here, times=32):
        assert lab.reply(outcome) == (ip.vip, 80)


@each_ip
def test_an_endpoint_of_another_node_is_not_masqueraded(lab: Lab, ip: Ip) -> None:
    """When another node's pod comes by here and is sent to itself, its source is kept: that is its node's affair."""
    cluster = make_cluster(lab, ip)
    assert cluster.outcomes(Origin.REMOTE_POD, ip.vip, source=ip.away) == at(ip.here, ip.here2, ip.away)


@each_ip
def test_what_was_not_translated_is_not_masqueraded(lab: Lab, ip: Ip) -> None:
    """A connection from an endpoint straight to its own address and port is let through as it is."""
    assert make_cluster(lab, ip).outcomes(POD, ip.here, 8080, source=ip.here, times=2) == {UNTOUCHED}


@each_ip
def test_the_node_reaches_itself(lab: Lab, ip: Ip) -> None:
    """An endpoint in the node's own network that reaches itself by a ClusterIP is masqueraded.

    The kernel may well choose the same address for that, but then with another port; for TCP even with the same.
    """
    target = slice_of(endpoints=[f"{ip.own}@node-a"], ports=["http:8080/udp"])
    cluster = Cluster(lab, service(cluster_ips=[ip.vip], ports=["http:80/udp"]), target, cluster_cidrs=())
    for outcome in cluster.connect(Origin.NODE, ip.vip, protocol="udp", source=ip.own, times=4):
        assert outcome.probe is not None
        assert outcome.endpoint == (ip.own, 8080)
        assert outcome.source != (ip.own, outcome.probe.sport)
