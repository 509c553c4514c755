"""Where a Service is reached: its ClusterIPs, external IPs, load balancer IPs and node ports, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from nftproxy_conformance.lab import DROPPED, NODE, TCP_RESET, UNTOUCHED, Kind, Lab, Origin

from tests.support.cluster import IP, IP6, Cluster, Ip, at, everywhere, exposed_service, masqueraded, pods, seen
from tests.support.factories import service
from tests.system.packets.manifests import Manifest, Manifests, service_manifest, slice_manifest

VIP_INGRESS: Manifest = {"ip": IP.balanced, "ipMode": "VIP"}


def balanced_by(ingress: Manifest, **spec: Any) -> Manifest:
    """A load balancer's Service, by manifest, with an ingress point."""
    return service_manifest({"type": "LoadBalancer", **spec}, status={"loadBalancer": {"ingress": [ingress]}})


def test_all_virtual_addresses_lead_to_the_endpoint(lab: Lab, ip: Ip, protocol: str) -> None:
    """A connection reaches the endpoint by each kind of address, from everywhere, and the answer fits it."""
    cluster = Cluster(lab, exposed_service(ip, protocol), pods(ip, "away", protocol=protocol))
    for address, port in ip.fronts:
        for origin in Origin:
            (outcome,) = cluster.connect(origin, address, port, protocol)
            assert (outcome.kind, outcome.endpoint) == (Kind.ENDPOINT, (ip.away, 8080))
            assert lab.reply(outcome) == (address, port)


def test_an_endpoint_in_the_nodes_own_network_is_reached(lab: Lab, ip: Ip, protocol: str) -> None:
    """Where the endpoint is the node itself, connections from everywhere are delivered to its port."""
    cluster = Cluster(lab, exposed_service(ip, protocol), pods(ip, "node", protocol=protocol))
    for address, port in ip.fronts:
        for outcomes in cluster.by_origin(address, port, protocol, times=2).values():
            assert {outcome.endpoint for outcome in outcomes} == {(ip.node, 8080)}
            assert {outcome.interface for outcome in outcomes} == {""}


def test_other_ports_of_external_addresses_are_left_alone(lab: Lab, ip: Ip) -> None:
    """Of an external or load balancer IP only the Service's ports are captured."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here"))
    assert cluster.by_origin(ip.external, 81, times=2) == everywhere(UNTOUCHED)
    assert cluster.by_origin(ip.balanced, 80, "udp", times=2) == everywhere(UNTOUCHED)


def test_other_ports_of_the_node_are_left_alone(lab: Lab, ip: Ip) -> None:
    """A port of the node that is nobody's node port stays the node's, and so does the Service's own port there."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here"))
    assert cluster.by_origin(ip.node, 80, times=2) == everywhere(NODE)
    assert cluster.by_origin(ip.node, 30080, "udp", times=2) == everywhere(NODE)


def test_a_node_port_is_not_a_port_of_the_cluster_ip(lab: Lab) -> None:
    """The node port's number is an unused port of the ClusterIP."""
    assert Cluster(lab, exposed_service(IP), pods(IP, "here")).outcomes(Origin.POD, IP.vip, 30080) == {TCP_RESET}


def test_external_addresses_of_both_families_are_served_in_theirs(lab: Lab) -> None:
    """Addresses of both families in a Service lead to the endpoints of their own family."""
    dual = service(
        type="LoadBalancer",
        cluster_ips=[IP.vip, IP6.vip],
        external_ips=[IP6.external, IP.external],
        load_balancer_ips=[IP6.balanced, IP.balanced],
    )
    cluster = Cluster(lab, dual, *(pods(ip, "away", suffix=ip.nft) for ip in (IP, IP6)))
    for ip in (IP, IP6):
        for address in (ip.external, ip.balanced):
            assert cluster.outcomes(Origin.OUTSIDE, address) == masqueraded(ip.away)


@pytest.mark.parametrize(
    ("ingress", "is_captured"),
    [
        (VIP_INGRESS, True),
        ({"ip": IP.balanced}, True),
        ({"ip": IP.balanced, "ipMode": "Proxy"}, False),
        ({"hostname": "lb.example.com"}, False),
    ],
    ids=["VIP", "no mode", "Proxy", "host name"],
)
def test_the_ingress_mode_decides(lab: Lab, ingress: Manifest, is_captured: bool) -> None:
    """A load balancer IP is captured if its ipMode is VIP or absent, and left to the load balancer if it is Proxy."""
    cluster = Manifests(lab, balanced_by(ingress), slice_manifest())
    assert cluster.outcomes(Origin.POD, IP.balanced) == (masqueraded(IP.here) if is_captured else {UNTOUCHED})


def test_the_wish_for_a_load_balancer_ip_is_ignored(lab: Lab) -> None:
    """spec.loadBalancerIP is a wish, and not an address that there is."""
    cluster = Manifests(lab, balanced_by(VIP_INGRESS, loadBalancerIP="203.0.113.8"), slice_manifest())
    assert cluster.outcomes(Origin.POD, "203.0.113.8") == {UNTOUCHED}


@pytest.mark.parametrize("kind", ["LoadBalancer", "NodePort", "ClusterIP"])
def test_the_external_policy_counts_for_every_type_with_external_ips(lab: Lab, kind: str) -> None:
    """The externalTrafficPolicy Local keeps an outside client's address, and drops connections without an endpoint
    here.
    """
    local = service_manifest({"type": kind, "externalTrafficPolicy": "Local", "externalIPs": [IP.external]})
    cluster = Manifests(lab, local, slice_manifest({"addresses": [IP.here], "nodeName": "node-a"}))
    assert cluster.outcomes(Origin.OUTSIDE, IP.external) == at(IP.here)
    cluster.relist(local, slice_manifest({"addresses": [IP.away], "nodeName": "node-b"}))
    assert cluster.outcomes(Origin.OUTSIDE, IP.external) == {DROPPED}


def test_addresses_come_and_go(lab: Lab, ip: Ip) -> None:
    """An external IP that is taken from a Service is nobody's, and an external IP that it is given is its own, at
    once.
    """
    cluster = Cluster(lab, service(cluster_ips=[ip.vip], external_ips=[ip.external]), pods(ip, "here"))
    cluster.put(service(cluster_ips=[ip.vip], external_ips=[ip.balanced]))
    assert cluster.outcomes(Origin.OUTSIDE, ip.external) == {UNTOUCHED}
    assert cluster.outcomes(Origin.OUTSIDE, ip.balanced) == masqueraded(ip.here)


def test_a_service_that_goes_leaves_nothing_behind(lab: Lab, ip: Ip) -> None:
    """Without its Service, each of its addresses is as it was before."""
    gone = exposed_service(ip, source_ranges=[ip.alone(ip.client)])
    cluster = Cluster(lab, gone, pods(ip, "here"))
    cluster.remove(gone)
    for address in (ip.vip, ip.external, ip.balanced):
        assert cluster.by_origin(address, times=2) == everywhere(UNTOUCHED)
    assert cluster.by_origin(ip.node, 30080, times=2) == everywhere(NODE)


def test_a_type_change_takes_node_ports_along(lab: Lab) -> None:
    """A Service that turns from NodePort to ExternalName is served nowhere, and everywhere once it turns back."""
    port = {"port": 80, "nodePort": 30080}
    open_ = service_manifest({"type": "NodePort", "ports": [port]})
    cluster = Manifests(lab, open_, slice_manifest())
    cluster.relist(service_manifest({"type": "ExternalName", "ports": [port]}), slice_manifest())
    assert cluster.by_origin(IP.node, 30080, times=2) == everywhere(NODE)
    assert cluster.by_origin(IP.vip, times=2) == everywhere(UNTOUCHED)
    cluster.relist(open_, slice_manifest())
    assert cluster.by_origin(IP.node, 30080) == everywhere(masqueraded(IP.here))
    assert cluster.by_origin(IP.vip) == seen(at(IP.here), at(IP.here), masqueraded(IP.here), masqueraded(IP.here))
