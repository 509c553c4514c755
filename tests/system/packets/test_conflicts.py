"""Which Service gets an address and port that several claim, and which gets it next."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from nftproxy_conformance.lab import DROPPED, NODE, TCP_RESET, Lab, Origin

from tests.support.cluster import IP, IP6, Cluster, Ip, at, everywhere, masqueraded, pods
from tests.support.factories import service, slice_of
from tests.system.packets.rivals import one, slices, two

OUTSIDE = Origin.OUTSIDE

# Each kind of front that two Services can claim: the fields with which a Service claims it, and its address and port.
CONTESTED: dict[str, Callable[[Ip], tuple[dict[str, Any], str, int]]] = {
    "external IP": lambda ip: ({"external_ips": [ip.external]}, ip.external, 80),
    "load balancer IP": lambda ip: ({"load_balancer_ips": [ip.external]}, ip.external, 80),
    "node port": lambda ip: ({"ports": ["http:80:30080"]}, ip.node, 30080),
}
each_contested = pytest.mark.parametrize("contested", CONTESTED.values(), ids=CONTESTED)
Contested = Callable[[Ip], tuple[dict[str, Any], str, int]]

THREE = service("shop/three", cluster_ips=["10.96.0.30"], created=300, external_ips=[IP.external])
"""A third claimant, the youngest."""
THIRD_SLICE = pods(IP, "away2", name="shop/three")


# ---- the winner ----------------------------------------------------------------------------------------------------


@each_contested
@pytest.mark.parametrize("first", ["older", "younger"])
def test_the_older_service_wins(lab: Lab, ip: Ip, contested: Contested, first: str) -> None:
    """The Service that was created first has a contested address and port, in either order of events."""
    claim, address, port = contested(ip)
    objects = [one(ip, **claim), two(ip, **claim)]
    cluster = Cluster(lab, *slices(ip))
    for each in objects if first == "older" else reversed(objects):
        cluster.put(each)
    assert cluster.outcomes(OUTSIDE, address, port) == masqueraded(ip.here)


@each_contested
@pytest.mark.parametrize(("first", "second"), [("a/zzz", "b/aaa"), ("shop/a", "shop/b")], ids=["namespace", "name"])
@pytest.mark.parametrize("is_swapped", [False, True], ids=["in order", "swapped"])
def test_names_decide_among_those_of_one_age(
    lab: Lab, contested: Contested, first: str, second: str, is_swapped: bool
) -> None:
    """Of Services created in the same second, the first by namespace and then by name wins."""
    claim, address, port = contested(IP)
    claim |= {"created": 100}
    objects = [one(IP, first, **claim), two(IP, second, **claim)]
    cluster = Cluster(lab, *slices(IP, first, second))
    cluster.put(*(reversed(objects) if is_swapped else objects))
    assert cluster.outcomes(OUTSIDE, address, port) == masqueraded(IP.here)


def test_an_external_ip_and_a_load_balancer_ip_are_one_claim(lab: Lab) -> None:
    """An address that is a Service's external IP and another's load balancer IP is the older Service's."""
    cluster = Cluster(lab, one(IP, load_balancer_ips=[IP.external]), two(IP, external_ips=[IP.external]), *slices(IP))
    assert cluster.outcomes(OUTSIDE, IP.external) == masqueraded(IP.here)
    cluster.put(two(IP, external_ips=[IP.external], created=50))
    assert cluster.outcomes(OUTSIDE, IP.external) == masqueraded(IP.away)


def test_the_winner_does_not_depend_on_the_order_of_events(lab: Lab) -> None:
    """In any order in which three claimants come, the oldest has the address."""
    claim = {"external_ips": [IP.external]}
    for order in itertools.permutations([one(IP, **claim), two(IP, **claim), THREE]):
        cluster = Cluster(lab, *slices(IP), THIRD_SLICE)
        for each in order:
            cluster.put(each)
        assert cluster.outcomes(OUTSIDE, IP.external) == masqueraded(IP.here)
        lab.load("flush ruleset")


# ---- no conflict ---------------------------------------------------------------------------------------------------


def test_services_share_an_address_by_port_and_protocol(lab: Lab, ip: Ip) -> None:
    """Two Services on the same external IP that differ in port or protocol are both served."""
    claim = {"external_ips": [ip.external]}
    services = one(ip, **claim, ports=["http:80/tcp"]), two(ip, **claim, ports=["http:80/udp", "other:81/tcp"])
    target = slice_of("shop/two", [ip.away], ports=["http:8080/udp", "other:8080/tcp"])
    cluster = Cluster(lab, *services, slices(ip)[0], target)
    assert cluster.outcomes(OUTSIDE, ip.external, 80, "tcp") == masqueraded(ip.here)
    assert cluster.outcomes(OUTSIDE, ip.external, 80, "udp") == masqueraded(ip.away)
    assert cluster.outcomes(OUTSIDE, ip.external, 81, "tcp") == masqueraded(ip.away)


def test_node_ports_differ_by_protocol(lab: Lab) -> None:
    """Two Services may have the same node port for different protocols."""
    services = one(IP, ports=["http:80:30080/tcp"]), two(IP, ports=["http:80:30080/udp"])
    cluster = Cluster(lab, *services, slices(IP)[0], pods(IP, "away", name="shop/two", protocol="udp"))
    assert cluster.outcomes(OUTSIDE, IP.node, 30080, "tcp") == masqueraded(IP.here)
    assert cluster.outcomes(OUTSIDE, IP.node, 30080, "udp") == masqueraded(IP.away)


def test_a_claim_of_a_family_that_is_not_served_takes_nothing(lab: Lab) -> None:
    """An older Service without a ClusterIP of the family doesn't keep its IPv4 external IP from a younger Service."""
    older = one(IP6, external_ips=[IP.external])
    cluster = Cluster(lab, older, two(IP, external_ips=[IP.external]), *slices(IP))
    assert cluster.outcomes(OUTSIDE, IP.external) == masqueraded(IP.away)


# ---- the loser -----------------------------------------------------------------------------------------------------


@each_contested
def test_the_loser_keeps_its_other_addresses(lab: Lab, ip: Ip, contested: Contested) -> None:
    """A Service that loses an address is still reached at its ClusterIP, at other external IPs and other ports."""
    claim, _, _ = contested(ip)
    mine = {name: list(values) for name, values in claim.items()}
    mine.setdefault("external_ips", []).append(ip.balanced)
    mine.setdefault("ports", ["http:80"]).append("more:81:30081")
    target = slice_of("shop/two", [ip.away], ports=["http:8080", "more:8080"])
    cluster = Cluster(lab, one(ip, **claim), two(ip, **mine), slices(ip)[0], target)
    for address, port in [(ip.vip2, 80), (ip.vip2, 81), (ip.balanced, 80), (ip.balanced, 81), (ip.node, 30081)]:
        assert cluster.outcomes(OUTSIDE, address, port) == masqueraded(ip.away)


@each_contested
def test_a_loser_does_not_help_out(lab: Lab, ip: Ip, contested: Contested) -> None:
    """When the winner has no endpoints its clients are refused, and don't meet the loser's."""
    claim, address, port = contested(ip)
    cluster = Cluster(lab, one(ip, **claim), two(ip, **claim), slices(ip)[1])
    assert cluster.by_origin(address, port, times=2) == everywhere(TCP_RESET)


def test_a_losers_policy_does_not_count(lab: Lab) -> None:
    """At the contested address the winner's traffic policy holds, and not the loser's."""
    claim = {"external_ips": [IP.external]}
    cluster = Cluster(lab, one(IP, **claim), two(IP, **claim, external_policy="Local"), *slices(IP))
    assert cluster.outcomes(OUTSIDE, IP.external) == masqueraded(IP.here)
    cluster.put(one(IP, **claim, external_policy="Local"), two(IP, **claim))
    assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.here)


def test_a_losers_source_ranges_do_not_count(lab: Lab) -> None:
    """The winner's ranges restrict the contested address, and the loser's only its own."""
    claim = {"load_balancer_ips": [IP.external]}
    nobody = ["10.99.0.0/16"]
    other = two(IP, load_balancer_ips=[IP.external, IP.balanced], source_ranges=nobody)
    cluster = Cluster(lab, one(IP, **claim), other, *slices(IP))
    assert cluster.outcomes(OUTSIDE, IP.external) == masqueraded(IP.here)
    assert cluster.outcomes(OUTSIDE, IP.balanced) == {DROPPED}
    cluster.put(one(IP, **claim, source_ranges=nobody), two(IP, **claim))
    assert cluster.outcomes(OUTSIDE, IP.external) == {DROPPED}


# ---- taking over ---------------------------------------------------------------------------------------------------


@each_contested
def test_the_loser_takes_over_when_the_winner_goes(lab: Lab, ip: Ip, contested: Contested) -> None:
    """In the transaction that removes the winner the loser gets the address, and loses it when the winner is back."""
    claim, address, port = contested(ip)
    winner = one(ip, **claim)
    cluster = Cluster(lab, winner, two(ip, **claim), *slices(ip))
    cluster.remove(winner)
    assert cluster.outcomes(OUTSIDE, address, port) == masqueraded(ip.away)
    cluster.put(winner)
    assert cluster.outcomes(OUTSIDE, address, port) == masqueraded(ip.here)


@each_contested
def test_the_loser_takes_over_when_the_winner_lets_go(lab: Lab, ip: Ip, contested: Contested) -> None:
    """A winner that gives up the address, and otherwise stays, leaves it to the loser at once."""
    claim, address, port = contested(ip)
    cluster = Cluster(lab, one(ip, **claim), two(ip, **claim), *slices(ip))
    cluster.put(one(ip))
    assert cluster.outcomes(OUTSIDE, address, port) == masqueraded(ip.away)
    assert cluster.outcomes(OUTSIDE, ip.vip) == masqueraded(ip.here)


def test_source_ranges_change_hands(lab: Lab) -> None:
    """With the address the successor's source ranges come into force, and the predecessor's end."""
    claim = {"load_balancer_ips": [IP.external]}
    winner = one(IP, **claim, source_ranges=[IP.alone(IP.client)])
    cluster = Cluster(lab, winner, two(IP, **claim, source_ranges=[IP.alone(IP.pod)]), *slices(IP))
    assert cluster.outcomes(OUTSIDE, IP.external) == masqueraded(IP.here)
    assert cluster.outcomes(Origin.POD, IP.external) == {DROPPED}
    cluster.remove(winner)
    assert cluster.outcomes(OUTSIDE, IP.external) == {DROPPED}
    assert cluster.outcomes(Origin.POD, IP.external) == masqueraded(IP.away)


def test_the_next_in_line_takes_over(lab: Lab) -> None:
    """Of several losers the oldest takes over."""
    claim = {"external_ips": [IP.external]}
    first, second = one(IP, **claim), two(IP, **claim)
    cluster = Cluster(lab, THREE, second, first, *slices(IP), THIRD_SLICE)
    for gone, next_one in [(first, IP.away), (second, IP.away2)]:
        cluster.remove(gone)
        assert cluster.outcomes(OUTSIDE, IP.external) == masqueraded(next_one)


# ---- health-check ports --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_older", [True, False], ids=["older", "younger"])
def test_a_health_check_port_is_a_claim(lab: Lab, is_older: bool) -> None:
    """A node port that is an older Service's health-check port is not served, and a younger Service's is."""
    checked = one(IP, health_check_node_port=30080, external_policy="Local", created=100 if is_older else 300)
    cluster = Cluster(lab, checked, two(IP, ports=["http:80:30080"]), *slices(IP))
    outcomes = cluster.outcomes(OUTSIDE, IP.node, 30080)
    assert outcomes == ({NODE} if is_older else masqueraded(IP.away))
    cluster.remove(checked)
    assert cluster.outcomes(OUTSIDE, IP.node, 30080) == masqueraded(IP.away)


def test_a_health_check_port_is_tcp(lab: Lab) -> None:
    """A UDP node port of the same number as a health-check port is served."""
    checked = one(IP, health_check_node_port=30080, external_policy="Local")
    other = two(IP, ports=["http:80:30080/udp"])
    cluster = Cluster(lab, checked, other, pods(IP, "away", name="shop/two", protocol="udp"))
    assert cluster.outcomes(OUTSIDE, IP.node, 30080, "udp") == masqueraded(IP.away)
