"""Connections without an answer are noted by packets, for Services that ask for it, and go elsewhere when forgotten."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from nftproxy_conformance.lab import Lab, Origin, Outcome, Probe
from nftproxy_conformance.lab import endpoint as arrival

from nftproxy.extensions.failover.agent.unanswered import (
    KEPT,
    SIZE,
    STUCK,
    TICKS,
    UNANSWERED,
    UnansweredConnection,
    UnansweredReader,
)
from nftproxy.extensions.failover.silent_places import SilentPlaces
from nftproxy.model.addresses import Address, Family
from nftproxy.model.events import Put
from nftproxy.model.objects import EndpointSlice, Place, Service
from nftproxy.netlink.codec import ADDRESS_SIZE
from nftproxy.policy.numbers import namespace_number
from nftproxy.rules.renderer import Renderer
from tests.support.cluster import FRONTS, IP, IP6, Cluster, Ip, at, exposed_service, pods
from tests.support.factories import pipeline, service, slice_of, templates

LEAVE_OUT = {"failover": "silent"}
EVIL = {IP: "10.96.0.66", IP6: "fd00:96::66"}
ENDPOINT_SHARE = 6
NAMESPACE_SHARE, NAMESPACE_RATE = 1024, 256  # connections at once, and per second


class Watched(Cluster):
    """A Service with all fronts that leaves out silent endpoints, and a plain Service, with the same two pods
    elsewhere.
    """

    def __init__(
        self,
        lab: Lab,
        ip: Ip,
        reader: UnansweredReader,
        *,
        protocol: str = "tcp",
        renderer: Renderer | None = None,
        **tweaks: object,
    ) -> None:
        web = exposed_service(ip, protocol, annotations=LEAVE_OUT, **tweaks)
        plain = service("shop/plain", cluster_ips=[ip.vip2], ports=[f"http:80/{protocol}"])
        slices = [pods(ip, "away", "away2", protocol=protocol, name=name) for name in ("shop/web", "shop/plain")]
        super().__init__(lab, web, plain, *slices, renderer=renderer)
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

    def noted(self, name: str = UNANSWERED) -> int:
        """How many connections the rules have noted in a set."""
        return len(self.lab.node.call(self._reader.retransmissions, self._family, name))

    def send_twice(self, address: str, sports: range) -> None:
        """Begin a connection from each of these ports, and send each first packet again."""
        for _ in range(2):
            self.lab.connect_many(Probe(Origin.POD, address, 80, sport=sport) for sport in sports)

    def crowded(self) -> set[str]:
        """The namespaces that have had more to note than there was room for."""
        return self.lab.node.call(self._reader.crowded, self._family)

    def waiting(self) -> list[UnansweredConnection]:
        """The noted connections without an answer, with those to silent endpoints."""
        names = (UNANSWERED, STUCK)
        return self.lab.node.call(
            lambda: [
                found
                for name in names
                for found in self._reader.unanswered(self._reader.retransmissions(self._family, name))
            ]
        )

    def forget(self, connections: list[UnansweredConnection]) -> int:
        """Delete the connections from connection tracking, so that they are translated anew."""
        return self.lab.node.call(self._reader.delete, connections)


@pytest.fixture(autouse=True)
def _nobody_answers(lab: Lab) -> Iterator[None]:
    with lab.unanswered():
        yield


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
    dead = cluster.keep_waiting(ip.vip, 80, 4100).place
    (other,) = {ip.away, ip.away2} - {dead.address}
    begun = {sport: cluster.send(ip.vip, 80, sport) for sport in range(4100, 4124)}
    cluster.put(SilentPlaces((dead,)))
    waiting = [cluster.keep_waiting(ip.vip, 80, sport) for sport, first in begun.items() if first in at(dead.address)]
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


def test_an_endpoint_has_a_share_of_what_is_noted(lab: Lab, ip: Ip, reader: UnansweredReader) -> None:
    """However many connections to a Service are sent again, few are noted for each endpoint, and any other endpoint's
    are noted as ever.
    """
    cluster = Watched(lab, ip, reader)
    cluster.put(*crowd(ip, 2))
    cluster.send_twice(EVIL[ip], range(5000, 5400))
    assert ENDPOINT_SHARE <= cluster.noted() < 400
    assert cluster.crowded() == set()
    assert cluster.keep_waiting(ip.vip, 80, 4000).place.address in {ip.away, ip.away2}


def test_a_namespace_has_a_share_of_what_is_noted(lab: Lab, ip: Ip, reader: UnansweredReader) -> None:
    """A namespace's connections to hundreds of endpoints leave room in the set for any other namespace's, and the
    namespace is named.

    The share grows again by the hour here, so that slow machines use it up, too.
    """
    text = templates()["extensions/failover/table.nft.j2"]
    share = f"limit rate {NAMESPACE_RATE}/second burst {NAMESPACE_SHARE} packets }} update @unanswered"
    assert text.count(share) == text.count("update @unanswered") == 1
    assert NAMESPACE_SHARE + NAMESPACE_RATE * KEPT < SIZE / 4
    slower = text.replace(share, share.replace(f"{NAMESPACE_RATE}/second", "1/hour"))
    cluster = Watched(lab, ip, reader, renderer=Renderer({**templates(), "extensions/failover/table.nft.j2": slower}))
    cluster.put(*crowd(ip, 480))
    crowded = set[str]()
    for start in range(5000, 8000, 100):
        cluster.send_twice(EVIL[ip], range(start, start + 100))
        if crowded := cluster.crowded():
            break
    assert crowded == {namespace_number("evil", ip.family)}
    assert 0 < cluster.noted() <= NAMESPACE_SHARE
    cluster.send_twice(EVIL[ip], range(8000, 9000))
    assert cluster.noted() <= NAMESPACE_SHARE
    assert cluster.keep_waiting(ip.vip, 80, 4000).place.address in {ip.away, ip.away2}


def test_connections_to_silent_endpoints_take_no_room(lab: Lab, ip: Ip, reader: UnansweredReader) -> None:
    """Connections to an endpoint that is known to be silent are noted apart, to be moved, and its Service goes on."""
    cluster = Watched(lab, ip, reader)
    cluster.put(SilentPlaces(tuple(Place(Address(address), 8080) for address in (ip.away, ip.away2))))
    for _ in range(2):
        cluster.send(ip.vip, 80, 4000)
    assert (cluster.noted(), cluster.noted(STUCK)) == (0, 1)
    cluster.put(SilentPlaces(()))
    cluster.keep_waiting(ip.vip, 80, 4001)
    assert cluster.noted() == 1


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_note_leaves_the_packet_as_it_is(lab: Lab, ip: Ip, reader: UnansweredReader, timeout: int | None) -> None:
    """A retransmission reaches its endpoint, whether it is noted or finds no room, and with session affinity too."""
    cluster = Watched(lab, ip, reader, affinity_timeout=timeout)
    for front in FRONTS:
        for sport in range(5000, 5020):
            first = cluster.send(*ip.front(front), sport)
            assert {cluster.send(*ip.front(front), sport) for _ in range(2)} == {first}


def crowd(ip: Ip, count: int) -> list[Service | EndpointSlice]:
    """A Service of another namespace that leaves out silent endpoints, with so many endpoints."""
    ends = [
        f"{each.removesuffix('4')}{10 + number}@node-b" for number in range(count // 2) for each in (ip.away, ip.away2)
    ]
    evil = service("evil/web", cluster_ips=[EVIL[ip]], annotations=LEAVE_OUT)
    return [evil, slice_of("evil/web", endpoints=ends, ports=("http:8080",))]


def test_nothing_is_watched_where_nobody_asks_for_it(lab: Lab, reader: UnansweredReader) -> None:
    """Without such a Service there is no set to look at, and silence changes no rule by a byte."""
    plain, silent = pipeline(exposed_service(IP), slice_of()), pipeline(exposed_service(IP), slice_of())
    silent.ingest([Put(SilentPlaces((Place(Address("10.1.1.4"), 8080),)))])
    text = plain.full_transaction({}).text
    assert silent.full_transaction({}).text == text
    assert not {"watch", "unanswered"} & set(re.findall(r"[a-z-]+", text))
    lab.load(text)
    assert lab.node.call(reader.retransmissions, Family.IPV4) == []
