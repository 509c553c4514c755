"""Traffic policies and masquerading, for each way to tell local sources.

The whole table of fronts, policies and origins is in tests/system/test_matrix.py.  Here is a test for each rule.
"""

from __future__ import annotations

from typing import Any

import pytest
from nftproxy_conformance.lab import Lab, Origin

from tests.support.cluster import (
    IP,
    IP6,
    Cluster,
    Ip,
    Outcomes,
    at,
    everywhere,
    exposed_service,
    masqueraded,
    pods,
    seen,
)
from tests.support.factories import node, service

LOCAL_PODS, PODS = frozenset({Origin.POD}), frozenset({Origin.POD, Origin.REMOTE_POD})
# Settings, and which origins count as local sources with them.
DETECTORS: dict[str, tuple[dict[str, Any], frozenset[Origin]]] = {
    "ClusterCIDR": ({}, PODS),
    "NodeCIDR": ({"detect_local_mode": "NodeCIDR"}, LOCAL_PODS),
    "BridgeInterface": ({"detect_local_mode": "BridgeInterface", "bridge_interface": "cni0"}, LOCAL_PODS),
    "BridgeInterface that is no prefix": (
        {"detect_local_mode": "BridgeInterface", "bridge_interface": "cni"},
        frozenset(),
    ),
    "InterfaceNamePrefix": (
        {"detect_local_mode": "InterfaceNamePrefix", "interface_name_prefix": "cni"},
        LOCAL_PODS,
    ),
    "InterfaceNamePrefix of other interfaces": (
        {"detect_local_mode": "InterfaceNamePrefix", "interface_name_prefix": "veth"},
        frozenset(),
    ),
}
each_detector = pytest.mark.parametrize(("tweaks", "local"), DETECTORS.values(), ids=DETECTORS)
NO_DETECTOR: dict[str, Any] = {"cluster_cidrs": ()}


# ---- ClusterIP -----------------------------------------------------------------------------------------------------


@each_detector
def test_cluster_ips_masquerade_sources_that_are_not_local(
    lab: Lab, ip: Ip, tweaks: dict[str, Any], local: frozenset[Origin]
) -> None:
    """Sources that aren't local by the detector, the node's own included, are masqueraded, and local sources aren't."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here", "away"), **tweaks)
    assert cluster.by_origin(ip.vip) == {
        origin: at(ip.here, ip.away, masqueraded=origin not in local) for origin in Origin
    }


def test_cluster_ips_do_not_masquerade_without_a_detector(lab: Lab, ip: Ip) -> None:
    """When nothing tells local sources, no source is hidden from endpoints of a ClusterIP."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here", "away"), **NO_DETECTOR)
    assert cluster.by_origin(ip.vip) == everywhere(at(ip.here, ip.away))


@pytest.mark.parametrize("cluster_cidrs", [["10.1.0.0/16"], ["fd00:1::/48"]], ids=["of ip", "of ip6"])
def test_a_detector_is_of_one_family(lab: Lab, ip: Ip, cluster_cidrs: list[str]) -> None:
    """A cluster CIDR of a family leaves the other family without a detector."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here", "away"), cluster_cidrs=cluster_cidrs)
    has_detector = (":" in cluster_cidrs[0]) == ip.is_ipv6
    assert cluster.outcomes(Origin.OUTSIDE, ip.vip) == at(ip.here, ip.away, masqueraded=has_detector)


def test_the_node_cidr_follows_the_node(lab: Lab, ip: Ip) -> None:
    """With NodeCIDR nothing is masqueraded before the Node has pod CIDRs, and sources outside of them once it has."""
    bare = node(pod_cidrs=[])
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here", "away"), node=bare, detect_local_mode="NodeCIDR")
    assert cluster.outcomes(Origin.REMOTE_POD, ip.vip) == at(ip.here, ip.away)
    cluster.put(node())
    assert cluster.outcomes(Origin.REMOTE_POD, ip.vip) == masqueraded(ip.here, ip.away)
    assert cluster.outcomes(Origin.POD, ip.vip) == at(ip.here, ip.away)


@pytest.mark.parametrize("tweaks", [{}, NO_DETECTOR], ids=["with a detector", "without"])
def test_masquerade_all_masquerades_every_connection_to_a_cluster_ip(lab: Lab, ip: Ip, tweaks: dict[str, Any]) -> None:
    """With masqueradeAll every source is hidden, pods' too, whether or not there is a detector."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here", "away"), masquerade_all=True, **tweaks)
    assert cluster.by_origin(ip.vip) == everywhere(masqueraded(ip.here, ip.away))


def test_internal_policy_local_reaches_local_endpoints(lab: Lab, ip: Ip) -> None:
    """With internalTrafficPolicy Local everyone reaches this node's endpoint, masqueraded as with Cluster."""
    cluster = Cluster(lab, exposed_service(ip, internal_policy="Local"), pods(ip, "here", "away"))
    plain, hidden = at(ip.here), masqueraded(ip.here)
    assert cluster.by_origin(ip.vip) == seen(plain, plain, node=hidden, outside=hidden)


def test_policies_are_independent(lab: Lab, ip: Ip) -> None:
    """The internalTrafficPolicy is for the ClusterIP alone, externalTrafficPolicy for all else."""
    cluster = Cluster(lab, exposed_service(ip, internal_policy="Local"), pods(ip, "here", "away"))
    assert cluster.outcomes(Origin.POD, ip.vip) == at(ip.here)
    assert cluster.outcomes(Origin.POD, ip.external) == masqueraded(ip.here, ip.away)
    cluster.put(exposed_service(ip, external_policy="Local"))
    assert cluster.outcomes(Origin.OUTSIDE, ip.vip) == masqueraded(ip.here, ip.away)
    assert cluster.outcomes(Origin.OUTSIDE, ip.external) == at(ip.here)


# ---- external addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tweaks", [{}, NO_DETECTOR], ids=["with a detector", "without"])
def test_external_policy_cluster_masquerades_all(lab: Lab, ip: Ip, tweaks: dict[str, Any]) -> None:
    """With externalTrafficPolicy Cluster every endpoint is reached, and every source hidden, pods' included."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here", "away"), **tweaks)
    for address, port in ip.fronts[1:]:
        assert cluster.by_origin(address, port) == everywhere(masqueraded(ip.here, ip.away))


@pytest.mark.parametrize(
    ("tweaks", "local"),
    [*DETECTORS.values(), (NO_DETECTOR, frozenset()), ({"masquerade_all": True}, PODS)],
    ids=[*DETECTORS, "no detector", "masqueradeAll"],
)
def test_external_policy_local(lab: Lab, ip: Ip, tweaks: dict[str, Any], local: frozenset[Origin]) -> None:
    """Local sources reach all endpoints unhidden, the node all of them masqueraded, other sources the local endpoint
    unhidden.

    When nothing tells local sources, pods are treated as the outside is.  masqueradeAll is about ClusterIPs alone.
    """
    cluster = Cluster(lab, exposed_service(ip, external_policy="Local"), pods(ip, "here", "away"), **tweaks)
    wanted: dict[Origin, Outcomes] = {origin: at(ip.here) for origin in Origin}
    wanted[Origin.NODE] = masqueraded(ip.here, ip.away)
    wanted |= {origin: at(ip.here, ip.away) for origin in local}
    for address, port in ip.fronts[1:]:
        assert cluster.by_origin(address, port) == wanted


def test_external_policy_local_asks_for_local_sources_before_the_nodes_own(lab: Lab, ip: Ip) -> None:
    """A connection from the node's address among its pods counts as a local source: it is not masqueraded."""
    cluster = Cluster(lab, exposed_service(ip, external_policy="Local"), pods(ip, "here", "away"))
    for address, port in ip.fronts[1:]:
        assert cluster.outcomes(Origin.NODE, address, port, source=ip.gateway) == at(ip.here, ip.away)


def test_a_policy_change_takes_effect(lab: Lab, ip: Ip) -> None:
    """A change of externalTrafficPolicy takes effect for new connections, there and back."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here", "away"))
    cluster.put(exposed_service(ip, external_policy="Local"))
    for address, port in ip.fronts[1:]:
        assert cluster.outcomes(Origin.OUTSIDE, address, port) == at(ip.here)
    cluster.put(exposed_service(ip))
    for address, port in ip.fronts[1:]:
        assert cluster.outcomes(Origin.OUTSIDE, address, port) == masqueraded(ip.here, ip.away)


# ---- replies, and the ports of masqueraded connections -------------------------------------------------------------


def test_answers_come_back_translated(lab: Lab, ip: Ip, protocol: str) -> None:
    """The client of a connection, masqueraded or not, sees answers come from the address that it connected to."""
    given = exposed_service(ip, protocol, external_policy="Local")
    cluster = Cluster(lab, given, pods(ip, "here", "away", protocol=protocol))
    for address in (ip.vip, ip.external):
        for origin in Origin:
            for outcome in cluster.connect(origin, address, 80, protocol, times=8):
                assert lab.reply(outcome) == (address, 80)


def test_families_do_not_mix(lab: Lab) -> None:
    """The two families of a Service are masqueraded each as the node's address of that family."""
    dual = service(cluster_ips=[IP.vip, IP6.vip])
    cluster = Cluster(lab, dual, pods(IP, "away"), pods(IP6, "away", suffix="6"), masquerade_all=True)
    for ip in (IP, IP6):
        (outcome,) = cluster.connect(Origin.POD, ip.vip)
        assert outcome.source is not None
        assert outcome.source.ip == ip.node
