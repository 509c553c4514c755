"""Pods that reach themselves through a Service: the answer must come by way of the node."""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import UNTOUCHED, Lab, Origin

from tests.support.cluster import Cluster, Ip, at, exposed_service, masqueraded, pods

POD = Origin.POD
PLACES = ("here", "here2", "away")


def test_a_pod_that_draws_itself_is_masqueraded(lab: Lab, ip: Ip, protocol: str) -> None:
    """Each endpoint here is masqueraded when it reaches itself by the ClusterIP, and is not when it reaches another."""
    cluster = Cluster(lab, exposed_service(ip, protocol), pods(ip, *PLACES, protocol=protocol))
    for me, other in [(ip.here, ip.here2), (ip.here2, ip.here)]:
        outcomes = cluster.outcomes(POD, ip.vip, 80, protocol, source=me)
        assert outcomes == masqueraded(me) | at(other, ip.away)


@pytest.mark.parametrize("front", ["external", "balanced", "node"])
def test_a_pod_reaches_itself_by_external_addresses(lab: Lab, ip: Ip, front: str) -> None:
    """With policy Local, under which pods are not masqueraded, a pod that reaches itself is."""
    cluster = Cluster(lab, exposed_service(ip, external_policy="Local"), pods(ip, *PLACES))
    outcomes = cluster.outcomes(POD, *ip.front(front), source=ip.here)
    assert outcomes == masqueraded(ip.here) | at(ip.here2, ip.away)


def test_a_pod_reaches_itself_by_the_local_list(lab: Lab, ip: Ip) -> None:
    """With internalTrafficPolicy Local a pod that reaches itself is masqueraded."""
    cluster = Cluster(lab, exposed_service(ip, internal_policy="Local"), pods(ip, *PLACES))
    assert cluster.outcomes(POD, ip.vip, source=ip.here) == masqueraded(ip.here) | at(ip.here2)


def test_a_pod_that_reaches_itself_is_masqueraded_without_a_detector(lab: Lab, ip: Ip) -> None:
    """Hairpins need no way to tell local sources."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here"), cluster_cidrs=())
    assert cluster.outcomes(POD, ip.vip, source=ip.here) == masqueraded(ip.here)


def test_a_terminating_pod_still_reaches_itself(lab: Lab, ip: Ip) -> None:
    """An endpoint that is chosen as the last resort is masqueraded when it reaches itself."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here draining"))
    assert cluster.outcomes(POD, ip.vip, source=ip.here) == masqueraded(ip.here)


def test_answers_to_itself_come_back_translated(lab: Lab, ip: Ip, protocol: str) -> None:
    """The pod that reached itself sees the answer come from the virtual IP."""
    cluster = Cluster(lab, exposed_service(ip, protocol), pods(ip, *PLACES, protocol=protocol))
    for outcome in cluster.connect(POD, ip.vip, 80, protocol, source=ip.here, times=32):
        assert lab.reply(outcome) == (ip.vip, 80)


def test_an_endpoint_of_another_node_is_not_masqueraded(lab: Lab, ip: Ip) -> None:
    """When another node's pod comes by here and is sent to itself, its source is kept: that is its node's affair."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, *PLACES))
    assert cluster.outcomes(Origin.REMOTE_POD, ip.vip, source=ip.away) == at(ip.here, ip.here2, ip.away)


def test_an_untranslated_connection_is_not_masqueraded(lab: Lab, ip: Ip) -> None:
    """A connection from an endpoint straight to its own address and port is let through as it is."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, *PLACES))
    assert cluster.outcomes(POD, ip.here, 8080, source=ip.here, times=2) == {UNTOUCHED}


def test_the_node_reaches_itself(lab: Lab, ip: Ip) -> None:
    """An endpoint in the node's own network that reaches itself by a ClusterIP is masqueraded.

    The kernel may well choose the same address for that, but then with another port.  For TCP it may even choose the
    same port.
    """
    cluster = Cluster(lab, exposed_service(ip, "udp"), pods(ip, "own", protocol="udp"), cluster_cidrs=())
    for outcome in cluster.connect(Origin.NODE, ip.vip, protocol="udp", source=ip.own, times=4):
        assert outcome.probe is not None
        assert outcome.endpoint == (ip.own, 8080)
        assert outcome.source != (ip.own, outcome.probe.sport)
