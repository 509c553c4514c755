"""Who gets an address and port that several Services claim, and who gets it next."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from nftproxy.lab import DROPPED, NODE, TCP_RESET, Lab, Origin
from tests.support.factories import service, slice_of
from tests.system.packets.cluster import IP, IP6, Cluster, Ip, at, each_ip, everywhere
from tests.system.packets.rivals import one, slices, two

OUTSIDE = Origin.OUTSIDE

# Each kind of front that two Services can claim: what a Service must have to claim it, and where it is reached.
CONTESTED: dict[str, Callable[[Ip], tuple[dict[str, Any], str, int]]] = {
    "external IP": lambda ip: ({"external_ips": [ip.external]}, ip.external, 80),
    "load balancer IP": lambda ip: ({"load_balancer_ips": [ip.external]}, ip.external, 80),
    "node port": lambda ip: ({"ports": ["http:80:30080"]}, ip.node, 30080),
}
each_contested = pytest.mark.parametrize("contested", CONTESTED.values(), ids=CONTESTED)
Contested = Callable[[Ip], tuple[dict[str, Any], str, int]]


# ---- who wins ------------------------------------------------------------------------------------------------------


@each_ip
@each_contested
@pytest.mark.parametrize("first", ["older", "younger"])
def test_the_older_service_wins(lab: Lab, ip: Ip, contested: Contested, first: str) -> None:
    """The Service that was created first has a contested address and port, in whatever order the two are seen."""
    claim, address, port = contested(ip)
    objects = [one(ip, **claim), two(ip, **claim)]
    cluster = Cluster(lab, *slices(ip))
    for each in objects if first == "older" else reversed(objects):
        cluster.put(each)
    assert cluster.outcomes(OUTSIDE, address, port) == at(ip.here, masqueraded=True)


@each_contested
@pytest.mark.parametrize(
    ("first", "second"), [("a/zzz", "b/aaa"), ("shop/a", "shop/b")], ids=["by namespace", "by name"]
)
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
    assert cluster.outcomes(OUTSIDE, address, port) == at(IP.here, masqueraded=True)


def test_an_external_ip_and_a_load_balancer_ip_are_one_claim(lab: Lab) -> None:
    """An address that is one Service's external IP and another's load balancer IP is the older one's."""
    cluster = Cluster(lab, one(IP, load_balancer_ips=[IP.external]), two(IP, external_ips=[IP.external]), *slices(IP))
    assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.here, masqueraded=True)
    cluster.put(two(IP, external_ips=[IP.external], created=50))
    assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.away, masqueraded=True)


def test_the_winner_does_not_depend_on_the_order_of_events(lab: Lab) -> None:
    """Whatever the order in which three claimants come, the oldest has the address."""
    claim = {"external_ips": [IP.external]}
    three = service("shop/three", cluster_ips=["10.96.0.30"], created=300, external_ips=[IP.external])
    for order in itertools.permutations([one(IP, **claim), two(IP, **claim), three]):
        cluster = Cluster(lab, *slices(IP), slice_of("shop/three", [IP.away2]))
        for each in order:
            cluster.put(each)
        assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.here, masqueraded=True)
        lab.load("flush ruleset")


# ---- what is no conflict -------------------------------------------------------------------------------------------


@each_ip
def test_services_share_an_address_by_port_and_protocol(lab: Lab, ip: Ip) -> None:
    """Two Services on one external IP that differ in port or protocol both have theirs."""
    claim = {"external_ips": [ip.external]}
    cluster = Cluster(
        lab,
        one(ip, **claim, ports=["http:80/tcp"]),
        two(ip, **claim, ports=["http:80/udp", "other:81/tcp"]),
        slice_of("shop/one", [ip.here]),
        slice_of("shop/two", [ip.away], ports=["http:8080/udp", "other:8080/tcp"]),
    )
    assert cluster.outcomes(OUTSIDE, ip.external, 80, "tcp") == at(ip.here, masqueraded=True)
    assert cluster.outcomes(OUTSIDE, ip.external, 80, "udp") == at(ip.away, masqueraded=True)
    assert cluster.outcomes(OUTSIDE, ip.external, 81, "tcp") == at(ip.away, masqueraded=True)


def test_node_ports_differ_by_protocol(lab: Lab) -> None:
    """Two Services may have the same node port for different protocols."""
    cluster = Cluster(
        lab,
        one(IP, ports=["http:80:30080/tcp"]),
        two(IP, ports=["http:80:30080/udp"]),
        slice_of("shop/one", [IP.here]),
        slice_of("shop/two", [IP.away], ports=["http:8080/udp"]),
    )
    assert cluster.outcomes(OUTSIDE, IP.node, 30080, "tcp") == at(IP.here, masqueraded=True)
    assert cluster.outcomes(OUTSIDE, IP.node, 30080, "udp") == at(IP.away, masqueraded=True)


def test_a_claim_of_a_family_that_is_not_served_takes_nothing(lab: Lab) -> None:
    """An older Service without a ClusterIP of the family doesn't keep its IPv4 external IP from a younger one."""
    older = one(IP6, external_ips=[IP.external])
    cluster = Cluster(lab, older, two(IP, external_ips=[IP.external]), *slices(IP))
    assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.away, masqueraded=True)


# ---- what the loser has --------------------------------------------------------------------------------------------


@each_ip
@each_contested
def test_the_loser_keeps_its_other_addresses(lab: Lab, ip: Ip, contested: Contested) -> None:
    """A Service that loses one address is still reached at its ClusterIP, at other external IPs and other ports."""
    claim, _, _ = contested(ip)
    mine = {name: list(values) for name, values in claim.items()}
    mine.setdefault("external_ips", []).append(ip.balanced)
    mine.setdefault("ports", ["http:80"]).append("more:81:30081")
    cluster = Cluster(
        lab,
        one(ip, **claim),
        two(ip, **mine),
        slice_of("shop/one", [ip.here]),
        slice_of("shop/two", [ip.away], ports=["http:8080", "more:8080"]),
    )
    for address, port in [(ip.vip2, 80), (ip.vip2, 81), (ip.balanced, 80), (ip.balanced, 81), (ip.node, 30081)]:
        assert cluster.outcomes(OUTSIDE, address, port) == at(ip.away, masqueraded=True)


@each_ip
@each_contested
def test_a_loser_does_not_help_out(lab: Lab, ip: Ip, contested: Contested) -> None:
    """When the winner has no endpoints its clients are refused, and don't meet the loser's."""
    claim, address, port = contested(ip)
    cluster = Cluster(lab, one(ip, **claim), two(ip, **claim), slices(ip)[1])
    assert cluster.by_origin(address, port, times=2) == everywhere(TCP_RESET)


def test_a_losers_policy_does_not_count(lab: Lab) -> None:
    """At the contested address the winner's traffic policy holds, whatever the loser's is."""
    claim = {"external_ips": [IP.external]}
    cluster = Cluster(lab, one(IP, **claim), two(IP, **claim, external_policy="Local"), *slices(IP))
    assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.here, masqueraded=True)
    cluster.put(one(IP, **claim, external_policy="Local"), two(IP, **claim))
    assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.here)


def test_a_losers_source_ranges_do_not_count(lab: Lab) -> None:
    """The winner's ranges restrict the contested address, and the loser's only its own."""
    claim = {"load_balancer_ips": [IP.external]}
    nobody = ["10.99.0.0/16"]
    other = two(IP, load_balancer_ips=[IP.external, IP.balanced], source_ranges=nobody)
    cluster = Cluster(lab, one(IP, **claim), other, *slices(IP))
    assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.here, masqueraded=True)
    assert cluster.outcomes(OUTSIDE, IP.balanced) == {DROPPED}
    cluster.put(one(IP, **claim, source_ranges=nobody), two(IP, **claim))
    assert cluster.outcomes(OUTSIDE, IP.external) == {DROPPED}


# ---- taking over ---------------------------------------------------------------------------------------------------


@each_ip
@each_contested
def test_the_loser_takes_over_when_the_winner_goes(lab: Lab, ip: Ip, contested: Contested) -> None:
    """In the transaction that removes the winner the loser gets the address, and loses it when the winner is back."""
    claim, address, port = contested(ip)
    winner = one(ip, **claim)
    cluster = Cluster(lab, winner, two(ip, **claim), *slices(ip))
    cluster.remove(winner)
    assert cluster.outcomes(OUTSIDE, address, port) == at(ip.away, masqueraded=True)
    cluster.put(winner)
    assert cluster.outcomes(OUTSIDE, address, port) == at(ip.here, masqueraded=True)


@each_ip
@each_contested
def test_the_loser_takes_over_when_the_winner_lets_go(lab: Lab, ip: Ip, contested: Contested) -> None:
    """A winner that gives up the address, and otherwise stays, leaves it to the loser at once."""
    claim, address, port = contested(ip)
    cluster = Cluster(lab, one(ip, **claim), two(ip, **claim), *slices(ip))
    cluster.put(one(ip))
    assert cluster.outcomes(OUTSIDE, address, port) == at(ip.away, masqueraded=True)
    assert cluster.outcomes(OUTSIDE, ip.vip) == at(ip.here, masqueraded=True)


def test_source_ranges_change_hands(lab: Lab) -> None:
    """With the address the successor's source ranges come into force, and the predecessor's end."""
    claim = {"load_balancer_ips": [IP.external]}
    winner = one(IP, **claim, source_ranges=[IP.alone(IP.client)])
    cluster = Cluster(lab, winner, two(IP, **claim, source_ranges=[IP.alone(IP.pod)]), *slices(IP))
    assert cluster.outcomes(OUTSIDE, IP.external) == at(IP.here, masqueraded=True)
    assert cluster.outcomes(Origin.POD, IP.external) == {DROPPED}
    cluster.remove(winner)
    assert cluster.outcomes(OUTSIDE, IP.external) == {DROPPED}
    assert cluster.outcomes(Origin.POD, IP.external) == at(IP.away, masqueraded=True)


def test_the_next_in_line_takes_over(lab: Lab) -> None:
    """Of several losers the oldest takes over, whether or not the others are still there."""
    claim = {"external_ips": [IP.external]}
    first, second = one(IP, **claim), two(IP, **claim)
    third = service("shop/three", cluster_ips=["10.96.0.30"], created=300, external_ips=[IP.external])
    cluster = Cluster(lab, third, second, first, *slices(IP), slice_of("shop/three", [IP.away2]))
    for gone, next_one in [(first, IP.away), (second, IP.away2)]:
        cluster.remove(gone)
        assert cluster.outcomes(OUTSIDE, IP.external) == at(next_one, masqueraded=True)


# ---- health-check ports --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_older", [True, False], ids=["older", "younger"])
def test_a_health_check_port_is_a_claim(lab: Lab, is_older: bool) -> None:
    """A node port that is an older Service's health-check port is not served, and one that is a younger's is."""
    checked = one(IP, health_check_node_port=30080, external_policy="Local", created=100 if is_older else 300)
    cluster = Cluster(lab, checked, two(IP, ports=["http:80:30080"]), *slices(IP))
    outcomes = cluster.outcomes(OUTSIDE, IP.node, 30080)
    assert outcomes == ({NODE} if is_older else at(IP.away, masqueraded=True))
    cluster.remove(checked)
    assert cluster.outcomes(OUTSIDE, IP.node, 30080) == at(IP.away, masqueraded=True)


def test_a_health_check_port_is_tcp(lab: Lab) -> None:
    """A UDP node port of the same number as a health-check port is served."""
    checked = one(IP, health_check_node_port=30080, external_policy="Local")
    other = two(IP, ports=["http:80:30080/udp"])
    cluster = Cluster(lab, checked, other, slice_of("shop/two", [IP.away], ports=["http:8080/udp"]))
    assert cluster.outcomes(OUTSIDE, IP.node, 30080, "udp") == at(IP.away, masqueraded=True)
