"""What annotations forbid clients: more than so many connections, at once or in a second, and some addresses."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from nftproxy.agent.counts import UNSERVED, Totals
from nftproxy.kernel.counts import COUNTED_SETS, SCREENED_SETS, CountReader
from nftproxy.kernel.libnftables import Kernel
from nftproxy.lab import DROPPED, PORT_UNREACHABLE, TCP_RESET, Lab, Origin, obstacle
from nftproxy.lab.outcome import Kind, Outcome
from nftproxy.model.addresses import Family
from nftproxy.model.objects import Service
from tests.support.factories import service, slice_of
from tests.support.waiting import wait_until
from tests.system.packets.cluster import Cluster, Ip, at, each_ip, each_protocol

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

OUTSIDE = Origin.OUTSIDE
PORTS = {"tcp": 80, "udp": 53, "sctp": 3868}


def asking(ip: Ip, annotations: Mapping[str, str], **tweaks: Any) -> Service:
    """A Service with all kinds of addresses, that asks for something, and hides no client."""
    ports = [f"{protocol}:{port}:{30000 + port}/{protocol}" for protocol, port in PORTS.items()]
    fields = {"type": "LoadBalancer", "external_policy": "Local", "ports": ports} | tweaks
    return service(
        cluster_ips=[ip.vip],
        external_ips=[ip.external],
        load_balancer_ips=[ip.balanced],
        annotations=annotations,
        **fields,
    )


def make_cluster(lab: Lab, ip: Ip, annotations: Mapping[str, str], **tweaks: Any) -> Cluster:
    """A cluster with such a Service, whose only endpoint is on this node."""
    ports = [f"{protocol}:8080/{protocol}" for protocol in PORTS]
    options = {name: tweaks.pop(name) for name in ("node_port_addresses", "service_counts") if name in tweaks}
    given = asking(ip, annotations, **tweaks)
    return Cluster(lab, given, slice_of(endpoints=[f"{ip.here}@node-a"], ports=ports), **options)


def other(ip: Ip) -> str:
    """Another client of the same network."""
    return f"{ip.client[:-2]}77" if ip.is_ipv6 else f"{ip.client[:-3]}77"


def fronts(ip: Ip, protocol: str) -> list[tuple[str, int]]:
    """Every address and port at which such a Service is reached from outside."""
    port = PORTS[protocol]
    return [(ip.vip, port), (ip.external, port), (ip.balanced, port), (ip.node, 30000 + port)]


def kinds(outcomes: list[Outcome]) -> Counter[Kind]:
    """How many of them reached an endpoint, and how many didn't."""
    return Counter(outcome.kind for outcome in outcomes)


@each_ip
@each_protocol
def test_a_client_has_so_many_connections(lab: Lab, ip: Ip, protocol: str) -> None:
    """Three of a client's connections to a front reach the endpoint, and three more after their end; so with others."""
    cluster = make_cluster(lab, ip, {"client-connections": "3"})
    for address, port in fronts(ip, protocol):
        outcomes = cluster.connect(OUTSIDE, address, port, protocol, times=8)
        assert [outcome == DROPPED for outcome in outcomes] == [False] * 3 + [True] * 5, address
        assert kinds(cluster.connect(OUTSIDE, address, port, protocol, source=other(ip), times=3)) == {Kind.ENDPOINT: 3}
    lab.node.flush_conntrack()
    for address, port in fronts(ip, protocol):  # the kernel notices the end within some milliseconds
        wait_until(lambda: cluster.connect(OUTSIDE, address, port, protocol)[0].kind is Kind.ENDPOINT)  # noqa: B023
        assert kinds(cluster.connect(OUTSIDE, address, port, protocol, times=4)) == {Kind.ENDPOINT: 2, Kind.DROPPED: 2}


@each_ip
@each_protocol
def test_a_client_begins_so_many_connections_in_a_second(lab: Lab, ip: Ip, protocol: str) -> None:
    """At each front a client's burst passes, then as many as seconds go by; another client has a burst of its own."""
    cluster = make_cluster(lab, ip, {"client-connection-rate": "1,burst=5"})
    for address, port in fronts(ip, protocol):
        for source in (ip.client, other(ip)):
            began = time.monotonic()
            outcomes = cluster.connect(OUTSIDE, address, port, protocol, source=source, times=12)
            most = 5 + int(time.monotonic() - began + 1)
            assert [outcome.kind for outcome in outcomes[:5]] == [Kind.ENDPOINT] * 5
            assert 5 <= kinds(outcomes)[Kind.ENDPOINT] <= most, address


@each_ip
def test_a_connection_counts_once(lab: Lab, ip: Ip) -> None:
    """Where an external IP is the node's own address, at the number of its node port, a client has its whole burst."""
    given = service(
        type="LoadBalancer",
        external_policy="Local",
        cluster_ips=[ip.vip],
        external_ips=[ip.node],
        ports=["http:30080:30080"],
        annotations={"client-connection-rate": "1,burst=5"},
    )
    cluster = Cluster(lab, given, slice_of(endpoints=[f"{ip.here}@node-a"], ports=["http:8080"]))
    assert kinds(cluster.connect(OUTSIDE, ip.node, 30080, times=5)) == {Kind.ENDPOINT: 5}


@each_ip
@each_protocol
def test_denied_ranges_hold_everywhere(lab: Lab, ip: Ip, protocol: str) -> None:
    """Who is in a denied range is dropped at every front, pods and the node too; all others are served."""
    denied = ",".join(f"{address}/{128 if ip.is_ipv6 else 32}" for address in (ip.client, ip.pod, ip.own))
    cluster = make_cluster(lab, ip, {"denied-source-ranges": denied})
    for address, port in fronts(ip, protocol):
        for origin in (OUTSIDE, Origin.POD, Origin.NODE):
            assert cluster.outcomes(origin, address, port, protocol, times=2) == {DROPPED}, (address, origin)
        assert kinds(cluster.connect(OUTSIDE, address, port, protocol, source=other(ip))) == {Kind.ENDPOINT: 1}


@each_ip
@each_protocol
def test_source_ranges_hold_for_what_is_asked(lab: Lab, ip: Ip, protocol: str) -> None:
    """Only the load balancer's address has source ranges, until an annotation names others, but no ClusterIP."""
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
            assert (
                cluster.outcomes(OUTSIDE, address, at_port, protocol, source=other(ip), times=1) == {DROPPED}
            ) is shut
            assert kinds(cluster.connect(OUTSIDE, address, at_port, protocol)) == {Kind.ENDPOINT: 1}


@each_ip
@each_protocol
def test_who_finds_no_endpoint_is_rejected(lab: Lab, ip: Ip, protocol: str) -> None:
    """Where no endpoint serves, every client gets the usual rejection as often as it tries: nothing screens that."""
    asked = {"client-connections": "1", "client-connection-rate": "1", "denied-source-ranges": ip.alone(ip.client)}
    cluster = Cluster(lab, asking(ip, asked))
    rejected = {TCP_RESET if protocol == "tcp" else PORT_UNREACHABLE}
    for address, port in fronts(ip, protocol):
        for origin in (OUTSIDE, Origin.POD, Origin.NODE):
            assert cluster.outcomes(origin, address, port, protocol, times=3) == rejected, (address, origin)


@each_ip
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


@each_ip
def test_others_are_not_limited(lab: Lab, ip: Ip) -> None:
    """A Service that asks for nothing is served as ever beside one that denies everybody, at its very port number."""
    everyone = "0.0.0.0/0,::/0"
    plain = service("shop/plain", cluster_ips=[ip.vip2], ports=["http:30080/tcp"])
    for everywhere in ("primary", "0.0.0.0/0,::/0"):
        lab.reset()
        cluster = make_cluster(lab, ip, {"denied-source-ranges": everyone}, node_port_addresses=everywhere.split(","))
        cluster.put(plain, slice_of("shop/plain", [f"{ip.here2}@node-a"], ports=["http:9090"]))
        assert cluster.outcomes(Origin.POD, ip.vip2, 30080, times=2) == at(ip.here2, port=9090)
        assert cluster.outcomes(OUTSIDE, ip.node, 30080, times=2) == {DROPPED}
        assert cluster.outcomes(OUTSIDE, ip.client[:-1] + "9", 30080, times=1).pop().kind is Kind.UNTOUCHED


@each_ip
def test_limits_come_and_go(lab: Lab, ip: Ip) -> None:
    """An annotation takes effect with the Service's next change, and leaves no chain that packets pay for behind it."""
    cluster = make_cluster(lab, ip, {})
    hooks = "list chains"
    before = lab.node.run(["nft", *hooks.split()])
    assert "screen" not in before
    cluster.put(asking(ip, {"denied-source-ranges": ip.alone(ip.client)}))
    assert cluster.outcomes(OUTSIDE, ip.vip, 80, times=1) == {DROPPED}
    cluster.put(asking(ip, {}))
    assert cluster.outcomes(OUTSIDE, ip.vip, 80, times=1).pop().kind is Kind.ENDPOINT
    after = lab.node.run(["nft", *hooks.split()])
    assert "screen-postrouting" not in after
    assert after.count("hook") == before.count("hook")
    cluster.put(asking(ip, {"client-connections": "1"}))
    assert kinds(cluster.connect(OUTSIDE, ip.vip, 80, times=3)) == {Kind.ENDPOINT: 1, Kind.DROPPED: 2}


@each_ip
def test_a_full_load_keeps_the_clients(lab: Lab, ip: Ip) -> None:
    """Rules that are loaded anew know a client's connections still."""
    cluster = make_cluster(lab, ip, {"client-connections": "2"})
    assert kinds(cluster.connect(OUTSIDE, ip.vip, 80, times=3)) == {Kind.ENDPOINT: 2, Kind.DROPPED: 1}
    installed = {family: lab.node.call(Kernel().read_back, family) for family in cluster.pipeline.generations}
    lab.load(cluster.pipeline.full_transaction(installed).text)
    assert kinds(cluster.connect(OUTSIDE, ip.vip, 80, times=3)) == {Kind.DROPPED: 3}


@pytest.mark.parametrize("counts_all", [False, True])
@each_ip
def test_what_is_dropped_is_counted(lab: Lab, ip: Ip, counts_all: bool) -> None:
    """Each packet that annotations drop is in the metrics by its Service port and reason, whatever is configured."""
    asked = {"client-connections": "2", "denied-source-ranges": ip.alone(other(ip)), "source-ranges-for": "node-ports"}
    cluster = make_cluster(lab, ip, asked, source_ranges=[ip.alone(ip.client)], service_counts=counts_all)
    reader = CountReader(COUNTED_SETS if counts_all else SCREENED_SETS)
    family = Family.IPV6 if ip.is_ipv6 else Family.IPV4
    totals = Totals(cluster.pipeline.counted)
    totals.begin(family, lab.node.call(reader.read, family))
    cluster.connect(OUTSIDE, ip.vip, 80, times=5)
    cluster.connect(OUTSIDE, ip.node, 30053, "udp", times=4)
    cluster.connect(OUTSIDE, ip.external, 80, source=other(ip), times=2)
    cluster.connect(Origin.POD, ip.node, 30080)
    reading = lab.node.call(reader.read, family)
    lab.node.call(reader.close)
    assert reading
    totals.add(family, reading)
    totals.text()
    found = [line for line in totals.text().decode().splitlines() if line.startswith(f"{UNSERVED}{{")]
    shown = {tuple(re.findall(r'(?:protocol|front|reason)="(\w+)"', line)): int(line.split()[-1]) for line in found}
    assert shown == {
        ("tcp", "cluster_ip", "over_connections"): 3,
        ("udp", "node_port", "over_connections"): 2,
        ("tcp", "external_ip", "denied"): 2,
        ("tcp", "node_port", "not_admitted"): 1,
    }
