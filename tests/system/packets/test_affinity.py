"""Session affinity ClientIP: the same client reaches the same endpoint.

Tests of IPv6 need an nft that can write wide maps, but for the last ones, which are about doing without.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.lab import DROPPED, Address, Kind, Lab, Origin, Probe, is_even
from nftproxy.model.addresses import Family
from nftproxy.model.objects import Service
from nftproxy.model.settings import DetectLocalMode
from tests.support.factories import pipeline, service, slice_of
from tests.support.waiting import wait_until_seen_to_stay
from tests.system.packets.cluster import IP, IP6, Cluster, Ip, at, each_ip, each_protocol, everywhere

LONG = 10800  # seconds: the default, longer than any test
BRIDGE: dict[str, Any] = {"detect_local_mode": DetectLocalMode.BRIDGE_INTERFACE, "bridge_interface": "cni0"}

Picks = dict[str, Address | None]


@pytest.fixture(params=[IP, IP6], ids=["ip", "ip6"])
def ip(request: pytest.FixtureRequest) -> Ip:
    """Addresses of each family in which clients can be remembered."""
    chosen: Ip = request.param
    if chosen.is_ipv6 and not probe().capabilities.wide_maps:
        pytest.skip(probe().reason)
    return chosen


def clients(ip: Ip) -> list[str]:
    """Sixty addresses outside: that a draw between two endpoints is the same for all happens once in 2**59 times."""
    return [f"{ip.client.removesuffix('200').removesuffix('c8')}{number}" for number in range(10, 70)]


def sticky(ip: Ip, protocol: str = "tcp", timeout: int | None = LONG, **tweaks: Any) -> Service:
    """A Service with affinity and all kinds of addresses."""
    fields: dict[str, Any] = {
        "type": "LoadBalancer",
        "cluster_ips": [ip.vip],
        "external_ips": [ip.external],
        "load_balancer_ips": [ip.balanced],
        "ports": [f"http:80:30080/{protocol}"],
        "affinity_timeout": timeout,
    }
    return service(**(fields | tweaks))


def endpoints(*addresses: str, protocol: str = "tcp") -> Any:
    """A slice with these endpoints, `address` or `address@node condition` each."""
    return slice_of(endpoints=addresses, ports=[f"http:8080/{protocol}"])


def make_cluster(lab: Lab, *objects: Any) -> Cluster:
    """A cluster of these objects, with rules for what this nft can do."""
    return Cluster(lab, *objects, wide_maps=probe().capabilities.wide_maps)


def picks(
    cluster: Cluster, ip: Ip, address: str, port: int = 80, protocol: str = "tcp", origin: Origin = Origin.OUTSIDE
) -> Picks:
    """Whom each of the clients reaches with a new connection."""
    sources = clients(ip)
    outcomes = cluster.lab.connect_many(Probe(origin, address, port, protocol, source) for source in sources)
    assert {outcome.kind for outcome in outcomes} == {Kind.ENDPOINT}
    return {source: outcome.endpoint for source, outcome in zip(sources, outcomes, strict=True)}


def to(*addresses: str) -> set[Address | None]:
    """The endpoints at these addresses."""
    return {Address(address, 8080) for address in addresses}


# ---- the same client, the same endpoint ----------------------------------------------------------------------------


@each_protocol
@pytest.mark.parametrize("front", ["vip", "external", "balanced", "node"])
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_a_client_is_remembered(lab: Lab, ip: Ip, protocol: str, front: str, policy: str) -> None:
    """Every client's later connections go where its first one went, at each kind of address, and clients differ."""
    cluster = make_cluster(
        lab,
        sticky(ip, protocol, external_policy=policy, internal_policy=policy),
        endpoints(f"{ip.here}@node-a", f"{ip.here2}@node-a", protocol=protocol),
    )
    address, port = getattr(ip, front), 30080 if front == "node" else 80
    first = picks(cluster, ip, address, port, protocol)
    assert set(first.values()) == to(ip.here, ip.here2)
    assert [picks(cluster, ip, address, port, protocol) for _ in range(3)] == [first] * 3


@pytest.mark.parametrize("origin", [Origin.POD, Origin.NODE])
def test_pods_and_the_node_are_remembered(lab: Lab, ip: Ip, origin: Origin) -> None:
    """Local sources, which have the cluster list of policy Local, are remembered in it; so is the node itself."""
    cluster = make_cluster(
        lab,
        sticky(ip, external_policy="Local"),
        endpoints(f"{ip.here}@node-a", f"{ip.away}@node-b", f"{ip.away2}@node-c"),
    )
    for address, port in [(ip.vip, 80), (ip.external, 80), (ip.node, 30080)]:
        (first,) = cluster.connect(origin, address, port)
        assert cluster.outcomes(origin, address, port) == {first}


def test_new_clients_are_spread_evenly(lab: Lab, ip: Ip) -> None:
    """Affinity doesn't prefer any endpoint: clients that are not remembered yet are spread as without it."""
    cluster = make_cluster(lab, sticky(ip), endpoints(ip.here, ip.here2, ip.away))
    prefix = f"{ip.pod.removesuffix('200').removesuffix('c8')}"
    sources = [f"{prefix}{number}" for number in range(10, 100)]
    outcomes = lab.connect_many(Probe(Origin.POD, ip.vip, 80, "tcp", source) for source in sources)
    assert is_even(outcomes, [(ip.here, 8080), (ip.here2, 8080), (ip.away, 8080)])
    assert cluster.connect(Origin.POD, ip.vip, source=sources[0]) == outcomes[:1]


def test_clients_are_remembered_per_address_and_port(lab: Lab, ip: Ip) -> None:
    """Where a client is sent at one virtual address or port says nothing about another."""
    given = sticky(ip, ports=["http:80:30080", "http2:81"])
    target = slice_of(endpoints=[ip.here, ip.here2], ports=["http:8080", "http2:8080"])
    cluster = make_cluster(lab, given, target)
    fronts = [(ip.vip, 80), (ip.vip, 81), (ip.external, 80), (ip.balanced, 80), (ip.node, 30080)]
    first = [picks(cluster, ip, *front) for front in fronts]
    assert all(one != other for number, one in enumerate(first) for other in first[:number])
    assert [picks(cluster, ip, *front) for front in fronts] == first


def test_only_node_ports_are_remembered_as_such(lab: Lab, ip: Ip) -> None:
    """A Service without affinity whose port is another's node port, on an address of its own, fills no map."""
    other = service("shop/cart", cluster_ips=[ip.vip2], ports=["http:30080"])
    pods = slice_of("shop/cart", [ip.away], ports=["http:8080"])
    cluster = make_cluster(lab, sticky(ip), endpoints(ip.away), other, pods)
    assert cluster.outcomes(Origin.POD, ip.vip2, 30080) == at(ip.away)
    assert "expires" not in lab.load(f"list map {ip.nft} nftproxy tcp-affinity-{LONG}")
    assert cluster.outcomes(Origin.OUTSIDE, ip.node, 30080) == at(ip.away, masqueraded=True)
    assert "expires" in lab.load(f"list map {ip.nft} nftproxy tcp-affinity-{LONG}")


@pytest.mark.parametrize("origin", [Origin.OUTSIDE, Origin.NODE])
def test_only_the_beginning_of_a_connection_is_remembered(lab: Lab, ip: Ip, origin: Origin) -> None:
    """What goes on in a connection renews no entry: the timeout is counted from when the last one began."""
    cluster = make_cluster(lab, sticky(ip, "udp"), endpoints(ip.away, protocol="udp"))
    remembered = f"map {ip.nft} nftproxy udp-affinity-{LONG}"
    (outcome,) = cluster.connect(origin, ip.vip, 80, "udp", sport=5353)
    assert lab.reply(outcome) == (ip.vip, 80)
    assert "expires" in lab.load(f"list {remembered}")
    lab.load(f"flush {remembered}")
    assert cluster.connect(origin, ip.vip, 80, "udp", sport=5353) == [outcome]
    assert "expires" not in lab.load(f"list {remembered}")


def test_who_reaches_nobody_is_not_remembered(lab: Lab, ip: Ip) -> None:
    """A connection that is dropped for want of a local endpoint leaves no entry, wherever it came from."""
    given = sticky(ip, external_policy="Local", internal_policy="Local")
    cluster = make_cluster(lab, given, endpoints(f"{ip.away}@node-b"))
    assert cluster.by_origin(ip.vip, times=2) == everywhere(DROPPED)
    for address, port in [(ip.external, 80), (ip.balanced, 80), (ip.node, 30080)]:
        assert cluster.outcomes(Origin.OUTSIDE, address, port, times=2) == {DROPPED}
    assert "expires" not in lab.load(f"list map {ip.nft} nftproxy tcp-affinity-{LONG}")


def test_new_endpoints_do_not_move_clients(lab: Lab, ip: Ip) -> None:
    """When endpoints are added, who is remembered stays, and who isn't may reach the new ones."""
    cluster = make_cluster(lab, sticky(ip), endpoints(ip.here2))
    first = picks(cluster, ip, ip.vip)
    cluster.put(endpoints(ip.here, ip.here2, ip.away))
    assert picks(cluster, ip, ip.vip) == first
    assert set(picks(cluster, ip, ip.external).values()) == to(ip.here, ip.here2, ip.away)


def test_affinity_is_to_the_pod(lab: Lab, ip: Ip) -> None:
    """Of two endpoints that differ only in their port a client that is remembered keeps one: the lower port."""
    old, new = (slice_of(endpoints=[ip.here], ports=[f"http:{port}"], suffix=str(port)) for port in (8080, 9090))
    cluster = make_cluster(lab, sticky(ip), old, new)
    assert len(set(picks(cluster, ip, ip.vip).values())) == 2
    assert set(picks(cluster, ip, ip.vip).values()) == to(ip.here)


# ---- for how long --------------------------------------------------------------------------------------------------


def test_an_entry_lives_for_the_timeout_after_the_last_connection(lab: Lab, ip: Ip) -> None:
    """Connections within the timeout of the last one keep a client where it is; a longer pause sets it free."""
    cluster = make_cluster(lab, sticky(ip, timeout=3), endpoints(ip.here, ip.here2))

    wait_until_seen_to_stay(lambda: picks(cluster, ip, ip.vip), (1.6, 1.6), 3)
    last = picks(cluster, ip, ip.vip)
    time.sleep(3.5)
    assert picks(cluster, ip, ip.vip) != last


def test_a_shorter_timeout_takes_effect(lab: Lab, ip: Ip) -> None:
    """After the timeout is made shorter, clients are forgotten that soon."""
    cluster = make_cluster(lab, sticky(ip), endpoints(ip.here, ip.here2))
    picks(cluster, ip, ip.vip)
    cluster.put(sticky(ip, timeout=1))
    first = picks(cluster, ip, ip.vip)
    time.sleep(1.5)
    assert picks(cluster, ip, ip.vip) != first


def test_a_longer_timeout_takes_effect(lab: Lab, ip: Ip) -> None:
    """After the timeout is made longer, clients are remembered that long."""
    cluster = make_cluster(lab, sticky(ip, timeout=1), endpoints(ip.here, ip.here2))
    picks(cluster, ip, ip.vip)
    cluster.put(sticky(ip))
    first = picks(cluster, ip, ip.vip)
    time.sleep(1.5)
    assert picks(cluster, ip, ip.vip) == first


def test_turning_affinity_off_ends_it_at_once(lab: Lab, ip: Ip) -> None:
    """Without affinity even a client that was remembered is drawn anew by each connection."""
    cluster = make_cluster(lab, sticky(ip), endpoints(ip.here, ip.here2))
    (client, *_) = picks(cluster, ip, ip.vip)
    cluster.put(sticky(ip, timeout=None))
    outcomes = cluster.outcomes(Origin.OUTSIDE, ip.vip, source=client)
    assert outcomes == at(ip.here, ip.here2, masqueraded=True)


def test_turning_affinity_on_takes_effect_at_once(lab: Lab, ip: Ip) -> None:
    """A Service that gets affinity remembers its clients from then on."""
    cluster = make_cluster(lab, sticky(ip, timeout=None), endpoints(ip.here, ip.here2))
    cluster.put(sticky(ip))
    first = picks(cluster, ip, ip.vip)
    assert picks(cluster, ip, ip.vip) == first


def test_affinity_survives_a_restart(lab: Lab, ip: Ip) -> None:
    """A new process that loads all rules over those it finds keeps every client where it is."""
    objects = (sticky(ip), endpoints(ip.here, ip.here2))
    cluster = make_cluster(lab, *objects)
    first = {front: picks(cluster, ip, front) for front in (ip.vip, ip.external)}
    reborn = pipeline(*objects, wide_maps=probe().capabilities.wide_maps)
    installed = {family: lab.node.call(Kernel().read_back, family) for family in Family}
    lab.load(reborn.full_transaction(installed).text)
    assert {front: picks(cluster, ip, front) for front in (ip.vip, ip.external)} == first


# ---- entries that must not be followed -----------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["", "unready", "draining", "serving", "stopped"])
@pytest.mark.parametrize("front", ["vip", "external", "node"])
def test_an_entry_for_a_lost_endpoint_is_not_followed(lab: Lab, ip: Ip, fate: str, front: str) -> None:
    """Clients of an endpoint that is gone or not usable move to others; all other clients stay where they are."""
    address, port = getattr(ip, front), 30080 if front == "node" else 80
    cluster = make_cluster(lab, sticky(ip), endpoints(ip.here, ip.here2, ip.away))
    first = picks(cluster, ip, address, port)
    cluster.put(endpoints(ip.here, ip.here2, *([f"{ip.away} {fate}"] if fate else [])))
    after = picks(cluster, ip, address, port)
    moved = {client for client in first if after[client] != first[client]}
    assert moved == {client for client, target in first.items() if target in to(ip.away)}
    assert set(after.values()) == to(ip.here, ip.here2)


def test_a_client_that_had_to_move_is_remembered_where_it_went(lab: Lab, ip: Ip) -> None:
    """Whoever lost its endpoint stays at the one it got instead, even when the old one comes back."""
    cluster = make_cluster(lab, sticky(ip), endpoints(ip.here, ip.here2, ip.away))
    picks(cluster, ip, ip.vip)
    cluster.put(endpoints(ip.here, ip.here2))
    moved = picks(cluster, ip, ip.vip)
    cluster.put(endpoints(ip.here, ip.here2, ip.away))
    assert picks(cluster, ip, ip.vip) == moved


def test_an_entry_outside_the_local_list_is_not_followed(lab: Lab, ip: Ip) -> None:
    """When policy Local comes, clients remembered elsewhere move to this node, and the others stay."""
    both = endpoints(f"{ip.here}@node-a", f"{ip.here2}@node-a", f"{ip.away}@node-b")
    cluster = make_cluster(lab, sticky(ip), both)
    first = picks(cluster, ip, ip.external)
    cluster.put(sticky(ip, external_policy="Local"))
    after = picks(cluster, ip, ip.external)
    moved = {client for client in first if after[client] != first[client]}
    assert moved == {client for client, target in first.items() if target in to(ip.away)}
    assert set(after.values()) == to(ip.here, ip.here2)


def test_an_entry_outside_the_topology_is_not_followed(lab: Lab, ip: Ip) -> None:
    """When hints leave only one endpoint to this zone, all clients move there."""
    cluster = make_cluster(lab, sticky(ip), endpoints(ip.here, ip.away))
    picks(cluster, ip, ip.vip)
    cluster.put(endpoints(f"{ip.here} zone=a", f"{ip.away} zone=b"))
    assert set(picks(cluster, ip, ip.vip).values()) == to(ip.here)


def test_an_entry_of_another_list_is_not_followed(lab: Lab, ip: Ip) -> None:
    """An address that is remembered elsewhere as a local source is sent to this node when it comes from outside."""
    given = sticky(ip, external_policy="Local")
    cluster = Cluster(
        lab,
        given,
        endpoints(f"{ip.here}@node-a", f"{ip.away}@node-b"),
        wide_maps=probe().capabilities.wide_maps,
        **BRIDGE,
    )
    assert set(picks(cluster, ip, ip.external, origin=Origin.POD).values()) == to(ip.here, ip.away)
    assert set(picks(cluster, ip, ip.external, origin=Origin.OUTSIDE).values()) == to(ip.here)


def test_a_service_that_gets_anothers_address_has_its_own_endpoints(lab: Lab, ip: Ip) -> None:
    """Entries of a Service that is gone lead no client astray from the one that has its address now."""
    before = sticky(ip)
    cluster = make_cluster(lab, before, endpoints(ip.here, ip.here2))
    picks(cluster, ip, ip.vip)
    cluster.remove(before)
    cluster.put(sticky(ip, name="shop/new"), slice_of("shop/new", [ip.away, ip.away2]))
    first = picks(cluster, ip, ip.vip)
    assert set(first.values()) == to(ip.away, ip.away2)
    assert picks(cluster, ip, ip.vip) == first


def test_without_endpoints_a_remembered_client_is_refused(lab: Lab, ip: Ip) -> None:
    """When the last endpoint goes, a client that was remembered there is refused like everyone."""
    target = endpoints(ip.here)
    cluster = make_cluster(lab, sticky(ip), target)
    (client, *_) = picks(cluster, ip, ip.vip)
    cluster.remove(target)
    (outcome,) = cluster.connect(Origin.OUTSIDE, ip.vip, source=client)
    assert outcome.kind is Kind.REJECTED


# ---- a full map ----------------------------------------------------------------------------------------------------


def test_a_full_map_stops_no_connection(lab: Lab, ip: Ip) -> None:
    """With room for ten clients, all others still get through, unremembered, and the ten are remembered."""
    given = pipeline(sticky(ip), endpoints(ip.here, ip.here2), wide_maps=probe().capabilities.wide_maps)
    text = given.full_transaction({}).text
    assert "size 1048576" in text
    lab.load(text.replace("size 1048576", "size 10"))
    (first, *later) = [_tried(lab, ip) for _ in range(8)]
    same = [client for client in first if all(other[client] == first[client] for other in later)]
    assert len(first) == len(clients(ip))
    assert 10 <= len(same) < 30


def _tried(lab: Lab, ip: Ip) -> Picks:
    outcomes = lab.connect_many(Probe(Origin.OUTSIDE, ip.vip, 80, "tcp", client) for client in clients(ip))
    return {
        client: outcome.endpoint
        for client, outcome in zip(clients(ip), outcomes, strict=True)
        if outcome.kind is Kind.ENDPOINT
    }


# ---- IPv6 with an nft that can't write wide maps -------------------------------------------------------------------


@each_protocol
def test_without_wide_maps_a_client_still_reaches_the_same_endpoint(lab: Lab, protocol: str) -> None:
    """For IPv6 the choice then follows from the client's address: the same each time, and different among clients."""
    cluster = Cluster(lab, sticky(IP6, protocol), endpoints(IP6.here, IP6.here2, protocol=protocol), wide_maps=False)
    first = picks(cluster, IP6, IP6.vip, protocol=protocol)
    assert set(first.values()) == to(IP6.here, IP6.here2)
    assert [picks(cluster, IP6, IP6.vip, protocol=protocol) for _ in range(3)] == [first] * 3


def test_without_wide_maps_a_choice_survives_a_restart(lab: Lab) -> None:
    """The same rules loaded anew give every IPv6 client the same endpoint."""
    objects = (sticky(IP6), endpoints(IP6.here, IP6.here2))
    first = picks(Cluster(lab, *objects, wide_maps=False), IP6, IP6.vip)
    lab.reset()
    assert picks(Cluster(lab, *objects, wide_maps=False), IP6, IP6.vip) == first


@each_ip
def test_without_wide_maps_lost_endpoints_are_not_chosen(lab: Lab, ip: Ip) -> None:
    """Whatever a node can do for affinity, nobody is sent to an endpoint that is gone."""
    cluster = Cluster(lab, sticky(ip), endpoints(ip.here, ip.here2, ip.away), wide_maps=False)
    picks(cluster, ip, ip.vip)
    cluster.put(endpoints(ip.here, ip.here2))
    assert set(picks(cluster, ip, ip.vip).values()) == to(ip.here, ip.here2)
