"""Pings to addresses of Services (nftproxy.ping), from real clients to a node in real kernels."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from nftproxy_conformance.lab import Origin, RealHost, RealNetwork, RealNode, obstacle
from nftproxy_conformance.lab.frames import echo_request
from nftproxy_conformance.lab.topology import LOAD_BALANCER_CIDR, LOAD_BALANCER_CIDR6, SERVICE_CIDR, SERVICE_CIDR6

from nftproxy.model.addresses import Family
from nftproxy.model.objects import ClusterObject
from nftproxy.model.settings import Ping
from tests.support.cluster import Ip, exposed_service, pods
from tests.support.factories import networks, pipeline, service, slice_of
from tests.support.waiting import PATIENCE

POD, NODE, OUTSIDE = Origin.POD, Origin.NODE, Origin.OUTSIDE
IDENTIFIERS = itertools.count(100)
ICMP = {4: (socket.IPPROTO_ICMP, 0, 3), 16: (socket.IPPROTO_ICMPV6, 129, 1)}
"""The protocol, and the types of an echo reply and of "destination unreachable", by the length of an address."""


class Pinging(NamedTuple):
    """A node with rules, and clients that ping through it."""

    node: RealNode
    clients: dict[Origin, RealHost]

    def load(self, *objects: ClusterObject, **tweaks: Any) -> None:
        """Replace the rules of the node."""
        fields: dict[str, Any] = {"ping": Ping.ANSWER, "external_ip_cidrs": networks(RANGES)}
        made = pipeline(*objects, **fields | tweaks)
        gone = "".join(f"table {each.table}\ndelete table {each.table}\n" for each in Family)
        self.node.load(gone + made.full_transaction(dict.fromkeys(Family)).text)

    def answered(self, address: str) -> set[Origin]:
        """The clients whose ping is answered.  All others get an ICMP error."""
        return {origin for origin, client in self.clients.items() if is_answered(client, address)}


RANGES = [LOAD_BALANCER_CIDR, LOAD_BALANCER_CIDR6]


def is_answered(client: RealHost, address: str, identifier: int | None = None) -> bool:
    """Ping an address.  Wait for the answer, which must be from that address, or for an error about the ping."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    protocol, reply, unreachable = ICMP[len(packed)]
    family, head = (socket.AF_INET, 20) if len(packed) == 4 else (socket.AF_INET6, 0)
    request = echo_request(is_ipv6=len(packed) == 16, identifier=identifier or next(IDENTIFIERS))
    with client.namespace.socket(family, socket.SOCK_RAW, protocol) as end:
        end.settimeout(PATIENCE)
        with contextlib.suppress(PermissionError):  # the node's own output hook rejects it
            end.sendto(request, (address, 0))
        while True:
            data, (source, *_) = end.recvfrom(2048)
            message = data[head:]
            if message[0] == reply and message[4:8] == request[4:8]:
                assert source == address
                return True
            if message[0] == unreachable and packed in message and request[4:8] in message[8:]:
                return False


@pytest.fixture(scope="module")
def pinging() -> Iterator[Pinging]:
    """A pod of the node, the node, and a host outside."""
    if why := obstacle():
        pytest.skip(why)
    with RealNetwork() as network:
        node = network.node()
        for cidr in (SERVICE_CIDR, SERVICE_CIDR6, *RANGES):
            network.route(cidr, node)
        pod = node.pod("pod", "10.1.0.200", "fd00:1::c8")
        outside = network.host("outside", "198.51.100.200", "2001:db8:100::c8")
        yield Pinging(node, {POD: pod, NODE: node, OUTSIDE: outside})


EVERYONE = {POD, NODE, OUTSIDE}


@pytest.mark.parametrize("name", ["vip", "external", "balanced"])
def test_an_address_with_an_endpoint_answers(pinging: Pinging, ip: Ip, name: str) -> None:
    """Each virtual address answers everyone as long as its Service has a usable endpoint, and rejects without."""
    web, address = exposed_service(ip), getattr(ip, name)
    pinging.load(web, pods(ip, "away"))
    assert pinging.answered(address) == EVERYONE
    pinging.load(web, pods(ip, "away unready"))
    assert pinging.answered(address) == set()


def test_a_program_that_goes_on_pinging_sees_changes(pinging: Pinging, ip: Ip) -> None:
    """Each ping of a program is judged, although connection tracking takes them for one connection."""
    web = exposed_service(ip)
    numbers = {origin: next(IDENTIFIERS) for origin in pinging.clients}
    for endpoints, expected in (("here", True), ("here unready", False), ("here", True)):
        pinging.load(web, pods(ip, endpoints))
        for address in (ip.vip, ip.balanced):
            for origin, client in pinging.clients.items():
                for _ in range(2):
                    assert is_answered(client, address, numbers[origin]) is expected


def test_an_internal_policy_counts(pinging: Pinging, ip: Ip) -> None:
    """With internalTrafficPolicy Local only an endpoint of this node counts for the ClusterIP."""
    web = exposed_service(ip, internal_policy="Local")
    pinging.load(web, pods(ip, "away"))
    assert pinging.answered(ip.vip) == set()
    assert pinging.answered(ip.balanced) == EVERYONE
    pinging.load(web, pods(ip, "here"))
    assert pinging.answered(ip.vip) == EVERYONE


def test_an_external_policy_counts(pinging: Pinging, ip: Ip) -> None:
    """With externalTrafficPolicy Local an endpoint elsewhere counts for pods and the node alone."""
    web = exposed_service(ip, external_policy="Local")
    pinging.load(web, pods(ip, "away"))
    assert pinging.answered(ip.balanced) == {POD, NODE}
    pinging.load(web, pods(ip, "here"))
    assert pinging.answered(ip.balanced) == EVERYONE


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_source_ranges_count(pinging: Pinging, ip: Ip, policy: str) -> None:
    """A load balancer's address answers sources in its ranges, and its ClusterIP answers everyone."""
    outside = "2001:db8:100::/64" if ip.is_ipv6 else "198.51.100.0/24"
    pinging.load(exposed_service(ip, source_ranges=[outside], external_policy=policy), pods(ip, "here"))
    assert pinging.answered(ip.balanced) == {OUTSIDE}
    assert pinging.answered(ip.vip) == EVERYONE


def test_denied_ranges_end_answers(pinging: Pinging, ip: Ip) -> None:
    """A Service that denies some sources answers none of a family."""
    denying = {"denied-source-ranges": "192.0.2.0/24,2001:db8:1::/64"}
    pinging.load(exposed_service(ip, annotations=denying), pods(ip, "here"))
    assert pinging.answered(ip.vip) == set()


def test_an_address_of_several_services_answers_if_any_would(pinging: Pinging, ip: Ip) -> None:
    """Two Services share a load balancer's address: an endpoint of either is enough."""
    second = service(
        "shop/two", type="LoadBalancer", cluster_ips=[ip.vip2], load_balancer_ips=[ip.balanced], ports=["http:81"]
    )
    targets = slice_of("shop/two", [f"{ip.away}@node-b"], ports=["http:8080"], family=ip.family)
    pinging.load(exposed_service(ip), second, targets)
    assert pinging.answered(ip.balanced) == EVERYONE
    assert pinging.answered(ip.vip) == set()
