"""What no Service can capture by naming it as its own: ClusterIPs of others (test_node_addresses.py: the node's ports).

And external IPs, which can be forbidden altogether (AllowServiceExternalIPs), or limited to ranges.
"""

from __future__ import annotations

import pytest

from nftproxy.lab import TCP_RESET, UNTOUCHED, Lab, Origin
from tests.support.factories import networks, slice_of
from tests.system.packets.cluster import IP, Cluster, Ip, at, each_ip, everywhere
from tests.system.packets.rivals import one, slices, two

OUTSIDE = Origin.OUTSIDE

# ---- ClusterIPs ---------------------------------------------------------------------------------------------------


@each_ip
@pytest.mark.parametrize("kind", ["external_ips", "load_balancer_ips"])
@pytest.mark.parametrize("created", [50, 300], ids=["older", "younger"])
def test_a_cluster_ip_can_not_be_captured(lab: Lab, ip: Ip, kind: str, created: int) -> None:
    """An external address that is another Service's ClusterIP captures no port of it, however old the Service is."""
    thief = two(ip, **{kind: [ip.vip, ip.balanced]}, created=created, ports=["http:80", "more:81"])
    cluster = Cluster(
        lab, thief, one(ip), slices(ip)[0], slice_of("shop/two", [ip.away], ports=["http:8080", "more:8080"])
    )
    assert cluster.outcomes(Origin.POD, ip.vip, 80) == at(ip.here)
    assert cluster.outcomes(Origin.POD, ip.vip, 81) == {TCP_RESET}
    assert cluster.outcomes(Origin.POD, ip.balanced, 81) == at(ip.away, masqueraded=True)


@each_ip
def test_a_cluster_ip_that_comes_ends_a_capture(lab: Lab, ip: Ip) -> None:
    """An external IP is its Service's until it becomes another's ClusterIP, and again when that has gone."""
    holder = one(ip)
    cluster = Cluster(lab, two(ip, external_ips=[ip.vip]), *slices(ip))
    assert cluster.outcomes(Origin.POD, ip.vip) == at(ip.away, masqueraded=True)
    cluster.put(holder)
    assert cluster.outcomes(Origin.POD, ip.vip) == at(ip.here)
    cluster.remove(holder)
    assert cluster.outcomes(Origin.POD, ip.vip) == at(ip.away, masqueraded=True)


@each_ip
def test_a_services_own_cluster_ip_as_its_external_ip_is_a_cluster_ip(lab: Lab, ip: Ip) -> None:
    """A Service that names its own ClusterIP as an external IP is reached there as at any ClusterIP."""
    cluster = Cluster(lab, one(ip, external_ips=[ip.vip]), *slices(ip))
    assert cluster.outcomes(Origin.POD, ip.vip) == at(ip.here)
    assert cluster.outcomes(OUTSIDE, ip.vip) == at(ip.here, masqueraded=True)


def test_two_services_with_one_cluster_ip(lab: Lab) -> None:
    """Two Services with one ClusterIP, which manifests can have, keep their own ports; the older has the shared one."""
    older = one(IP, ports=["http:80", "more:81"])
    younger = two(IP, cluster_ips=[IP.vip], ports=["http:80", "more:82"])
    cluster = Cluster(
        lab,
        younger,
        older,
        slice_of("shop/one", [IP.here], ports=["http:8080", "more:8080"]),
        slice_of("shop/two", [IP.away], ports=["http:8080", "more:8080"]),
    )
    found = {port: cluster.outcomes(Origin.POD, IP.vip, port) for port in (80, 81, 82, 83)}
    assert found == {80: at(IP.here), 81: at(IP.here), 82: at(IP.away), 83: {TCP_RESET}}


# ---- AllowServiceExternalIPs ---------------------------------------------------------------------------------------


@each_ip
def test_external_ips_can_be_forbidden(lab: Lab, ip: Ip) -> None:
    """With AllowServiceExternalIPs=false external IPs are left alone, and all other addresses served."""
    told = one(ip, external_ips=[ip.external], load_balancer_ips=[ip.balanced], ports=["http:80:30080"])
    cluster = Cluster(lab, told, *slices(ip), allow_service_external_ips=False)
    assert cluster.by_origin(ip.external, times=2) == everywhere(UNTOUCHED)
    for address, port in [(ip.balanced, 80), (ip.node, 30080)]:
        assert cluster.outcomes(OUTSIDE, address, port) == at(ip.here, masqueraded=True)
    assert cluster.outcomes(Origin.POD, ip.vip) == at(ip.here)


def test_forbidden_external_ips_claim_nothing(lab: Lab) -> None:
    """A forbidden external IP doesn't keep the address from a younger Service's load balancer."""
    cluster = Cluster(
        lab,
        one(IP, external_ips=[IP.external]),
        two(IP, load_balancer_ips=[IP.external]),
        *slices(IP),
        allow_service_external_ips=False,
    )
    assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.away, masqueraded=True)


def test_forbidden_external_ips_are_refused_nowhere(lab: Lab) -> None:
    """Without endpoints a forbidden external IP is still left alone."""
    cluster = Cluster(lab, one(IP, external_ips=[IP.external]), allow_service_external_ips=False)
    assert cluster.outcomes(OUTSIDE, IP.external) == {UNTOUCHED}


@each_ip
def test_external_ips_can_be_limited_to_ranges(lab: Lab, ip: Ip) -> None:
    """Outside of nftproxy.externalIPCIDRs external IPs are left alone; load balancer IPs are not asked for."""
    told = one(ip, external_ips=[ip.external], load_balancer_ips=[ip.balanced])
    for ranges, outcome in (([ip.alone(ip.external)], at(ip.here, masqueraded=True)), (["192.0.2.0/24"], {UNTOUCHED})):
        lab.reset()
        lab.reset()
        cluster = Cluster(lab, told, *slices(ip), external_ip_cidrs=networks(ranges))
        assert cluster.outcomes(OUTSIDE, ip.external) == outcome
        assert cluster.outcomes(OUTSIDE, ip.balanced) == at(ip.here, masqueraded=True)
