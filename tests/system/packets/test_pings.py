"""Pings to addresses of Services (nftproxy.ping), from everywhere to a node in a real kernel."""

from __future__ import annotations

from typing import Any

import pytest
from nftproxy_conformance.lab import ANSWERED, PING, PORT_UNREACHABLE, Lab, Origin

from nftproxy.extensions.external_addresses.fields import Ping
from nftproxy.model.objects import ClusterObject
from tests.support.cluster import Cluster, Ip, exposed_service, pods
from tests.support.factories import networks
from tests.system.packets.rivals import two

EVERYONE = set(Origin)
IDENTIFIER = 100
"""The identifier of a program's pings.  Those of the lab's pings are larger."""


def pinged(lab: Lab, *objects: ClusterObject, **tweaks: Any) -> Cluster:
    """A cluster whose addresses answer pings."""
    return Cluster(lab, *objects, ping=Ping.ANSWER, external_ip_cidrs=networks(["0.0.0.0/0", "::/0"]), **tweaks)


def answered(cluster: Cluster, address: str, *, sport: int | None = None) -> set[Origin]:
    """The origins whose pings are answered.  Pings of all other origins are rejected."""
    seen = {origin: cluster.connect(origin, address, 0, PING, sport=sport)[0] for origin in Origin}
    assert set(seen.values()) <= {ANSWERED, PORT_UNREACHABLE}
    return {origin for origin, outcome in seen.items() if outcome == ANSWERED}


@pytest.mark.parametrize("name", ["vip", "external", "balanced"])
def test_an_address_with_an_endpoint_answers(lab: Lab, ip: Ip, name: str) -> None:
    """Each virtual address answers everyone as long as its Service has a usable endpoint, and rejects without."""
    cluster = pinged(lab, exposed_service(ip), pods(ip, "away"))
    assert answered(cluster, getattr(ip, name)) == EVERYONE
    cluster.put(pods(ip, "away unready"))
    assert answered(cluster, getattr(ip, name)) == set()


def test_a_program_that_goes_on_pinging_sees_changes(lab: Lab, ip: Ip) -> None:
    """Each ping of a program is judged, although connection tracking takes them for one connection."""
    cluster = pinged(lab, exposed_service(ip), pods(ip, "here"))
    for endpoints, expected in (("here", EVERYONE), ("here unready", set()), ("here", EVERYONE)):
        cluster.put(pods(ip, endpoints))
        for address in (ip.vip, ip.balanced):
            for _ in range(2):
                assert answered(cluster, address, sport=IDENTIFIER) == expected


def test_an_internal_policy_counts(lab: Lab, ip: Ip) -> None:
    """With internalTrafficPolicy Local only an endpoint of this node counts for the ClusterIP."""
    cluster = pinged(lab, exposed_service(ip, internal_policy="Local"), pods(ip, "away"))
    assert answered(cluster, ip.vip) == set()
    assert answered(cluster, ip.balanced) == EVERYONE
    cluster.put(pods(ip, "here"))
    assert answered(cluster, ip.vip) == EVERYONE


def test_an_external_policy_counts(lab: Lab, ip: Ip) -> None:
    """With externalTrafficPolicy Local an endpoint elsewhere counts for pods and the node alone."""
    cluster = pinged(lab, exposed_service(ip, external_policy="Local"), pods(ip, "away"))
    assert answered(cluster, ip.balanced) == EVERYONE - {Origin.OUTSIDE}
    cluster.put(pods(ip, "here"))
    assert answered(cluster, ip.balanced) == EVERYONE


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_source_ranges_count(lab: Lab, ip: Ip, policy: str) -> None:
    """A load balancer's address answers sources in its ranges, and its ClusterIP answers everyone."""
    guarded = exposed_service(ip, source_ranges=[ip.alone(ip.client)], external_policy=policy)
    cluster = pinged(lab, guarded, pods(ip, "here"))
    assert answered(cluster, ip.balanced) == {Origin.OUTSIDE}
    assert answered(cluster, ip.vip) == EVERYONE


def test_denied_ranges_end_answers(lab: Lab, ip: Ip) -> None:
    """A Service that denies some sources answers none of a family."""
    denying = {"denied-source-ranges": "192.0.2.0/24,2001:db8:1::/64"}
    cluster = pinged(lab, exposed_service(ip, annotations=denying), pods(ip, "here"))
    assert answered(cluster, ip.vip) == set()


def test_an_address_of_several_services_answers_if_any_would(lab: Lab, ip: Ip) -> None:
    """Two Services share a load balancer's address: an endpoint of either is enough."""
    second = two(ip, load_balancer_ips=[ip.balanced], ports=["http:81"])
    cluster = pinged(lab, exposed_service(ip), second, pods(ip, "away", name="shop/two"))
    assert answered(cluster, ip.balanced) == EVERYONE
    assert answered(cluster, ip.vip) == set()
