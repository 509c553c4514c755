"""Active connections are read from conntrack, whose entries real packets have made."""

from __future__ import annotations

import socket
from collections import Counter

import pytest
from nftproxy_conformance.lab import Lab, Origin

from nftproxy.kernel.conntrack import connection_counts
from nftproxy.kernel.conntrack import sweeps as conntrack
from nftproxy.kernel.conntrack.connection_counts import (
    ConnectionCounts,
    Translation,
    active_connections,
    established_connections,
)
from nftproxy.model.addresses import Address, Protocol
from nftproxy.model.objects import Place
from nftproxy.netlink import nf_conntrack as ct
from nftproxy.netlink.codec import attribute, nested
from tests.kernel.conntrack.entries import Tracked, fill, track
from tests.support.cluster import IP, Cluster, Ip
from tests.support.factories import IPV4, service, slice_of
from tests.support.processes import peak_growth


def read(lab: Lab, most: int = 1000) -> ConnectionCounts:
    """The counts of the lab's node."""
    return lab.node.call(active_connections, lambda _: None, most)


def way(front: str, endpoint: str, port: int = 80, protocol: str = "tcp") -> Translation:
    """From a front to an endpoint."""
    return Translation(Protocol(protocol), Address(front), port, Address(endpoint), 8080)


def served(lab: Lab, ip: Ip, protocol: str = "tcp") -> Cluster:
    """A Service with one endpoint, a ClusterIP and a node port."""
    web = service(cluster_ips=[ip.vip], ports=[f"http:80:30080/{protocol}"], type="NodePort")
    return Cluster(lab, web, slice_of(endpoints=[ip.here], ports=[f"http:8080/{protocol}"]))


def test_translated_connections_are_counted(lab: Lab, ip: Ip, protocol: str) -> None:
    """A connection counts where it was meant to go, with the endpoint that it went to, if it was translated."""
    lab.add_address(ip.own)
    cluster = served(lab, ip, protocol)
    cluster.connect(Origin.OUTSIDE, ip.vip, 80, protocol, times=3)
    cluster.connect(Origin.OUTSIDE, ip.node, 30080, protocol, times=2)
    cluster.connect(Origin.OUTSIDE, ip.away, 80, protocol, times=4)
    counts = {way(ip.vip, ip.here, 80, protocol): 3, way(ip.node, ip.here, 30080, protocol): 2}
    found = read(lab)
    assert (found.by_translation, found.others) == (counts, 0)


def test_connections_without_an_answer_are_counted(lab: Lab) -> None:
    """A connection to which the endpoint has sent nothing is counted as unanswered, too."""
    served(lab, IP).connect(Origin.OUTSIDE, IP.vip, times=3)
    assert read(lab).unanswered == {way(IP.vip, IP.here): 3}


def test_a_connection_with_an_answer_is_not_unanswered(lab: Lab) -> None:
    """A connection that the endpoint has accepted is counted, and not as unanswered."""
    Cluster(lab, service(cluster_ips=[IP.vip]), slice_of(endpoints=[IP.node]))

    def connect() -> ConnectionCounts:
        with socket.create_server((IP.node, 8080)), socket.create_connection((IP.vip, 80), 10):
            return active_connections(lambda _: None)

    found = lab.node.call(connect)
    assert (found.by_translation.total(), found.unanswered.total()) == (1, 0)


def test_ended_connections_are_not_counted(lab: Lab) -> None:
    """A TCP connection that both ends have closed isn't active, although conntrack remembers it for a while."""
    Cluster(lab, service(cluster_ips=[IP.vip]), slice_of(endpoints=[IP.node]))

    def connect_and_close() -> list[int]:
        with socket.create_server((IP.node, 8080)) as server, socket.create_connection((IP.vip, 80), 10) as client:
            accepted, _ = server.accept()
            counts = [active_connections(lambda _: None).by_translation.total()]
            client.shutdown(socket.SHUT_WR)
            assert accepted.recv(1) == b""
            accepted.close()
            assert client.recv(1) == b""
        return [*counts, active_connections(lambda _: None).by_translation.total()]

    assert lab.node.call(connect_and_close) == [1, 0]


def test_established_connections_are_counted_by_endpoint(lab: Lab, ip: Ip) -> None:
    """Connections to any front count for their endpoint while both ends have them, and only for endpoints asked for."""
    Cluster(lab, service(cluster_ips=[ip.vip], external_ips=[ip.external]), slice_of(endpoints=[ip.node]))
    here, elsewhere = Place(Address(ip.node), 8080), Place(Address(ip.node), 8081)

    def count(*places: Place) -> Counter[Place]:
        return established_connections(places, lambda _: None)

    def connect() -> list[Counter[Place]]:
        family = socket.AF_INET6 if ip.is_ipv6 else socket.AF_INET
        with socket.create_server((ip.node, 8080), family=family):
            clients = [socket.create_connection((each, 80), 10) for each in (ip.vip, ip.vip, ip.external)]
            clients.append(socket.create_connection((ip.node, 8080), 10))
            found = [count(here, elsewhere), count(elsewhere), count()]
            for client in clients[:2]:
                client.close()
            found.append(count(here))
            for client in clients:
                client.close()
        return found

    assert lab.node.call(connect) == [{here: 3}, {}, {}, {here: 1}]


@pytest.mark.parametrize(("status", "count"), [(0x2E, 0), (0x402E, 1), (0x400E, 0)])
def test_offloaded_connections_are_established(monkeypatch: pytest.MonkeyPatch, status: int, count: int) -> None:
    """Translated connections in a flowtable count, though the kernel tells no state of them (ctnetlink_dump_info)."""

    def flow(kind: int, source: str, destination: str) -> bytes:
        addresses = attribute(ct.SOURCE[IPV4], socket.inet_aton(source))
        addresses += attribute(ct.DESTINATION[IPV4], socket.inet_aton(destination))
        ports = attribute(ct.SOURCE_PORT, b"\x1f\x90") + attribute(ct.DESTINATION_PORT, b"\x1f\x91")
        protocol = attribute(ct.PROTOCOL, conntrack.TCP) + ports
        return nested(kind, nested(ct.TUPLE_ADDRESSES, addresses) + nested(ct.TUPLE_PROTOCOL, protocol))

    both = flow(ct.TUPLE_ORIGINAL, IP.client, IP.vip) + flow(ct.TUPLE_REPLY, IP.here, IP.client)
    answer = both + attribute(ct.STATUS, status.to_bytes(4, "big")) + attribute(ct.ID, bytes(4))
    monkeypatch.setattr(connection_counts, "_answers", lambda _: [answer])
    here = Place(Address(IP.here), 8080)
    assert established_connections([here])[here] == count


def test_unanswered_connections_are_not_established(lab: Lab, ip: Ip) -> None:
    """First packets without an answer don't count."""
    served(lab, ip).connect(Origin.OUTSIDE, ip.vip, times=3)
    assert lab.node.call(established_connections, [Place(Address(ip.here), 8080)]) == {}


def test_other_zones_are_others(lab: Lab) -> None:
    """Entries in other zones, which belong to other programs, aren't counted."""
    lab.node.call(track, Tracked("198.51.100.7 1", "10.96.0.10 53", "10.1.0.5 53", zone=7))
    assert read(lab) == ConnectionCounts(Counter(), 0)


def test_what_is_read_is_bounded(lab: Lab) -> None:
    """Beyond the limit of (address, endpoint) pairs, connections are counted in one sum."""
    cluster = served(lab, IP)
    cluster.connect(Origin.OUTSIDE, IP.vip, times=3)
    cluster.connect(Origin.OUTSIDE, IP.node, 30080, times=3)
    found = read(lab, 1)
    assert (len(found.by_translation), found.by_translation.total(), found.others) == (1, 3, 3)


@pytest.mark.slow
def test_many_entries_take_no_memory(lab: Lab) -> None:
    """Among 50,000 foreign entries, reading takes no more memory than without them, and rests in between."""
    served(lab, IP).connect(Origin.OUTSIDE, IP.vip, times=3)
    read(lab)
    lab.node.call(fill, 50_000)
    grown = peak_growth()
    rests: list[float] = []
    found = lab.node.call(active_connections, rests.append)
    assert found.by_translation == {way(IP.vip, IP.here): 3}
    assert lab.node.call(established_connections, [Place(Address(IP.here), 8080)], rests.append) == {}
    assert len(rests) > 1000
    assert grown() < 2 << 20
