"""Traffic policies and masquerading, for each way to tell local sources.

The whole table of fronts, policies and origins is in tests/system/test_matrix.py; here are the rules one by one.
"""

from __future__ import annotations

from typing import Any

import pytest

from nftproxy.lab import DROPPED, Lab, Origin, Outcome
from nftproxy.model.settings import DetectLocalMode
from tests.support.factories import node, service, slice_of
from tests.system.packets.cluster import IP, IP6, Cluster, Ip, at, each_ip, each_protocol, everywhere, seen

# Which origins count as local sources: pod, remote pod, node, outside.
DETECTORS: dict[str, tuple[dict[str, Any], frozenset[Origin]]] = {
    "ClusterCIDR": ({}, frozenset({Origin.POD, Origin.REMOTE_POD})),
    "NodeCIDR": ({"detect_local_mode": DetectLocalMode.NODE_CIDR}, frozenset({Origin.POD})),
    "BridgeInterface": (
        {"detect_local_mode": DetectLocalMode.BRIDGE_INTERFACE, "bridge_interface": "cni0"},
        frozenset({Origin.POD}),
    ),
    "BridgeInterface that is no prefix": (
        {"detect_local_mode": DetectLocalMode.BRIDGE_INTERFACE, "bridge_interface": "cni"},
        frozenset(),
    ),
    "InterfaceNamePrefix": (
        {"detect_local_mode": DetectLocalMode.INTERFACE_NAME_PREFIX, "interface_name_prefix": "cni"},
        frozenset({Origin.POD}),
    ),
    "InterfaceNamePrefix of other interfaces": (
        {"detect_local_mode": DetectLocalMode.INTERFACE_NAME_PREFIX, "interface_name_prefix": "veth"},
        frozenset(),
    ),
}
each_detector = pytest.mark.parametrize(("tweaks", "local"), DETECTORS.values(), ids=DETECTORS)
NO_DETECTOR: dict[str, Any] = {"cluster_cidrs": ()}


def endpoints(ip: Ip) -> Any:
    """One endpoint here and one on another node."""
    return slice_of(endpoints=[f"{ip.here}@node-a", f"{ip.away}@node-b"])


# ---- ClusterIP -----------------------------------------------------------------------------------------------------


@each_ip
@each_detector
def test_cluster_ips_masquerade_sources_that_are_not_local(
    lab: Lab, ip: Ip, tweaks: dict[str, Any], local: frozenset[Origin]
) -> None:
    """What the detector doesn't call local, the node's own connections included, is masqueraded; the rest isn't."""
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]), endpoints(ip), **tweaks)
    assert cluster.by_origin(ip.vip) == {
        origin: at(ip.here, ip.away, masqueraded=origin not in local) for origin in Origin
    }


@each_ip
def test_cluster_ips_do_not_masquerade_without_a_detector(lab: Lab, ip: Ip) -> None:
    """When nothing tells local sources, no source is hidden from endpoints of a ClusterIP."""
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]), endpoints(ip), **NO_DETECTOR)
    assert cluster.by_origin(ip.vip) == everywhere(at(ip.here, ip.away))


@pytest.mark.parametrize("cluster_cidrs", [["10.1.0.0/16"], ["fd00:1::/48"]], ids=["of ip", "of ip6"])
@each_ip
def test_a_detector_is_of_one_family(lab: Lab, ip: Ip, cluster_cidrs: list[str]) -> None:
    """A cluster CIDR of one family leaves the other without a detector."""
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]), endpoints(ip), cluster_cidrs=cluster_cidrs)
    has_detector = (":" in cluster_cidrs[0]) == ip.is_ipv6
    assert cluster.outcomes(Origin.OUTSIDE, ip.vip) == at(ip.here, ip.away, masqueraded=has_detector)


@each_ip
def test_the_node_cidr_follows_the_node(lab: Lab, ip: Ip) -> None:
    """With NodeCIDR nothing is masqueraded before the Node has pod CIDRs, and what isn't in them once it has."""
    mode = DetectLocalMode.NODE_CIDR
    bare = node(pod_cidrs=[])
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]), endpoints(ip), node=bare, detect_local_mode=mode)
    assert cluster.outcomes(Origin.REMOTE_POD, ip.vip) == at(ip.here, ip.away)
    cluster.put(node())
    assert cluster.outcomes(Origin.REMOTE_POD, ip.vip) == at(ip.here, ip.away, masqueraded=True)
    assert cluster.outcomes(Origin.POD, ip.vip) == at(ip.here, ip.away)


@each_ip
@pytest.mark.parametrize("tweaks", [{}, NO_DETECTOR], ids=["with a detector", "without"])
def test_masquerade_all_masquerades_every_connection_to_a_cluster_ip(lab: Lab, ip: Ip, tweaks: dict[str, Any]) -> None:
    """With masqueradeAll every source is hidden, pods' too, whether or not there is a detector."""
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]), endpoints(ip), masquerade_all=True, **tweaks)
    assert cluster.by_origin(ip.vip) == everywhere(at(ip.here, ip.away, masqueraded=True))


@each_ip
def test_internal_policy_local_reaches_local_endpoints(lab: Lab, ip: Ip) -> None:
    """With internalTrafficPolicy Local everyone reaches this node's endpoint, masqueraded as with Cluster."""
    cluster = Cluster(lab, service(cluster_ips=[ip.vip], internal_policy="Local"), endpoints(ip))
    plain, masqueraded = at(ip.here), at(ip.here, masqueraded=True)
    assert cluster.by_origin(ip.vip) == seen(plain, plain, node=masqueraded, outside=masqueraded)


@each_ip
def test_policies_are_independent(lab: Lab, ip: Ip) -> None:
    """The internalTrafficPolicy is for the ClusterIP alone, externalTrafficPolicy for all else."""
    mixed = service(cluster_ips=[ip.vip], external_ips=[ip.external], internal_policy="Local")
    cluster = Cluster(lab, mixed, endpoints(ip))
    assert cluster.outcomes(Origin.POD, ip.vip) == at(ip.here)
    assert cluster.outcomes(Origin.POD, ip.external) == at(ip.here, ip.away, masqueraded=True)
    swapped = service(cluster_ips=[ip.vip], external_ips=[ip.external], external_policy="Local")
    cluster.put(swapped)
    assert cluster.outcomes(Origin.OUTSIDE, ip.vip) == at(ip.here, ip.away, masqueraded=True)
    assert cluster.outcomes(Origin.OUTSIDE, ip.external) == at(ip.here)


# ---- external addresses --------------------------------------------------------------------------------------------


def all_external(ip: Ip, **tweaks: Any) -> Any:
    """A Service with all kinds of external addresses."""
    return service(
        type="LoadBalancer",
        cluster_ips=[ip.vip],
        external_ips=[ip.external],
        load_balancer_ips=[ip.balanced],
        ports=["http:80:30080"],
        **tweaks,
    )


def fronts(ip: Ip) -> list[tuple[str, int]]:
    """Its external addresses and ports."""
    return [(ip.external, 80), (ip.balanced, 80), (ip.node, 30080)]


@each_ip
@pytest.mark.parametrize("tweaks", [{}, NO_DETECTOR], ids=["with a detector", "without"])
def test_external_policy_cluster_masquerades_all(lab: Lab, ip: Ip, tweaks: dict[str, Any]) -> None:
    """With externalTrafficPolicy Cluster every endpoint is reached, and every source hidden, pods' included."""
    cluster = Cluster(lab, all_external(ip), endpoints(ip), **tweaks)
    for address, port in fronts(ip):
        assert cluster.by_origin(address, port) == everywhere(at(ip.here, ip.away, masqueraded=True))


@each_ip
@each_detector
def test_external_policy_local(lab: Lab, ip: Ip, tweaks: dict[str, Any], local: frozenset[Origin]) -> None:
    """Local sources reach all endpoints unhidden, the node all of them masqueraded, others the local one unhidden."""
    cluster = Cluster(lab, all_external(ip, external_policy="Local"), endpoints(ip), **tweaks)
    wanted: dict[Origin, set[Outcome]] = {origin: at(ip.here) for origin in Origin}
    wanted[Origin.NODE] = at(ip.here, ip.away, masqueraded=True)
    wanted |= {origin: at(ip.here, ip.away) for origin in local}
    for address, port in fronts(ip):
        assert cluster.by_origin(address, port) == wanted


@each_ip
def test_external_policy_local_without_a_detector(lab: Lab, ip: Ip) -> None:
    """When nothing tells local sources, pods are treated as the outside is, and the node still reaches everyone."""
    cluster = Cluster(lab, all_external(ip, external_policy="Local"), endpoints(ip), **NO_DETECTOR)
    for address, port in fronts(ip):
        assert cluster.by_origin(address, port) == seen(
            at(ip.here), at(ip.here), node=at(ip.here, ip.away, masqueraded=True), outside=at(ip.here)
        )


@each_ip
def test_masquerade_all_is_not_for_external_policy_local(lab: Lab, ip: Ip) -> None:
    """The option masqueradeAll is about ClusterIPs: policy Local still keeps the source of pods and outside clients."""
    cluster = Cluster(lab, all_external(ip, external_policy="Local"), endpoints(ip), masquerade_all=True)
    for address, port in fronts(ip):
        assert cluster.by_origin(address, port) == seen(
            at(ip.here, ip.away),
            at(ip.here, ip.away),
            node=at(ip.here, ip.away, masqueraded=True),
            outside=at(ip.here),
        )


@each_ip
def test_external_policy_local_asks_for_local_sources_before_the_nodes_own(lab: Lab, ip: Ip) -> None:
    """A connection from the node's address among its pods counts as a local source: it is not masqueraded."""
    cluster = Cluster(lab, all_external(ip, external_policy="Local"), endpoints(ip))
    for address, port in fronts(ip):
        assert cluster.outcomes(Origin.NODE, address, port, source=ip.gateway) == at(ip.here, ip.away)


@each_ip
def test_external_policy_local_without_local_endpoints(lab: Lab, ip: Ip) -> None:
    """With all endpoints elsewhere, clients outside are dropped while pods and the node still get through."""
    cluster = Cluster(lab, all_external(ip, external_policy="Local"), slice_of(endpoints=[f"{ip.away}@node-b"]))
    for address, port in fronts(ip):
        assert cluster.by_origin(address, port) == seen(
            at(ip.away), at(ip.away), node=at(ip.away, masqueraded=True), outside={DROPPED}
        )


@each_ip
def test_a_policy_change_takes_effect(lab: Lab, ip: Ip) -> None:
    """When externalTrafficPolicy changes, so does what new connections meet, there and back."""
    cluster = Cluster(lab, all_external(ip), endpoints(ip))
    cluster.put(all_external(ip, external_policy="Local"))
    for address, port in fronts(ip):
        assert cluster.outcomes(Origin.OUTSIDE, address, port) == at(ip.here)
    cluster.put(all_external(ip))
    for address, port in fronts(ip):
        assert cluster.outcomes(Origin.OUTSIDE, address, port) == at(ip.here, ip.away, masqueraded=True)


# ---- replies, and the ports of masqueraded connections -------------------------------------------------------------


@each_ip
@each_protocol
def test_answers_come_back_translated(lab: Lab, ip: Ip, protocol: str) -> None:
    """The client of a connection, masqueraded or not, sees answers come from the address that it connected to."""
    given = service(
        cluster_ips=[ip.vip], external_ips=[ip.external], external_policy="Local", ports=[f"http:80/{protocol}"]
    )
    cluster = Cluster(
        lab, given, slice_of(endpoints=[f"{ip.here}@node-a", f"{ip.away}@node-b"], ports=[f"http:8080/{protocol}"])
    )
    for address in (ip.vip, ip.external):
        for origin in Origin:
            for outcome in cluster.connect(origin, address, 80, protocol, times=8):
                assert lab.reply(outcome) == (address, 80)


def test_families_do_not_mix(lab: Lab) -> None:
    """The two families of one Service are masqueraded each as the node's address of that family."""
    dual = service(cluster_ips=[IP.vip, IP6.vip])
    cluster = Cluster(
        lab, dual, slice_of(endpoints=[IP.away]), slice_of(endpoints=[IP6.away], suffix="6"), masquerade_all=True
    )
    for ip in (IP, IP6):
        (outcome,) = cluster.connect(Origin.POD, ip.vip)
        assert outcome.source is not None
        assert outcome.source.ip == ip.node
