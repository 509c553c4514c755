"""No Service can capture the ClusterIPs of other Services by naming them as its own (test_node_addresses.py: the
node's ports).

External IPs can be forbidden altogether (AllowServiceExternalIPs), or limited to ranges.
"""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import TCP_RESET, UNTOUCHED, Lab, Origin

from tests.support.cluster import IP, Cluster, Ip, at, everywhere, masqueraded
from tests.support.factories import networks, slice_of
from tests.system.packets.rivals import one, slices, two

OUTSIDE, POD = Origin.OUTSIDE, Origin.POD

# ---- ClusterIPs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["external_ips", "load_balancer_ips"])
@pytest.mark.parametrize("created", [50, 300], ids=["older", "younger"])
def test_a_cluster_ip_can_not_be_captured(lab: Lab, ip: Ip, kind: str, created: int) -> None:
    """An external address that is another Service's ClusterIP captures no port of it, however old the Service is."""
    thief = two(ip, **{kind: [ip.vip, ip.balanced]}, created=created, ports=["http:80", "more:81"])
    loot = slice_of("shop/two", [ip.away], ports=["http:8080", "more:8080"])
    cluster = Cluster(lab, thief, one(ip), slices(ip)[0], loot)
    assert cluster.outcomes(POD, ip.vip, 80) == at(ip.here)
    assert cluster.outcomes(POD, ip.vip, 81) == {TCP_RESET}
    assert cluster.outcomes(POD, ip.balanced, 81) == masqueraded(ip.away)


def test_a_cluster_ip_that_comes_ends_a_capture(lab: Lab, ip: Ip) -> None:
    """An external IP is its Service's until it becomes another's ClusterIP, and again when that has gone."""
    holder = one(ip)
    cluster = Cluster(lab, two(ip, external_ips=[ip.vip]), *slices(ip))
    assert cluster.outcomes(POD, ip.vip) == masqueraded(ip.away)
    cluster.put(holder)
    assert cluster.outcomes(POD, ip.vip) == at(ip.here)
    cluster.remove(holder)
    assert cluster.outcomes(POD, ip.vip) == masqueraded(ip.away)


def test_a_services_own_cluster_ip_as_its_external_ip_is_a_cluster_ip(lab: Lab, ip: Ip) -> None:
    """A Service that names its own ClusterIP as an external IP is reached there as at any ClusterIP."""
    cluster = Cluster(lab, one(ip, external_ips=[ip.vip]), *slices(ip))
    assert cluster.outcomes(POD, ip.vip) == at(ip.here)
    assert cluster.outcomes(OUTSIDE, ip.vip) == masqueraded(ip.here)


def test_two_services_with_one_cluster_ip(lab: Lab) -> None:
    """Two Services with the same ClusterIP, which manifests can have, keep their own ports, and the older has the
    shared.
    """
    older = one(IP, ports=["http:80", "more:81"])
    younger = two(IP, cluster_ips=[IP.vip], ports=["http:80", "more:82"])
    ports = ["http:8080", "more:8080"]
    targets = slice_of("shop/one", [IP.here], ports=ports), slice_of("shop/two", [IP.away], ports=ports)
    cluster = Cluster(lab, younger, older, *targets)
    found = {port: cluster.outcomes(POD, IP.vip, port) for port in (80, 81, 82, 83)}
    assert found == {80: at(IP.here), 81: at(IP.here), 82: at(IP.away), 83: {TCP_RESET}}


# ---- AllowServiceExternalIPs ---------------------------------------------------------------------------------------


def test_external_ips_can_be_forbidden(lab: Lab, ip: Ip) -> None:
    """With AllowServiceExternalIPs=false external IPs are left alone, and all other addresses served."""
    given = one(ip, external_ips=[ip.external], load_balancer_ips=[ip.balanced], ports=["http:80:30080"])
    cluster = Cluster(lab, given, *slices(ip), allow_service_external_ips=False)
    assert cluster.by_origin(ip.external, times=2) == everywhere(UNTOUCHED)
    for address, port in [(ip.balanced, 80), (ip.node, 30080)]:
        assert cluster.outcomes(OUTSIDE, address, port) == masqueraded(ip.here)
    assert cluster.outcomes(POD, ip.vip) == at(ip.here)


def test_forbidden_external_ips_claim_nothing(lab: Lab) -> None:
    """A forbidden external IP doesn't keep the address from a younger Service's load balancer."""
    claims = one(IP, external_ips=[IP.external]), two(IP, load_balancer_ips=[IP.external])
    cluster = Cluster(lab, *claims, *slices(IP), allow_service_external_ips=False)
    assert cluster.outcomes(OUTSIDE, IP.external) == masqueraded(IP.away)


def test_forbidden_external_ips_are_refused_nowhere(lab: Lab) -> None:
    """Without endpoints a forbidden external IP is still left alone."""
    cluster = Cluster(lab, one(IP, external_ips=[IP.external]), allow_service_external_ips=False)
    assert cluster.outcomes(OUTSIDE, IP.external) == {UNTOUCHED}


@pytest.mark.parametrize("is_allowed", [True, False], ids=["in a range", "in none"])
def test_external_ips_can_be_limited_to_ranges(lab: Lab, ip: Ip, is_allowed: bool) -> None:
    """Outside of nftproxy.externalIPCIDRs external IPs are left alone, and load balancer IPs are served anyway."""
    given = one(ip, external_ips=[ip.external], load_balancer_ips=[ip.balanced])
    ranges = networks([ip.alone(ip.external) if is_allowed else "192.0.2.0/24"])
    cluster = Cluster(lab, given, *slices(ip), external_ip_cidrs=ranges)
    assert cluster.outcomes(OUTSIDE, ip.external) == (masqueraded(ip.here) if is_allowed else {UNTOUCHED})
    assert cluster.outcomes(OUTSIDE, ip.balanced) == masqueraded(ip.here)
