"""Connections without an answer are noted by packets, for Services that ask for it, and go elsewhere when forgotten."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import Lab, Origin, Outcome
from nftproxy_conformance.lab import endpoint as arrival

from nftproxy.kernel.conntrack.unanswered import TICKS, UnansweredConnection, UnansweredReader
from nftproxy.model.addresses import Address, Family
from nftproxy.model.events import Put, SilentPlaces
from nftproxy.model.objects import Place
from nftproxy.netlink.netfilter import ADDRESS_SIZE
from tests.support.cluster import IP, Cluster, Ip, at, exposed_service, pods
from tests.support.factories import pipeline, service, slice_of

LEAVE_OUT = {"silent-endpoints": "leave-out"}


class Watched(Cluster):
    """A Service with all fronts that leaves out silent endpoints, and a plain Service, with the same two pods
    elsewhere.
    """

    def __init__(self, lab: Lab, ip: Ip, reader: UnansweredReader, *, protocol: str = "tcp", **tweaks: object) -> None:
        web = exposed_service(ip, protocol, annotations=LEAVE_OUT, **tweaks)
        plain = service("shop/plain", cluster_ips=[ip.vip2], ports=[f"http:80/{protocol}"])
        slices = [pods(ip, "away", "away2", protocol=protocol, name=name) for name in ("shop/web", "shop/plain")]
        super().__init__(lab, web, plain, *slices)
        lab.node.flush_conntrack()
        self._reader, self._family = reader, ip.family

    def send(
        self, address: str, port: int, sport: int, *, origin: Origin = Origin.POD, protocol: str = "tcp"
    ) -> Outcome:
        """Send the first packet of a connection, or send it again."""
        (outcome,) = self.connect(origin, address, port, protocol, sport=sport)
        return outcome

    def keep_waiting(self, address: str, port: int, sport: int, *, origin: Origin = Origin.POD) -> UnansweredConnection:
        """Begin a connection, and send its first packet again and again until it is found waiting (noted for 2 s)."""
        source_port = slice(ADDRESS_SIZE[self._family], ADDRESS_SIZE[self._family] + 2)
        self.send(address, port, sport, origin=origin)
        for _ in range(20):
            self.send(address, port, sport, origin=origin)
            for each in self.waiting():
                if int.from_bytes(each.retransmission.key[source_port], "big") == sport:
                    return each
        raise AssertionError(f"the connection from port {sport} was not noted")

    def noted(self) -> int:
        """How many connections the rules have noted."""
        return len(self.lab.node.call(self._reader.retransmissions, self._family))

    def waiting(self) -> list[UnansweredConnection]:
        """The noted connections without an answer."""
        return self.lab.node.call(lambda: self._reader.unanswered(self._reader.retransmissions(self._family)))

    def forget(self, connections: list[UnansweredConnection]) -> int:
        """Have them translated anew."""
        return self.lab.node.call(self._reader.delete, connections)


@pytest.fixture
def reader() -> Iterator[UnansweredReader]:
    """The reader of the kernel's entries."""
    made = UnansweredReader()
    yield made
    made.close()


@pytest.mark.parametrize("front", ["vip", "external", "balanced", "node"])
def test_what_is_sent_again_is_noted(lab: Lab, ip: Ip, front: str, reader: UnansweredReader) -> None:
    """At every kind of address a first packet leaves nothing, and a second packet the connection, with its endpoint."""
    cluster = Watched(lab, ip, reader)
    outcome = cluster.send(*ip.front(front), 4000)
    assert cluster.noted() == 0
    found = cluster.keep_waiting(*ip.front(front), 4000)
    assert arrival(*found.place, masqueraded=outcome.masqueraded) == outcome
    assert 0 <= found.retransmission.waits < 2


def test_the_nodes_own_connections_are_noted(lab: Lab, ip: Ip, reader: UnansweredReader) -> None:
    """A retransmission of the node itself is noted like a retransmission that it forwards."""
    cluster = Watched(lab, ip, reader)
    cluster.send(ip.vip, 80, 4001, origin=Origin.NODE)
    assert cluster.noted() == 0
    assert cluster.keep_waiting(ip.vip, 80, 4001, origin=Origin.NODE).place.address in {ip.away, ip.away2}


def test_plain_services_and_other_protocols_note_nothing(lab: Lab, ip: Ip, reader: UnansweredReader) -> None:
    """A Service without the annotation, and a UDP Service with it, leave the set empty."""
    cluster = Watched(lab, ip, reader)
    for _ in range(3):
        cluster.send(ip.vip2, 80, 4002)
    assert cluster.noted() == 0
    udp = Watched(lab, ip, reader, protocol="udp")
    for _ in range(3):
        udp.send(ip.vip, 80, 4003, protocol="udp")
    assert udp.noted() == 0


@pytest.mark.parametrize("timeout", [None, 60])
def test_forgotten_connections_go_to_who_is_left(
    lab: Lab, ip: Ip, reader: UnansweredReader, timeout: int | None
) -> None:
    """After an endpoint is left out, connections that wait for it go to the other endpoint, with session affinity
    too.
    """
    cluster = Watched(lab, ip, reader, affinity_timeout=timeout)
    waiting = [cluster.keep_waiting(ip.vip, 80, sport) for sport in range(4100, 4124)]
    dead = waiting[0].place
    (other,) = {ip.away, ip.away2} - {dead.address}
    cluster.put(SilentPlaces((dead,)))
    stuck = [each for each in waiting if each.place == dead]
    assert cluster.forget(stuck) == len(stuck) > 0
    assert cluster.forget(stuck) == 0
    after = {cluster.send(ip.vip, 80, sport) for sport in range(4100, 4124)}
    assert after == at(other)
    assert {cluster.send(ip.vip2, 80, sport) for sport in range(4200, 4240)} == at(ip.away, ip.away2)


def test_forgotten_connection_counts_again_when_it_is_sent_again(lab: Lab, ip: Ip, reader: UnansweredReader) -> None:
    """A forgotten connection is noted anew only once its next endpoint hasn't answered either."""
    cluster = Watched(lab, ip, reader)
    assert cluster.forget([cluster.keep_waiting(ip.vip, 80, 4300)]) == 1
    assert cluster.noted() == 0
    time.sleep(2 * TICKS)
    assert cluster.noted() == 0
    cluster.send(ip.vip, 80, 4300)
    assert cluster.noted() == 0
    assert cluster.keep_waiting(ip.vip, 80, 4300).place.address in {ip.away, ip.away2}


def test_nothing_is_watched_where_nobody_asks_for_it(lab: Lab, reader: UnansweredReader) -> None:
    """Without such a Service there is no set to look at, and silence changes no rule by a byte."""
    plain, silent = pipeline(exposed_service(IP), slice_of()), pipeline(exposed_service(IP), slice_of())
    silent.ingest([Put(SilentPlaces((Place(Address("10.1.1.4"), 8080),)))])
    text = plain.full_transaction({}).text
    assert silent.full_transaction({}).text == text
    assert not {"watch", "unanswered"} & set(re.findall(r"[a-z-]+", text))
    lab.load(text)
    assert lab.node.call(reader.retransmissions, Family.IPV4) == []
