"""Session affinity ClientIP over many connections and while rules change.  packets/test_affinity.py has the rest.

IPv6 clients are remembered if this machine's nft can write wide maps.  If not, a hash of the client's address chooses
the endpoint.
NFTPROXY_TESTS=long tries twenty times as many connections (`tox run -e race`).
"""

import itertools
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from nftproxy_conformance.lab import Address, Kind, Lab, Origin, Probe, obstacle

from nftproxy.kernel.capabilities import probe
from nftproxy.model.events import Put
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.rules.renderer import ENDPOINTS_TEMPLATE, Renderer
from tests.support.churn import Churn, Step, cycle, full_transaction, loaded
from tests.support.cluster import Ip
from tests.support.factories import pipeline, service, slice_of, templates

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

SCALE = 20 if os.environ.get("NFTPROXY_TESTS") == "long" else 1


def sticky(ip: Ip, protocol: str = "tcp", **tweaks: Any) -> Service:
    """A Service with affinity and an address of each kind."""
    fields: dict[str, Any] = {
        "cluster_ips": [ip.vip],
        "ports": [f"http:80:30080/{protocol}"],
        "type": "LoadBalancer",
        "load_balancer_ips": [ip.balanced],
        "affinity_timeout": 3600,
    }
    return service(**(fields | tweaks))


def endpoints(ip: Ip, *addresses: str, name: str = "shop/web", protocol: str = "tcp") -> EndpointSlice:
    """Return a slice with these addresses as endpoints, each on this node if it is this node's, else on another."""
    texts = [f"{each}@{'node-a' if each in (ip.here, ip.here2) else 'node-b'}" for each in addresses]
    return slice_of(name, texts, ports=[f"http:8080/{protocol}"])


def pod(ip: Ip, number: int) -> str:
    """Return the address of a pod of this node."""
    return f"fd00:1::{number:x}" if ip.is_ipv6 else f"10.1.0.{number}"


def pods(ip: Ip, count: int) -> list[str]:
    """Return the addresses of some of this node's pods that are no endpoints."""
    return [pod(ip, number) for number in range(10, 10 + count)]


def reached(lab: Lab, ip: Ip, sources: list[str], address: str = "", port: int = 80) -> dict[str, Address | None]:
    """Return the endpoint that a new connection of each pod reaches.  No connection may be lost."""
    outcomes = lab.connect_many(Probe(Origin.POD, address or ip.vip, port, "tcp", source) for source in sources)
    assert {outcome.kind for outcome in outcomes} == {Kind.ENDPOINT}
    return {source: outcome.endpoint for source, outcome in zip(sources, outcomes, strict=True)}


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_a_hundred_connections_of_a_client_reach_one_endpoint(lab: Lab, ip: Ip, protocol: str, policy: str) -> None:
    """From a pod, the node or outside, to any kind of address, all connections of a client reach a single endpoint."""
    addresses = [ip.here, ip.here2, ip.away, ip.away2]
    given = sticky(ip, protocol, external_policy=policy, internal_policy=policy)
    wide_maps = probe().capabilities.wide_maps
    loaded(lab, pipeline(given, endpoints(ip, *addresses, protocol=protocol), wide_maps=wide_maps))
    for origin in (Origin.POD, Origin.NODE, Origin.OUTSIDE):
        for address, port in ((ip.vip, 80), (ip.balanced, 80), (ip.node, 30080)):
            outcomes = lab.connect_many([Probe(origin, address, port, protocol)] * 100)
            (chosen,) = {outcome.endpoint for outcome in outcomes}
            has_local_list = policy == "Local" and (address == ip.vip or origin is Origin.OUTSIDE)
            assert chosen in {(each, 8080) for each in (addresses[:2] if has_local_list else addresses)}


def test_clients_stay_while_other_endpoints_come_and_go(lab: Lab, remembered: Ip) -> None:
    """While endpoints change at full speed, clients of a staying endpoint stay too, and no connection is lost."""
    ip, rng = remembered, random.Random(1)
    staying, others = [ip.here, ip.away], [pod(ip, number) for number in range(230, 238)]
    first = [*staying, *others]
    made = pipeline(sticky(ip), endpoints(ip, *first))
    lists = [[*staying, *rng.sample(others, rng.randint(0, 4))] for _ in range(100)] + [first]
    steps = cycle(lab, made, [(frozenset(each), [Put(endpoints(ip, *each))]) for each in lists])
    sources = pods(ip, 200)
    homes = {source: home for source, home in reached(lab, ip, sources).items() if home and home.ip in staying}
    assert len(homes) > 10
    probes = (Probe(Origin.POD, ip.vip, 80, "tcp", source) for source in itertools.cycle(sources))
    with Churn(lab, frozenset(first), steps) as churn:
        tries = churn.try_all(probes, 5_000 * SCALE, at_once=200, transactions=50)
    print(f"{len(tries):,} connections of {len(sources)} clients, {churn.count:,} transactions")  # noqa: T201 -- figures
    for each in tries:
        assert each.outcome.kind is Kind.ENDPOINT
        asked, home = each.outcome.probe, each.outcome.endpoint
        assert asked is not None
        assert home is not None
        assert home == homes.get(asked.source or "", home)
        assert any(home.ip in world for world in churn.in_force(each.began, each.ended))


def test_a_client_of_a_lost_endpoint_loses_no_connection(lab: Lab, remembered: Ip) -> None:
    """The first connection after a client's endpoint has gone reaches another endpoint, each time.

    Clients take turns.  The kernel keeps the entries that a rule deletes until its garbage collector runs, and all
    entries of a key share a bucket.  If a bucket has more than 16 entries, the kernel resizes the table, and may refuse
    the next entry meanwhile (rhashtable, Linux 6.18).
    """
    ip = remembered
    all_of_them = [ip.here, ip.here2, ip.away, ip.away2]
    made = pipeline(sticky(ip), endpoints(ip, *all_of_them))
    kernel = loaded(lab, made)
    for _, source in zip(range(25 * SCALE), itertools.cycle(pods(ip, 100)), strict=False):
        home = reached(lab, ip, [source])[source]
        assert home is not None
        left = [each for each in all_of_them if each != home.ip]
        kernel.apply(made.ingest([Put(endpoints(ip, *left))]))
        after = reached(lab, ip, [source])[source]
        assert after in {(each, 8080) for each in left}
        kernel.apply(made.ingest([Put(endpoints(ip, *all_of_them))]))
        assert reached(lab, ip, [source])[source] == after


def test_a_pod_of_another_sticky_service_is_not_followed(lab: Lab, remembered: Ip) -> None:
    """A pod that leaves a sticky Service, but still serves another, gets clients of the second Service only."""
    ip = remembered
    other = sticky(
        ip, name="shop/other", cluster_ips=[ip.vip2], load_balancer_ips=[], type="ClusterIP", ports=["http:80"]
    )
    both = (endpoints(ip, ip.here, ip.here2, ip.away), endpoints(ip, ip.here, ip.here2, ip.away, name="shop/other"))
    made = pipeline(sticky(ip), other, *both)
    kernel = loaded(lab, made)
    sources = pods(ip, 60)
    at_first, at_other = reached(lab, ip, sources), reached(lab, ip, sources, ip.vip2)
    kernel.apply(made.ingest([Put(endpoints(ip, ip.here, ip.here2))]))
    now = reached(lab, ip, sources)
    assert {home.ip for home in now.values() if home} == {ip.here, ip.here2}
    assert all(now[source] == home for source, home in at_first.items() if home and home.ip != ip.away)
    assert reached(lab, ip, sources, ip.vip2) == at_other


def test_entries_outlive_full_loads_and_changes_of_others(lab: Lab, remembered: Ip) -> None:
    """Clients keep their endpoints during repeated full loads and while other Services come and go."""
    ip = remembered
    made = pipeline(sticky(ip), endpoints(ip, ip.here, ip.here2, ip.away))
    kernel = loaded(lab, made)
    sources = pods(ip, 60)
    homes = reached(lab, ip, sources)

    def steps() -> Iterator[Step[None]]:
        for number in itertools.count():
            name = f"crowd/s{number}"
            objects = service(name, cluster_ips=[ip.vip2], ports=["http:81"], created=number, affinity_timeout=3600)
            yield Step(made.ingest([Put(objects), Put(endpoints(ip, ip.here, name=name))]), None)
            yield Step(full_transaction(lab, kernel, made), None)

    probes = (Probe(Origin.POD, ip.vip, 80, "tcp", source) for source in itertools.cycle(sources))
    with Churn(lab, None, steps()) as churn:
        tries = churn.try_all(probes, 1_250 * SCALE, at_once=60, transactions=20)
    found = {(each.outcome.probe.source, each.outcome.endpoint) for each in tries if each.outcome.probe}
    assert found == set(homes.items())


def test_a_full_map_keeps_whom_it_has_and_lets_all_others_through(lab: Lab, remembered: Ip) -> None:
    """Clients in a full map keep their endpoints, even through a full load, and all other clients are served."""
    ip = remembered
    text = templates()[ENDPOINTS_TEMPLATE]
    assert "    size 1048576\n" in text
    small = Renderer({**templates(), ENDPOINTS_TEMPLATE: text.replace("size 1048576", "size 20")})
    made = pipeline(sticky(ip), endpoints(ip, ip.here, ip.here2, ip.away, ip.away2), renderer=small)
    kernel = loaded(lab, made)
    few = pods(ip, 20)
    homes = reached(lab, ip, few)
    many = [source for source in pods(ip, 150) if source not in few]
    rounds = [reached(lab, ip, many) for _ in range(4)]
    assert any(each != rounds[0] for each in rounds)
    kernel.apply(full_transaction(lab, kernel, made))
    assert reached(lab, ip, many).keys() == set(many)
    assert reached(lab, ip, few) == homes
