"""Algorithms and weights: how connections spread, and which clients stay or move, by packets of both families."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import pytest
from nftproxy_conformance.lab import Lab, Origin, Outcome, Probe, is_spread

from nftproxy.extensions.algorithms import maglev
from nftproxy.extensions.algorithms.annotations import ALGORITHM, Algorithm
from nftproxy.extensions.algorithms.placement import lane
from nftproxy.kernel.capabilities import probe
from nftproxy.model.annotations import WEIGHTS, Options, ZoneWeight
from nftproxy.model.objects import EndpointSlice, Service
from tests.support.cluster import IP, Cluster, Ip, beside
from tests.support.factories import node, service, slice_of
from tests.support.words import ALGORITHMS

PROTOCOLS = ("tcp", "udp", "sctp")
PORTS = [f"{protocol}:80/{protocol}" for protocol in PROTOCOLS]
POD_PORTS = [f"{protocol}:8080/{protocol}" for protocol in PROTOCOLS]
CLIENTS = 480
BY_ADDRESS = (Algorithm.SOURCE_HASH, Algorithm.CONSISTENT_HASH)
CONSISTENT = (Algorithm.CONSISTENT_HASH, Algorithm.CONSISTENT_HASH_WITH_PORT)
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: each.value)

Ends = list[tuple[str, int] | None]


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of 251 rows in place of thousands, which take their time, where the size changes nothing."""
    monkeypatch.setattr(maglev, "SIZES", ((20, 251),))


def vip(ip: Ip, algorithm: Enum) -> str:
    """The ClusterIP of the Service with this algorithm."""
    return f"{ip.vip}{list(ALGORITHMS).index(algorithm)}"


def steered(ip: Ip, algorithm: Enum, weights: tuple[ZoneWeight, ...] = (), **tweaks: Any) -> Service:
    """A Service for all protocols with an algorithm, called like it."""
    options = Options.of({ALGORITHM: algorithm, WEIGHTS: weights})
    return service(f"shop/{algorithm.value}", cluster_ips=[vip(ip, algorithm)], ports=PORTS, options=options, **tweaks)


def pods(ip: Ip, count: int) -> list[str]:
    """Addresses of this many pods on another node."""
    return [beside(ip.away, number + 10) for number in range(count)]


def slices(algorithm: Enum, *groups: Iterable[str], weights: Sequence[int | None] = ()) -> list[EndpointSlice]:
    """A slice of the Service with this algorithm for each group of endpoints, with its weight."""
    given = itertools.zip_longest(groups, weights)
    return [
        slice_of(f"shop/{algorithm.value}", list(each or ()), ports=POD_PORTS, suffix=str(number), weight=weight)
        for number, (each, weight) in enumerate(given)
    ]


def clients(ip: Ip, count: int = CLIENTS) -> list[str]:
    """Addresses of this many pods of other nodes."""
    if ip.is_ipv6:
        return [f"fd00:1:0:7::{number + 1:x}" for number in range(count)]
    return [f"10.1.{7 + number // 200}.{number % 200 + 1}" for number in range(count)]


def outcomes_of(
    lab: Lab, address: str, sources: Iterable[str], protocol: str = "tcp", *, sport: int | None = None
) -> list[Outcome]:
    """The outcome of a connection of each client."""
    return lab.connect_many([Probe(Origin.REMOTE_POD, address, 80, protocol, each, sport) for each in sources])


def ends(lab: Lab, address: str, sources: Iterable[str], protocol: str = "tcp", *, sport: int | None = None) -> Ends:
    """The endpoint that a connection of each client reaches."""
    return [each.endpoint for each in outcomes_of(lab, address, sources, protocol, sport=sport)]


def restart(lab: Lab, cluster: Cluster) -> None:
    """Load everything anew on a node that knows no connection."""
    lab.reset()
    lab.load(cluster.pipeline.full_transaction({}).text)


@pytest.mark.usefixtures("small_tables")
def test_connections_spread_evenly(lab: Lab, ip: Ip) -> None:
    """By each algorithm, connections of many clients spread evenly, by each protocol."""
    there = pods(ip, 5)
    Cluster(
        lab,
        *(steered(ip, each) for each in ALGORITHMS),
        *itertools.chain.from_iterable(slices(each, there) for each in ALGORITHMS),
    )
    for algorithm, protocol in itertools.product(ALGORITHMS, PROTOCOLS):
        outcomes = outcomes_of(lab, vip(ip, algorithm), clients(ip), protocol)
        assert is_spread(outcomes, dict.fromkeys([(pod, 8080) for pod in there], 1)), (algorithm, protocol)


@pytest.mark.usefixtures("small_tables")
def test_connections_spread_by_weight(lab: Lab, ip: Ip) -> None:
    """By each algorithm, an endpoint gets connections in proportion to its slice's weight times its zone's."""
    first, second, third, drained = pods(ip, 4)
    weights = {(first, 8080): 3 * 100, (second, 8080): 100, (third, 8080): 3 * 50}
    groups = [f"{first} in=a", f"{second} in=b"], [f"{third} in=a"], [f"{drained} in=a"]
    Cluster(
        lab,
        *(steered(ip, each, weights=(("a", 3),)) for each in ALGORITHMS),
        *itertools.chain.from_iterable(slices(each, *groups, weights=(None, 50, 0)) for each in ALGORITHMS),
    )
    for algorithm, protocol in itertools.product(ALGORITHMS, PROTOCOLS):
        outcomes = outcomes_of(lab, vip(ip, algorithm), clients(ip), protocol)
        assert is_spread(outcomes, weights), (algorithm, protocol)


@pytest.mark.usefixtures("small_tables")
def test_a_hash_keeps_clients_where_they_are(lab: Lab, ip: Ip) -> None:
    """By a hash of the address a client always gets the same endpoint, with the port too only from the same port."""
    by_port = (Algorithm.SOURCE_HASH_WITH_PORT, Algorithm.CONSISTENT_HASH_WITH_PORT)
    every = (*BY_ADDRESS, *by_port)
    made = [steered(ip, each) for each in every]
    cluster = Cluster(lab, *made, *itertools.chain.from_iterable(slices(each, pods(ip, 5)) for each in every))
    some = clients(ip, 40)
    for algorithm, protocol in itertools.product(every, PROTOCOLS):
        runs = [ends(lab, vip(ip, algorithm), some, protocol) for _ in range(3)]
        assert (runs[0] == runs[1] == runs[2]) is (algorithm in BY_ADDRESS), (algorithm, protocol)
    for algorithm in by_port:
        one = clients(ip, 1) * 200
        assert len(set(ends(lab, vip(ip, algorithm), one))) == 5
        first = ends(lab, vip(ip, algorithm), some, "udp", sport=7777)
        restart(lab, cluster)
        assert ends(lab, vip(ip, algorithm), some, "udp", sport=7777) == first


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", CONSISTENT, ids=lambda each: each.value)
def test_consistent_hash_moves_few(lab: Lab, ip: Ip, algorithm: Enum) -> None:
    """When an endpoint of N goes, 1/N of the clients move and few more, and all are back when it is back."""
    count = 5
    there = pods(ip, count)
    cluster = Cluster(lab, steered(ip, algorithm), *slices(algorithm, there))

    def now() -> Ends:
        if algorithm in BY_ADDRESS:
            return ends(lab, vip(ip, algorithm), clients(ip))
        restart(lab, cluster)  # or the same client's same port would still be the same connection
        return ends(lab, vip(ip, algorithm), clients(ip), sport=7777)

    before = now()
    cluster.put(*slices(algorithm, there[:2] + there[3:]))
    without = now()
    moved = sum(a != b for a, b in zip(before, without, strict=True))
    had_to = sum(each == (there[2], 8080) for each in before)
    assert CLIENTS / count / 2 < had_to <= moved <= had_to + 0.04 * CLIENTS
    cluster.put(*slices(algorithm, there))
    assert now() == before


def test_source_hash_moves_more(lab: Lab) -> None:
    """By source-hash half of the clients move when the first of five endpoints goes: consistent-hash moves fewer."""
    there = pods(IP, 5)
    cluster = Cluster(lab, steered(IP, Algorithm.SOURCE_HASH), *slices(Algorithm.SOURCE_HASH, there))
    address = vip(IP, Algorithm.SOURCE_HASH)
    before = ends(lab, address, clients(IP))
    cluster.put(*slices(Algorithm.SOURCE_HASH, there[1:]))
    after = ends(lab, address, clients(IP))
    assert sum(a != b for a, b in zip(before, after, strict=True)) > 0.4 * CLIENTS


def test_consistent_hash_is_the_same_everywhere(lab: Lab, ip: Ip) -> None:
    """On another node, and after a restart, each client gets the endpoint that it had."""
    algorithm = Algorithm.CONSISTENT_HASH
    found = []
    for name in ("node-a", "node-z", "node-a"):
        lab.reset()
        Cluster(lab, steered(ip, algorithm), *slices(algorithm, pods(ip, 7)), node=node(name))
        found.append(ends(lab, vip(ip, algorithm), clients(ip, 100)))
    assert found[0] == found[1] == found[2]


def test_round_robin_takes_turns(lab: Lab, ip: Ip) -> None:
    """Each of three endpoints gets every third connection, by each protocol, as long as the Service is alone."""
    algorithm = Algorithm.ROUND_ROBIN
    Cluster(lab, steered(ip, algorithm), *slices(algorithm, pods(ip, 3)))
    for protocol in PROTOCOLS:
        found = ends(lab, vip(ip, algorithm), clients(ip, 1) * 30, protocol)
        assert all(len(set(found[turn : turn + 3])) == 3 for turn in range(0, 30, 3))


def test_round_robin_of_services_that_share_a_counter(lab: Lab) -> None:
    """Where connections to two Services alternate, and a shared counter counts them, each still spreads evenly."""
    names = [f"shop/web-{number}" for number in range(100)]
    first, second = [name for name in names if lane(name) == lane(names[0])][:2]
    options = Options.of({ALGORITHM: Algorithm.ROUND_ROBIN})
    there = pods(IP, 2)
    Cluster(
        lab,
        service(first, cluster_ips=[IP.vip], options=options),
        service(second, cluster_ips=[IP.vip2], options=options),
        *(slice_of(name, there) for name in (first, second)),
    )
    probes = [Probe(Origin.POD, address, 80) for address in (IP.vip, IP.vip2)] * 64
    found = [each.endpoint for each in lab.connect_many(probes)]
    for each in (found[::2], found[1::2]):
        assert Counter(each) == Counter({(pod, 8080): 32 for pod in there})


def test_nodes_and_services_start_with_different_endpoints(lab: Lab) -> None:
    """First connections after a load go to various endpoints: by node, and by Service."""
    options = Options.of({ALGORITHM: Algorithm.ROUND_ROBIN})
    services = [service(f"shop/s{n}", cluster_ips=[f"10.96.1.{n}"], options=options) for n in range(1, 13)]
    there = [slice_of(f"shop/s{n}", pods(IP, 3)) for n in range(1, 13)]
    firsts = []
    for name in ("node-a", "node-b", "node-c"):
        lab.reset()
        Cluster(lab, *services, *there, node=node(name))
        outcomes = lab.connect_many([Probe(Origin.POD, f"10.96.1.{n}", 80) for n in range(1, 13)])
        firsts.append([each.endpoint for each in outcomes])
    assert all(len(set(each)) == 3 for each in firsts)
    assert len(set(map(str, firsts))) == 3


@pytest.mark.usefixtures("small_tables")
@each_algorithm
def test_affinity_wins(lab: Lab, ip: Ip, algorithm: Enum) -> None:
    """With session affinity a client stays where it was, with wide maps and without, and new clients are spread."""
    for wide_maps in {False, probe().capabilities.wide_maps}:
        lab.reset()
        made = steered(ip, algorithm, affinity_timeout=600)
        Cluster(lab, made, *slices(algorithm, pods(ip, 3)), wide_maps=wide_maps)
        first = ends(lab, vip(ip, algorithm), clients(ip, 60))
        assert ends(lab, vip(ip, algorithm), clients(ip, 60)) == first
        assert len(set(first)) == 3


@pytest.mark.usefixtures("small_tables")
@each_algorithm
def test_algorithms_choose_from_the_list_that_counts(lab: Lab, ip: Ip, algorithm: Enum) -> None:
    """Policy Local, topology and terminating endpoints decide about the list, and the algorithm draws from it."""
    here, away = f"{ip.here}@node-a", f"{ip.away}@node-b"
    near, far = f"{ip.here}@node-a zone=a", f"{ip.away}@node-b zone=b"
    for policy, endpoints, wanted in (
        ("Local", [here, away], {ip.here}),
        ("Cluster", [near, far], {ip.here}),
        ("Cluster", [f"{here} draining", away], {ip.away}),
        ("Cluster", [f"{here} draining", f"{away} draining"], {ip.here, ip.away}),
    ):
        lab.reset()
        Cluster(lab, steered(ip, algorithm, internal_policy=policy), *slices(algorithm, endpoints))
        found = ends(lab, vip(ip, algorithm), clients(ip, 40))
        assert found.count(None) == 0
        assert {each[0] for each in found if each} == wanted


def test_all_drained_is_none(lab: Lab, ip: Ip) -> None:
    """Where all endpoints weigh nothing, connections are rejected, as where there is no endpoint."""
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]), slice_of(endpoints=[ip.here], weight=0))
    drained = cluster.outcomes(Origin.POD, ip.vip, times=4)
    cluster.put(slice_of(endpoints=[f"{ip.here} unready"]))
    assert cluster.outcomes(Origin.POD, ip.vip, times=4) == drained


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_established_connections_outlive_the_drain(lab: Lab, ip: Ip, protocol: str) -> None:
    """A slice whose weight becomes 0 keeps the connections that it has, and gets no new connection."""
    first, second = pods(ip, 2)
    algorithm = Algorithm.ROUND_ROBIN
    cluster = Cluster(lab, steered(ip, algorithm), *slices(algorithm, [first], weights=(100,)))
    one = clients(ip, 1)
    before = ends(lab, vip(ip, algorithm), one, protocol, sport=7777)
    cluster.put(*slices(algorithm, [first], [second], weights=(0, None)))
    assert ends(lab, vip(ip, algorithm), one, protocol, sport=7777) == before == [(first, 8080)]
    assert set(ends(lab, vip(ip, algorithm), one * 20, protocol)) == {(second, 8080)}
