"""Limits for clients by annotations: connections at once, connections in a second, and denied addresses."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from nftproxy_conformance.lab import DROPPED, PORT_UNREACHABLE, TCP_RESET, UNTOUCHED, Lab, Origin, obstacle
from nftproxy_conformance.lab import NODE as DELIVERED
from nftproxy_conformance.lab.outcome import Outcome

from nftproxy.extensions.counts.agent.count_reader import (
    COUNTED_SETS,
    RESTRICTED_SETS,
    CountReader,
    FamilyCounts,
    claim_of,
)
from nftproxy.extensions.counts.agent.service_counts import UNSERVED, CountTotals
from nftproxy.extensions.counts.counted_fronts import CountedFronts
from nftproxy.model.addresses import Address, Protocol, host_port
from nftproxy.model.objects import Service
from nftproxy.policy.claims import NODE, Claim
from tests.support.cluster import Cluster, Ip, at, beside, exposed_service, pods
from tests.support.factories import service, slice_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

OUTSIDE = Origin.OUTSIDE
TCP, UDP, SCTP = Protocol.TCP, Protocol.UDP, Protocol.SCTP
PORTS = {"tcp": 80, "udp": 53, "sctp": 3868}


def asking(ip: Ip, annotations: Mapping[str, str], **tweaks: Any) -> Service:
    """A Service with all kinds of addresses, all protocols and some annotations, that hides no client."""
    ports = [f"{protocol}:{port}:{30000 + port}/{protocol}" for protocol, port in PORTS.items()]
    return exposed_service(ip, **{"external_policy": "Local", "ports": ports, "annotations": annotations} | tweaks)


def make_cluster(lab: Lab, ip: Ip, annotations: Mapping[str, str], **tweaks: Any) -> Cluster:
    """A cluster with such a Service, whose only endpoint is on this node."""
    ports = [f"{protocol}:8080/{protocol}" for protocol in PORTS]
    options = {name: tweaks.pop(name) for name in ("node_port_addresses", "service_counts") if name in tweaks}
    given = asking(ip, annotations, **tweaks)
    return Cluster(lab, given, slice_of(endpoints=[f"{ip.here}@node-a"], ports=ports), **options)


def other(ip: Ip) -> str:
    """Another client of the same network."""
    return beside(ip.client, 77)


def fronts(ip: Ip, protocol: str) -> list[tuple[str, int]]:
    """Every address and port at which such a Service is reached from outside."""
    port = PORTS[protocol]
    return [(ip.vip, port), (ip.external, port), (ip.balanced, port), (ip.node, 30000 + port)]


def here(ip: Ip) -> str:
    """The endpoint of such a Service."""
    return host_port(ip.here, 8080)


def ends(outcomes: list[Outcome]) -> list[str]:
    """The endpoint that each of some connections reached, or the kind of its outcome."""
    return [str(outcome.endpoint or outcome.kind.value) for outcome in outcomes]


def test_a_client_has_so_many_connections(lab: Lab, ip: Ip, protocol: str) -> None:
    """Three of a client's connections to a front reach the endpoint, and three more after their end, and so for other
    clients.
    """
    cluster = make_cluster(lab, ip, {"client-connections": "3"})
    for address, port in fronts(ip, protocol):
        outcomes = cluster.connect(OUTSIDE, address, port, protocol, times=8)
        assert ends(outcomes) == [here(ip)] * 3 + ["dropped"] * 5, address
        assert ends(cluster.connect(OUTSIDE, address, port, protocol, source=other(ip), times=3)) == [here(ip)] * 3
    lab.node.flush_conntrack()
    for address, port in fronts(ip, protocol):  # the kernel notices the end within some milliseconds
        wait_until(lambda: ends(cluster.connect(OUTSIDE, address, port, protocol)) == [here(ip)])  # noqa: B023
        assert ends(cluster.connect(OUTSIDE, address, port, protocol, times=3)) == [here(ip)] * 2 + ["dropped"]


def test_a_client_begins_so_many_connections_in_a_second(lab: Lab, ip: Ip, protocol: str) -> None:
    """At each front a client's burst passes, then as many as seconds go by, and another client has a burst of its
    own.
    """
    cluster = make_cluster(lab, ip, {"client-connection-rate": "1,burst=5"})
    for address, port in fronts(ip, protocol):
        for source in (ip.client, other(ip)):
            began = time.monotonic()
            outcomes = ends(cluster.connect(OUTSIDE, address, port, protocol, source=source, times=12))
            most = 5 + int(time.monotonic() - began + 1)
            assert outcomes[:5] == [here(ip)] * 5
            assert outcomes.count(here(ip)) <= most, address
            assert set(outcomes) <= {here(ip), "dropped"}


def test_a_connection_counts_once(lab: Lab, ip: Ip) -> None:
    """Where an external IP is the node's own address, at the number of its node port, a client has its whole burst."""
    rate = {"client-connection-rate": "1,burst=5"}
    given = asking(ip, rate, external_ips=[ip.node], load_balancer_ips=[], ports=["http:30080:30080"])
    cluster = Cluster(lab, given, pods(ip, "here"))
    assert ends(cluster.connect(OUTSIDE, ip.node, 30080, times=5)) == [here(ip)] * 5


@pytest.mark.parametrize("cidrs", [["primary"], ["0.0.0.0/0", "::/0"]], ids=["primary", "everywhere"])
def test_node_ports_that_lead_to_themselves_are_limited(lab: Lab, ip: Ip, cidrs: list[str]) -> None:
    """A server in the node's own network, at the very number of its node port, has limits like any other."""
    given = asking(ip, {"client-connections": "2"})
    own = slice_of(endpoints=[f"{ip.node}@node-a"], ports=["udp:30053/udp"])  # TCP would end with the node's reset
    cluster = Cluster(lab, given, own, node_port_addresses=cidrs)
    assert ends(cluster.connect(OUTSIDE, ip.node, 30053, "udp", times=4)) == ["node", "node", "dropped", "dropped"]
    reached = ends(cluster.connect(OUTSIDE, ip.external, 53, "udp", times=3))
    assert reached == [host_port(ip.node, 30053)] * 2 + ["dropped"]


def test_denied_ranges_hold_everywhere(lab: Lab, ip: Ip, protocol: str) -> None:
    """Clients in a denied range are dropped at every front, pods and the node too, and all other clients are served."""
    denied = ",".join(map(ip.alone, (ip.client, ip.pod, ip.own)))
    cluster = make_cluster(lab, ip, {"denied-source-ranges": denied})
    for address, port in fronts(ip, protocol):
        for origin in (OUTSIDE, Origin.POD, Origin.NODE):
            assert cluster.outcomes(origin, address, port, protocol, times=2) == {DROPPED}, (address, origin)
        assert ends(cluster.connect(OUTSIDE, address, port, protocol, source=other(ip))) == [here(ip)]


def test_source_ranges_hold_for_what_is_asked(lab: Lab, ip: Ip, protocol: str) -> None:
    """Only the load balancer's address has source ranges, until an annotation names more fronts, but no ClusterIP."""
    port = PORTS[protocol]
    places = {"vip": (ip.vip, port), "external": (ip.external, port), "node": (ip.node, 30000 + port)}
    ranges = {"source_ranges": [ip.alone(ip.client)]}
    cluster = make_cluster(lab, ip, {}, **ranges)
    for words, closed in (
        ("", set[str]()),
        ("external-ips", {"external"}),
        ("node-ports", {"node"}),
        ("node-ports,external-ips", {"external", "node"}),
    ):
        cluster.put(asking(ip, {"source-ranges-for": words} if words else {}, **ranges))
        for name, (address, at_port) in (places | {"balanced": (ip.balanced, port)}).items():
            shut = name in closed or name == "balanced"
            found = cluster.outcomes(OUTSIDE, address, at_port, protocol, source=other(ip), times=1)
            assert (found == {DROPPED}) is shut
            assert ends(cluster.connect(OUTSIDE, address, at_port, protocol)) == [here(ip)]


def test_clients_without_an_endpoint_are_rejected_unscreened(lab: Lab, ip: Ip, protocol: str) -> None:
    """Where no endpoint serves, every client gets the usual rejection as often as it tries: nothing screens that."""
    asked = {"client-connections": "1", "client-connection-rate": "1", "denied-source-ranges": ip.alone(ip.client)}
    cluster = Cluster(lab, asking(ip, asked))
    rejected = {TCP_RESET if protocol == "tcp" else PORT_UNREACHABLE}
    for address, port in fronts(ip, protocol):
        for origin in (OUTSIDE, Origin.POD, Origin.NODE):
            assert cluster.outcomes(origin, address, port, protocol, times=3) == rejected, (address, origin)


def test_answers_are_not_screened(lab: Lab, ip: Ip) -> None:
    """Where a network policy rejects connections, each client gets every reset: limits and ranges are for clients."""
    asked = {"client-connections": "1", "client-connection-rate": "1", "denied-source-ranges": ip.alone(ip.here)}
    clients = [ip.alone(each) for each in (ip.client, ip.pod, ip.own)]
    cluster = make_cluster(lab, ip, asked | {"source-ranges-for": "node-ports"}, source_ranges=clients)
    lab.load("add table inet policies")
    for hook in ("forward", "output"):
        lab.load(f"add chain inet policies {hook} {{ type filter hook {hook} priority 0; }}")
        lab.load(f"add rule inet policies {hook} tcp dport 8080 reject with tcp reset")
    for address, port in fronts(ip, "tcp"):
        for origin in (OUTSIDE, Origin.POD, Origin.NODE):
            assert cluster.outcomes(origin, address, port, times=4) == {TCP_RESET}, (address, origin)


def test_limits_do_not_affect_other_services(lab: Lab, ip: Ip) -> None:
    """Beside a Service that denies everybody, other Services and the node's own servers at its node port are served."""
    everyone = ["0.0.0.0/0", "::/0"]
    plain = service("shop/plain", cluster_ips=[ip.vip2], ports=["http:30080/tcp"])
    for everywhere in (["primary"], everyone):
        lab.reset()
        cluster = make_cluster(lab, ip, {"denied-source-ranges": ",".join(everyone)}, node_port_addresses=everywhere)
        cluster.put(plain, pods(ip, "here2", port=9090, name="shop/plain"))
        assert cluster.outcomes(Origin.POD, ip.vip2, 30080, times=2) == at(ip.here2, port=9090)
        assert cluster.outcomes(OUTSIDE, ip.node, 30080, times=2) == {DROPPED}
        assert cluster.outcomes(OUTSIDE, ip.own, 30080, times=2) == {DROPPED if everywhere == everyone else DELIVERED}
        assert cluster.outcomes(OUTSIDE, beside(ip.client, 9), 30080, times=1) == {UNTOUCHED}


def test_limits_come_and_go(lab: Lab, ip: Ip) -> None:
    """An annotation takes effect with the Service's next change, and leaves no chain that packets pay for behind it."""
    cluster = make_cluster(lab, ip, {})
    before = lab.load("list chains")
    assert "screen" not in before
    cluster.put(asking(ip, {"denied-source-ranges": ip.alone(ip.client)}))
    assert cluster.outcomes(OUTSIDE, ip.vip, 80, times=1) == {DROPPED}
    cluster.put(asking(ip, {}))
    assert ends(cluster.connect(OUTSIDE, ip.vip)) == [here(ip)]
    after = lab.load("list chains")
    assert "screen-postrouting" not in after
    assert after.count("hook") == before.count("hook")
    cluster.put(asking(ip, {"client-connections": "1"}))
    assert ends(cluster.connect(OUTSIDE, ip.vip, times=3)) == [here(ip), "dropped", "dropped"]


def test_a_full_load_keeps_the_clients(lab: Lab, ip: Ip) -> None:
    """Rules that are loaded anew know a client's connections still."""
    cluster = make_cluster(lab, ip, {"client-connections": "2", "client-connection-rate": "50"})
    assert ends(cluster.connect(OUTSIDE, ip.vip, times=3)) == [here(ip), here(ip), "dropped"]
    cluster.load_again()
    assert ends(cluster.connect(OUTSIDE, ip.vip, times=3)) == ["dropped"] * 3


class Dropped:
    """The packets that the kernel dropped for annotations, by Service port, kind of front and reason."""

    def __init__(self, cluster: Cluster, ip: Ip, *, counts_all: bool = False) -> None:
        self._node = cluster.lab.node
        self._family = ip.family
        self._reader = CountReader(COUNTED_SETS if counts_all else RESTRICTED_SETS)
        self._totals = CountTotals(cluster.pipeline.view(CountedFronts))
        self._totals.set_baseline(self._family, self._read())

    def _read(self) -> FamilyCounts:
        reading = self._node.call(self._reader.read, self._family)
        assert reading
        return reading

    def end(self) -> tuple[dict[tuple[str, ...], int], dict[str, set[Claim]]]:
        """The counts of the metrics, and the fronts in each of the sets."""
        reading = self._read()
        self._node.call(self._reader.close)
        self._totals.add(self._family, reading)
        self._totals.exposition()  # in which new series begin
        lines = [line for line in self._totals.exposition().decode().splitlines() if line.startswith(f"{UNSERVED}{{")]
        labels = re.compile(r'(?:protocol|front|reason)="(\w+)"')
        shown = {tuple(labels.findall(line)): int(line.split()[-1]) for line in lines}
        entries = {
            each.name: {claim_of(self._family, each, key) for key in keys}
            for each, keys in reading.counts.items()
            if keys and each.reason
        }
        return {key: count for key, count in shown.items() if count}, entries


@pytest.mark.parametrize("counts_all", [False, True])
def test_what_is_dropped_is_counted(lab: Lab, ip: Ip, counts_all: bool) -> None:
    """Each packet that annotations drop is in the metrics by its Service port and reason, with service counts and
    without.
    """
    asked = {"client-connections": "2", "denied-source-ranges": ip.alone(other(ip)), "source-ranges-for": "node-ports"}
    cluster = make_cluster(lab, ip, asked, source_ranges=[ip.alone(ip.client)], service_counts=counts_all)
    dropped = Dropped(cluster, ip, counts_all=counts_all)
    cluster.connect(OUTSIDE, ip.vip, 80, times=5)
    cluster.connect(OUTSIDE, ip.vip, 53, "udp", times=3)
    cluster.connect(OUTSIDE, ip.node, 30053, "udp", times=4)
    cluster.connect(OUTSIDE, ip.node, 33868, "sctp", times=3)
    cluster.connect(OUTSIDE, ip.external, 80, source=other(ip), times=2)
    cluster.connect(Origin.POD, ip.node, 30080)
    assert dropped.end() == (
        {
            ("tcp", "cluster_ip", "over_connections"): 3,
            ("udp", "cluster_ip", "over_connections"): 1,
            ("udp", "node_port", "over_connections"): 2,
            ("sctp", "node_port", "over_connections"): 1,
            ("tcp", "external_ip", "denied"): 2,
            ("tcp", "node_port", "not_admitted"): 1,
        },
        {
            "counted-over-connections": {Claim(Address(ip.vip), TCP, 80), Claim(Address(ip.vip), UDP, 53)},
            "nodeport-counted-over-connections": {Claim(NODE, UDP, 30053), Claim(NODE, SCTP, 33868)},
            "counted-denied": {Claim(Address(ip.external), TCP, 80)},
            "nodeport-counted-not-admitted": {Claim(NODE, TCP, 30080)},
        },
    )


def test_all_that_is_asked_holds_together(lab: Lab, ip: Ip) -> None:
    """A packet is dropped for a single reason, the first of these: denied, not admitted, over its rate, over its
    number.
    """
    asked = {
        "client-connection-rate": "1,burst=5",
        "client-connections": "3",
        "denied-source-ranges": ip.alone(other(ip)),
        "source-ranges-for": "node-ports",
    }
    cluster = make_cluster(lab, ip, asked, source_ranges=[ip.alone(ip.client)], external_policy="Cluster")
    dropped = Dropped(cluster, ip)
    for address, port in ((ip.external, 80), (ip.node, 30080)):
        assert ends(cluster.connect(OUTSIDE, address, port, source=other(ip), times=9)) == ["dropped"] * 9
        outcomes = ends(cluster.connect(OUTSIDE, address, port, times=30))
        assert outcomes == [here(ip)] * 3 + ["dropped"] * 27
    assert cluster.outcomes(Origin.POD, ip.node, 30080, times=9) == {DROPPED}
    counts, _ = dropped.end()
    for front in ("external_ip", "node_port"):
        over_rate, over_connections = (
            counts.pop(("tcp", front, reason)) for reason in ("over_rate", "over_connections")
        )
        assert over_rate + over_connections == 27
        assert over_connections >= 2
    assert counts == {
        ("tcp", "external_ip", "denied"): 9,
        ("tcp", "node_port", "denied"): 9,
        ("tcp", "node_port", "not_admitted"): 9,
    }


def test_addresses_that_lead_to_themselves_are_limited(lab: Lab, ip: Ip) -> None:
    """A server in the node's own network has limits at its Service's external IP too, where that is its own address."""
    limit = {"client-connections": "2"}
    given = asking(ip, limit, type="ClusterIP", external_ips=[ip.node], load_balancer_ips=[], ports=["dns:5353/udp"])
    cluster = Cluster(lab, given, slice_of(endpoints=[f"{ip.node}@node-a"], ports=["dns:5353/udp"]))
    dropped = Dropped(cluster, ip)
    assert ends(cluster.connect(OUTSIDE, ip.node, 5353, "udp", times=4)) == ["node", "node", "dropped", "dropped"]
    assert dropped.end() == (
        {("udp", "external_ip", "over_connections"): 2},
        {"counted-over-connections": {Claim(Address(ip.node), UDP, 5353)}},
    )


def test_what_packets_write_is_forgotten(lab: Lab, ip: Ip) -> None:
    """A client is forgotten a minute after its last connection, and a count a day after it last grew."""
    cluster = make_cluster(lab, ip, {"client-connection-rate": "1000", "client-connections": "1"})

    def drop_some() -> None:
        for address, port in ((ip.vip, 80), (ip.node, 30080)):
            cluster.connect(OUTSIDE, address, port, times=2)

    def begins_anew(name: str, most: float) -> bool:
        """Whether a dropped packet renews an entry.  False if the machine was too slow to tell."""
        drop_some()
        before = seconds_left(lab, ip, name)
        time.sleep(0.2)
        drop_some()
        return most - 30 < before - 0.1 < seconds_left(lab, ip, name) <= most  # not an entry that ended and began anew

    counted = "counted-over-connections"
    for name, most in (("rate-1000-1000", 60.0), (counted, 86_400.0), (f"nodeport-{counted}", 86_400.0)):
        wait_until(partial(begins_anew, name, most), lambda: f"{name} doesn't")  # noqa: B023


def seconds_left(lab: Lab, ip: Ip, name: str) -> float:
    """The seconds until the first entry of a set will be forgotten, 0 if none will."""
    units = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    texts = re.findall(r"expires (\w+)", lab.node.run(["nft", "list", "set", ip.nft, "nftproxy", name]))
    return min(
        (sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+)([a-z]+)", text)) for text in texts), default=0
    )
