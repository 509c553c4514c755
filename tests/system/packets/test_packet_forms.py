"""Packets in uncommon forms take the same way through each front: fragments, and IPv6 with extension headers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import RealNetwork, obstacle, topology
from nftproxy_conformance.lab.pods import RealHost

from nftproxy.model.addresses import Family
from tests.support.cluster import FRONTS, IP, IP6, Ip, exposed_service
from tests.support.factories import pipeline, slice_of
from tests.support.waiting import PATIENCE

LARGE = 4_000
"""Bytes of a datagram in three fragments."""

IPV6_HOPOPTS, IPV6_DSTOPTS = 54, 59  # linux/in6.h
PADDING = bytes([0, 0, 1, 4, 0, 0, 0, 0])
"""An extension header with no option but padding (RFC 8200, 4.2).  The kernel fills in the next header."""

FORMS = {"plain": None, "hop-by-hop options": IPV6_HOPOPTS, "destination options": IPV6_DSTOPTS}


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, RealHost]]:
    """A pod, and a host outside.  A node serves a Service of both families at all kinds of fronts."""
    if why := obstacle():
        pytest.skip(why)
    with RealNetwork() as network:
        node = network.node()
        for cidr in (topology.SERVICE_CIDR, topology.SERVICE_CIDR6):
            network.route(cidr, node)
        for address in (IP.external, IP.balanced, IP6.external, IP6.balanced):
            network.route(address, node)
        outside = network.host("outside", IP.client, IP6.client)
        pod, server = node.pod("pod", IP.pod, IP6.pod), node.pod("server", IP.here, IP6.here)
        for protocol in ("tcp", "udp"):
            server.serve(8080, protocol)
        web = exposed_service(
            IP,
            cluster_ips=[IP.vip, IP6.vip],
            external_ips=[IP.external, IP6.external],
            load_balancer_ips=[IP.balanced, IP6.balanced],
            ports=["tcp:80:30080/tcp", "udp:80:30080/udp"],
        )
        given = ["tcp:8080/tcp", "udp:8080/udp"]
        slices = (
            slice_of(endpoints=[f"{ip.here}@node-a"], ports=given, suffix=ip.nft, family=ip.family) for ip in (IP, IP6)
        )
        node.load(pipeline(web, *slices).full_transaction(dict.fromkeys(Family)).text)
        yield {"pod": pod, "outside": outside}


def answered(client: RealHost, ip: Ip, front: str, protocol: str, option: int | None, size: int) -> str:
    """Send `size` bytes to a front, with an extension header in each packet, and return the name in the answer."""
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    family = socket.AF_INET6 if ip.is_ipv6 else socket.AF_INET
    with client.namespace.socket(family, kind) as made:
        made.settimeout(PATIENCE)
        if option:
            made.setsockopt(socket.IPPROTO_IPV6, option, PADDING)
            assert made.getsockopt(socket.IPPROTO_IPV6, option, len(PADDING))[2:] == PADDING[2:]
        made.connect(ip.front(front))
        made.send(b"?" * size)
        return made.recv(2048).decode().split()[0]


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("client", ["pod", "outside"])
def test_fragments_reach_an_endpoint(clients: dict[str, RealHost], ip: Ip, client: str, front: str) -> None:
    """A datagram in three fragments arrives whole, through each front."""
    assert answered(clients[client], ip, front, "udp", None, LARGE) == "server"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("client", ["pod", "outside"])
def test_extension_headers_reach_an_endpoint(
    clients: dict[str, RealHost], client: str, front: str, protocol: str, form: str
) -> None:
    """An IPv6 packet with an extension header is translated as without, through each front."""
    assert answered(clients[client], IP6, front, protocol, FORMS[form], 1) == "server"
