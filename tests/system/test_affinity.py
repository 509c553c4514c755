"""Session affinity ClientIP over many connections and while rules change; packets/test_affinity.py has the rest.

IPv6 clients are remembered where this machine's nft can write wide maps; elsewhere a hash of their address chooses.
NFTPROXY_TESTS=long tries five times as many connections (`tox run -e race`).
"""

import itertools
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from nftproxy.kernel.capabilities import probe
from nftproxy.lab import Address, Kind, Lab, Origin, Probe, obstacle
from nftproxy.model.events import Put
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.rules.render import ENDPOINTS_TEMPLATE, Renderer
from tests.support.churn import Churn, Step, cycle, full_transaction, loaded
from tests.support.factories import pipeline, service, slice_of, templates
from tests.system.packets.cluster import IP, IP6, Ip, each_ip, each_protocol

pytestmark = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

SCALE = 5 if os.environ.get("NFTPROXY_TESTS") == "long" else 1


@pytest.fixture(params=[IP, IP6], ids=["ip", "ip6"])
def remembered(request: pytest.FixtureRequest) -> Ip:
    """Addresses of each family in which this machine's nft can remember clients."""
    ip: Ip = request.param
    if ip.is_ipv6 and not probe().capabilities.wide_maps:
        pytest.skip(probe().reason)
    return ip


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
    """A slice that makes these addresses a Service's endpoints; they are on other nodes, unless this node has them."""
    texts = [f"{each}@{'node-a' if each in (ip.here, ip.here2) else 'node-b'}" for each in addresses]
    return slice_of(name, texts, ports=[f"http:8080/{protocol}"])


def pod(ip: Ip, number: int) -> str:
    """The address of one of this node's pods."""
    return f"fd00:1::{number:x}" if ip.is_ipv6 else f"10.1.0.{number}"


def pods(ip: Ip, count: int) -> list[str]:
    """The addresses of some of this node's pods, none of which is an endpoint."""
    return [pod(ip, number) for number in range(10, 10 + count)]


def reached(lab: Lab, ip: Ip, sources: list[str], address: str = "", port: int = 80) -> dict[str, Address | None]:
    """Where a new connection of each of these pods ends, none of which may be lost."""
    outcomes = lab.connect_many(Probe(Origin.POD, address or ip.vip, port, "tcp", source) for source in sources)
    assert {outcome.kind for outcome in outcomes} == {Kind.ENDPOINT}
    return {source: outcome.endpoint for source, outcome in zip(sources, outcomes, strict=True)}


@each_ip
@each_protocol
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_a_hundred_connections_of_a_client_reach_one_endpoint(lab: Lab, ip: Ip, protocol: str, policy: str) -> None:
    """From a pod, the node or outside, at any kind of address, a client's connections all go where its first did."""
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
    """While endpoints change as fast as the kernel takes it, clients of one that stays stay too, and none is lost."""
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
        tries = churn.try_all(probes, 20_000 * SCALE, at_once=200, transactions=100)
    print(f"{len(tries):,} connections of {len(sources)} clients, {churn.count:,} transactions")  # noqa: T201 -- figures
    for each in tries:
        assert each.outcome.kind is Kind.ENDPOINT
        asked, home = each.outcome.probe, each.outcome.endpoint
        assert asked is not None
        assert home is not None
        assert home == homes.get(asked.source or "", home)
        assert any(home.ip in world for world in churn.in_force(each.began, each.ended))


def test_a_client_of_a_lost_endpoint_loses_no_connection(lab: Lab, remembered: Ip) -> None:
    """The first connection after a client's endpoint has gone reaches another one, each time, whichever goes.

    Clients take turns: the kernel keeps what a rule deletes until its collector comes by, all entries of one key in one
    bucket, and while it resizes the table for more than 16 of these it may refuse the next (rhashtable, Linux 6.18).
    """
    ip = remembered
    all_of_them = [ip.here, ip.here2, ip.away, ip.away2]
    made = pipeline(sticky(ip), endpoints(ip, *all_of_them))
    kernel = loaded(lab, made)
    for _, source in zip(range(100 * SCALE), itertools.cycle(pods(ip, 100)), strict=False):
        home = reached(lab, ip, [source])[source]
        assert home is not None
        left = [each for each in all_of_them if each != home.ip]
        kernel.apply(made.apply([Put(endpoints(ip, *left))]))
        after = reached(lab, ip, [source])[source]
        assert after in {(each, 8080) for each in left}
        kernel.apply(made.apply([Put(endpoints(ip, *all_of_them))]))
        assert reached(lab, ip, [source])[source] == after


def test_a_pod_of_another_sticky_service_is_not_followed(lab: Lab, remembered: Ip) -> None:
    """A pod that leaves a Service, but still serves another one with affinity, gets clients of the other one only."""
    ip = remembered
    other = sticky(
        ip, name="shop/other", cluster_ips=[ip.vip2], load_balancer_ips=[], type="ClusterIP", ports=["http:80"]
    )
    both = (endpoints(ip, ip.here, ip.here2, ip.away), endpoints(ip, ip.here, ip.here2, ip.away, name="shop/other"))
    made = pipeline(sticky(ip), other, *both)
    kernel = loaded(lab, made)
    sources = pods(ip, 60)
    at_first, at_other = reached(lab, ip, sources), reached(lab, ip, sources, ip.vip2)
    kernel.apply(made.apply([Put(endpoints(ip, ip.here, ip.here2))]))
    now = reached(lab, ip, sources)
    assert {home.ip for home in now.values() if home} == {ip.here, ip.here2}
    assert all(now[source] == home for source, home in at_first.items() if home and home.ip != ip.away)
    assert reached(lab, ip, sources, ip.vip2) == at_other


def test_entries_outlive_full_loads_and_changes_of_others(lab: Lab, remembered: Ip) -> None:
    """Clients stay where they are while everything is loaded anew again and again and other Services come and go."""
    ip = remembered
    made = pipeline(sticky(ip), endpoints(ip, ip.here, ip.here2, ip.away))
    kernel = loaded(lab, made)
    sources = pods(ip, 60)
    homes = reached(lab, ip, sources)

    def steps() -> Iterator[Step[None]]:
        for number in itertools.count():
            name = f"crowd/s{number}"
            objects = service(name, cluster_ips=[ip.vip2], ports=["http:81"], created=number, affinity_timeout=3600)
            yield Step(made.apply([Put(objects), Put(endpoints(ip, ip.here, name=name))]), None)
            yield Step(full_transaction(lab, kernel, made), None)

    probes = (Probe(Origin.POD, ip.vip, 80, "tcp", source) for source in itertools.cycle(sources))
    with Churn(lab, None, steps()) as churn:
        tries = churn.try_all(probes, 5_000 * SCALE, at_once=60, transactions=50)
    found = {(each.outcome.probe.source, each.outcome.endpoint) for each in tries if each.outcome.probe}
    assert found == set(homes.items())


def test_a_full_map_keeps_whom_it_has_and_lets_all_others_through(lab: Lab, remembered: Ip) -> None:
    """With room for few clients, those stay where they are, even through a full load, and no connection is stopped."""
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
