"""Session affinity ClientIP: the same client reaches the same endpoint.

Tests of IPv6 need an nft that can write wide maps, but for the last tests, which are about doing without.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from nftproxy_conformance.lab import DROPPED, Address, Kind, Lab, Origin, Probe, is_even

from nftproxy.kernel.capabilities import probe
from nftproxy.model.objects import Service
from nftproxy.model.settings import DetectLocalMode
from tests.support.cluster import (
    IP,
    IP6,
    Cluster,
    Ip,
    at,
    beside,
    everywhere,
    exposed_service,
    load_over,
    masqueraded,
    pods,
)
from tests.support.factories import pipeline, service, slice_of
from tests.support.waiting import wait_until_seen_to_stay

LONG = 10800  # seconds: the default, longer than any test
BRIDGE: dict[str, Any] = {"detect_local_mode": DetectLocalMode.BRIDGE_INTERFACE, "bridge_interface": "cni0"}
OUTSIDE = Origin.OUTSIDE

Picks = dict[str, Address | None]


@pytest.fixture
def ip(remembered: Ip) -> Ip:
    """Addresses of each family in which clients can be remembered."""
    return remembered


def clients(ip: Ip) -> list[str]:
    """Sixty addresses outside: that a draw between two endpoints is the same for all happens once in 2**59 times."""
    return [beside(ip.client, number) for number in range(10, 70)]


def sticky(ip: Ip, protocol: str = "tcp", timeout: int | None = LONG, **tweaks: Any) -> Service:
    """A Service with affinity and all kinds of addresses."""
    return exposed_service(ip, protocol, **{"affinity_timeout": timeout} | tweaks)


def endpoints(*addresses: str, protocol: str = "tcp") -> Any:
    """A slice with these endpoints, `address` or `address@node condition` each."""
    return slice_of(endpoints=addresses, ports=[f"http:8080/{protocol}"])


def tried(
    lab: Lab, ip: Ip, address: str, port: int = 80, protocol: str = "tcp", origin: Origin = OUTSIDE
) -> tuple[set[Kind], Picks]:
    """The kinds of outcomes of a new connection of each client, and the endpoints that clients reach."""
    outcomes = lab.connect_many(Probe(origin, address, port, protocol, source) for source in clients(ip))
    reached = zip(clients(ip), outcomes, strict=True)
    picked = {source: each.endpoint for source, each in reached if each.kind is Kind.ENDPOINT}
    return {each.kind for each in outcomes}, picked


def picks(
    cluster: Cluster, ip: Ip, address: str, port: int = 80, protocol: str = "tcp", origin: Origin = OUTSIDE
) -> Picks:
    """The endpoint that each client reaches with a new connection."""
    kinds, found = tried(cluster.lab, ip, address, port, protocol, origin)
    assert kinds == {Kind.ENDPOINT}
    return found


def to(*addresses: str) -> set[Address | None]:
    """The endpoints at these addresses."""
    return {Address(address, 8080) for address in addresses}


# ---- the same client, the same endpoint ----------------------------------------------------------------------------


@pytest.mark.parametrize("front", ["vip", "external", "balanced", "node"])
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_a_client_is_remembered(lab: Lab, ip: Ip, protocol: str, front: str, policy: str) -> None:
    """Every client's later connections go where its first went, at each kind of address, and clients differ."""
    given = sticky(ip, protocol, external_policy=policy, internal_policy=policy)
    cluster = Cluster(lab, given, pods(ip, "here", "here2", protocol=protocol))
    first = picks(cluster, ip, *ip.front(front), protocol)
    assert set(first.values()) == to(ip.here, ip.here2)
    assert [picks(cluster, ip, *ip.front(front), protocol) for _ in range(3)] == [first] * 3


@pytest.mark.parametrize("origin", [Origin.POD, Origin.NODE])
def test_pods_and_the_node_are_remembered(lab: Lab, ip: Ip, origin: Origin) -> None:
    """Local sources, which have the cluster list of policy Local, are remembered in it, and so is the node itself."""
    cluster = Cluster(lab, sticky(ip, external_policy="Local"), pods(ip, "here", "away", "away2"))
    for address, port in [(ip.vip, 80), (ip.external, 80), (ip.node, 30080)]:
        (first,) = cluster.connect(origin, address, port)
        assert cluster.outcomes(origin, address, port) == {first}


def test_new_clients_are_spread_evenly(lab: Lab, ip: Ip) -> None:
    """Affinity doesn't prefer any endpoint: clients that are not remembered yet are spread as without it."""
    cluster = Cluster(lab, sticky(ip), endpoints(ip.here, ip.here2, ip.away))
    sources = [beside(ip.pod, number) for number in range(10, 100)]
    outcomes = lab.connect_many(Probe(Origin.POD, ip.vip, 80, "tcp", source) for source in sources)
    assert is_even(outcomes, [(ip.here, 8080), (ip.here2, 8080), (ip.away, 8080)])
    assert cluster.connect(Origin.POD, ip.vip, source=sources[0]) == outcomes[:1]


def test_clients_are_remembered_per_address_and_port(lab: Lab, ip: Ip) -> None:
    """Clients are remembered for each virtual address and port apart."""
    given = sticky(ip, ports=["http:80:30080", "http2:81"])
    cluster = Cluster(lab, given, slice_of(endpoints=[ip.here, ip.here2], ports=["http:8080", "http2:8080"]))
    fronts = [*ip.fronts, (ip.vip, 81)]
    first = [picks(cluster, ip, *front) for front in fronts]
    assert all(one != other for number, one in enumerate(first) for other in first[:number])
    assert [picks(cluster, ip, *front) for front in fronts] == first


def test_only_node_ports_are_remembered_as_such(lab: Lab, ip: Ip) -> None:
    """A Service without affinity whose port is another's node port, on an address of its own, fills no map."""
    other = service("shop/cart", cluster_ips=[ip.vip2], ports=["http:30080"])
    cluster = Cluster(lab, sticky(ip), endpoints(ip.away), other, slice_of("shop/cart", [ip.away]))
    assert cluster.outcomes(Origin.POD, ip.vip2, 30080) == at(ip.away)
    assert "expires" not in lab.load(f"list map {ip.nft} nftproxy tcp-affinity-{LONG}")
    assert cluster.outcomes(OUTSIDE, ip.node, 30080) == masqueraded(ip.away)
    assert "expires" in lab.load(f"list map {ip.nft} nftproxy tcp-affinity-{LONG}")


@pytest.mark.parametrize("origin", [OUTSIDE, Origin.NODE])
def test_only_the_beginning_of_a_connection_is_remembered(lab: Lab, ip: Ip, origin: Origin) -> None:
    """Later packets of a connection renew no entry: the timeout is counted from the beginning of the last
    connection.
    """
    cluster = Cluster(lab, sticky(ip, "udp"), endpoints(ip.away, protocol="udp"))
    remembered = f"map {ip.nft} nftproxy udp-affinity-{LONG}"
    (outcome,) = cluster.connect(origin, ip.vip, 80, "udp", sport=5353)
    assert lab.reply(outcome) == (ip.vip, 80)
    assert "expires" in lab.load(f"list {remembered}")
    lab.load(f"flush {remembered}")
    assert cluster.connect(origin, ip.vip, 80, "udp", sport=5353) == [outcome]
    assert "expires" not in lab.load(f"list {remembered}")


def test_a_client_without_an_endpoint_is_not_remembered(lab: Lab, ip: Ip) -> None:
    """A connection that is dropped for want of a local endpoint leaves no entry, wherever it came from."""
    cluster = Cluster(lab, sticky(ip, external_policy="Local", internal_policy="Local"), pods(ip, "away"))
    assert cluster.by_origin(ip.vip, times=2) == everywhere(DROPPED)
    for address, port in ip.fronts[1:]:
        assert cluster.outcomes(OUTSIDE, address, port, times=2) == {DROPPED}
    assert "expires" not in lab.load(f"list map {ip.nft} nftproxy tcp-affinity-{LONG}")


def test_new_endpoints_do_not_move_clients(lab: Lab, ip: Ip) -> None:
    """When endpoints are added, remembered clients stay, and new clients may reach the new endpoints."""
    cluster = Cluster(lab, sticky(ip), endpoints(ip.here2))
    first = picks(cluster, ip, ip.vip)
    cluster.put(endpoints(ip.here, ip.here2, ip.away))
    assert picks(cluster, ip, ip.vip) == first
    assert set(picks(cluster, ip, ip.external).values()) == to(ip.here, ip.here2, ip.away)


def test_affinity_is_to_the_pod(lab: Lab, ip: Ip) -> None:
    """Of two endpoints that differ only in their port a remembered client keeps the lower port."""
    old, new = (slice_of(endpoints=[ip.here], ports=[f"http:{port}"], suffix=str(port)) for port in (8080, 9090))
    cluster = Cluster(lab, sticky(ip), old, new)
    assert len(set(picks(cluster, ip, ip.vip).values())) == 2
    assert set(picks(cluster, ip, ip.vip).values()) == to(ip.here)


# ---- for how long --------------------------------------------------------------------------------------------------


def test_an_entry_lives_for_the_timeout_after_the_last_connection(lab: Lab, ip: Ip) -> None:
    """Connections within the timeout of the last keep a client where it is, and a longer pause sets it free."""
    cluster = Cluster(lab, sticky(ip, timeout=3), endpoints(ip.here, ip.here2))
    wait_until_seen_to_stay(lambda: picks(cluster, ip, ip.vip), (1.6, 1.6), 3)
    last = picks(cluster, ip, ip.vip)
    time.sleep(3.5)
    assert picks(cluster, ip, ip.vip) != last


@pytest.mark.parametrize(("before", "after"), [(LONG, 1), (1, LONG)], ids=["shorter", "longer"])
def test_another_timeout_takes_effect(lab: Lab, ip: Ip, before: int, after: int) -> None:
    """After the timeout is made shorter or longer, clients are remembered that long."""
    cluster = Cluster(lab, sticky(ip, timeout=before), endpoints(ip.here, ip.here2))
    picks(cluster, ip, ip.vip)
    cluster.put(sticky(ip, timeout=after))
    first = picks(cluster, ip, ip.vip)
    time.sleep(1.5)
    assert (picks(cluster, ip, ip.vip) == first) is (after == LONG)


def test_turning_affinity_off_ends_it_at_once(lab: Lab, ip: Ip) -> None:
    """Without affinity even a client that was remembered is drawn anew by each connection."""
    cluster = Cluster(lab, sticky(ip), endpoints(ip.here, ip.here2))
    (client, *_) = picks(cluster, ip, ip.vip)
    cluster.put(sticky(ip, timeout=None))
    assert cluster.outcomes(OUTSIDE, ip.vip, source=client) == masqueraded(ip.here, ip.here2)


def test_turning_affinity_on_takes_effect_at_once(lab: Lab, ip: Ip) -> None:
    """A Service that gets affinity remembers its clients from then on."""
    cluster = Cluster(lab, sticky(ip, timeout=None), endpoints(ip.here, ip.here2))
    cluster.put(sticky(ip))
    first = picks(cluster, ip, ip.vip)
    assert picks(cluster, ip, ip.vip) == first


def test_affinity_survives_a_restart(lab: Lab, ip: Ip) -> None:
    """A new process that loads all rules over the rules that it finds keeps every client where it is."""
    objects = (sticky(ip), endpoints(ip.here, ip.here2))
    cluster = Cluster(lab, *objects)
    first = {front: picks(cluster, ip, front) for front in (ip.vip, ip.external)}
    load_over(lab, pipeline(*objects, wide_maps=probe().capabilities.wide_maps))
    assert {front: picks(cluster, ip, front) for front in (ip.vip, ip.external)} == first


# ---- entries that must not be followed -----------------------------------------------------------------------------


def assert_only_these_moved(first: Picks, after: Picks, ip: Ip) -> None:
    """Assert that exactly the clients of the endpoint elsewhere have moved, and to the endpoints here."""
    moved = {client for client in first if after[client] != first[client]}
    assert moved == {client for client, target in first.items() if target in to(ip.away)}
    assert set(after.values()) == to(ip.here, ip.here2)


@pytest.mark.parametrize("fate", ["", "unready", "draining", "serving", "stopped"])
@pytest.mark.parametrize("front", ["vip", "external", "node"])
def test_an_entry_for_a_lost_endpoint_is_not_followed(lab: Lab, ip: Ip, fate: str, front: str) -> None:
    """Clients of an endpoint that is gone or not usable move, and all other clients stay where they are."""
    cluster = Cluster(lab, sticky(ip), endpoints(ip.here, ip.here2, ip.away))
    first = picks(cluster, ip, *ip.front(front))
    cluster.put(endpoints(ip.here, ip.here2, *([f"{ip.away} {fate}"] if fate else [])))
    assert_only_these_moved(first, picks(cluster, ip, *ip.front(front)), ip)


def test_a_client_that_had_to_move_is_remembered_where_it_went(lab: Lab, ip: Ip) -> None:
    """A client that lost its endpoint stays at the endpoint it got instead, even when the old endpoint comes back."""
    cluster = Cluster(lab, sticky(ip), endpoints(ip.here, ip.here2, ip.away))
    picks(cluster, ip, ip.vip)
    cluster.put(endpoints(ip.here, ip.here2))
    moved = picks(cluster, ip, ip.vip)
    cluster.put(endpoints(ip.here, ip.here2, ip.away))
    assert picks(cluster, ip, ip.vip) == moved


def test_an_entry_outside_the_local_list_is_not_followed(lab: Lab, ip: Ip) -> None:
    """When policy Local comes, clients remembered elsewhere move to this node, and clients remembered here stay."""
    cluster = Cluster(lab, sticky(ip), pods(ip, "here", "here2", "away"))
    first = picks(cluster, ip, ip.external)
    cluster.put(sticky(ip, external_policy="Local"))
    assert_only_these_moved(first, picks(cluster, ip, ip.external), ip)


def test_an_entry_outside_the_topology_is_not_followed(lab: Lab, ip: Ip) -> None:
    """When hints leave a single endpoint to this zone, all clients move there."""
    cluster = Cluster(lab, sticky(ip), endpoints(ip.here, ip.away))
    picks(cluster, ip, ip.vip)
    cluster.put(endpoints(f"{ip.here} zone=a", f"{ip.away} zone=b"))
    assert set(picks(cluster, ip, ip.vip).values()) == to(ip.here)


def test_an_entry_of_another_list_is_not_followed(lab: Lab, ip: Ip) -> None:
    """An address that is remembered elsewhere as a local source is sent to this node when it comes from outside."""
    cluster = Cluster(lab, sticky(ip, external_policy="Local"), pods(ip, "here", "away"), **BRIDGE)
    assert set(picks(cluster, ip, ip.external, origin=Origin.POD).values()) == to(ip.here, ip.away)
    assert set(picks(cluster, ip, ip.external).values()) == to(ip.here)


def test_a_service_that_gets_anothers_address_has_its_own_endpoints(lab: Lab, ip: Ip) -> None:
    """Entries of a Service that is gone lead no client astray from the Service that has its address now."""
    before = sticky(ip)
    cluster = Cluster(lab, before, endpoints(ip.here, ip.here2))
    picks(cluster, ip, ip.vip)
    cluster.remove(before)
    cluster.put(sticky(ip, name="shop/new"), slice_of("shop/new", [ip.away, ip.away2]))
    first = picks(cluster, ip, ip.vip)
    assert set(first.values()) == to(ip.away, ip.away2)
    assert picks(cluster, ip, ip.vip) == first


def test_without_endpoints_a_remembered_client_is_refused(lab: Lab, ip: Ip) -> None:
    """When the last endpoint goes, a client that was remembered there is refused like everyone."""
    target = endpoints(ip.here)
    cluster = Cluster(lab, sticky(ip), target)
    (client, *_) = picks(cluster, ip, ip.vip)
    cluster.remove(target)
    (outcome,) = cluster.connect(OUTSIDE, ip.vip, source=client)
    assert outcome.kind is Kind.REJECTED


def test_a_full_map_stops_no_connection(lab: Lab, ip: Ip) -> None:
    """With room for ten clients, ten are remembered, and all further clients still get through unremembered."""
    given = pipeline(sticky(ip), endpoints(ip.here, ip.here2), wide_maps=probe().capabilities.wide_maps)
    text = given.full_transaction({}).text
    assert "size 1048576" in text
    lab.load(text.replace("size 1048576", "size 10"))
    (first, *later) = [tried(lab, ip, ip.vip)[1] for _ in range(8)]
    same = [client for client in first if all(other[client] == first[client] for other in later)]
    assert len(first) == len(clients(ip))
    assert 10 <= len(same) < 30


# ---- IPv6 with an nft that can't write wide maps -------------------------------------------------------------------


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


@pytest.mark.parametrize("ip", [IP, IP6], ids=["ip", "ip6"])
def test_without_wide_maps_lost_endpoints_are_not_chosen(lab: Lab, ip: Ip) -> None:
    """With wide maps or without, no client is sent to an endpoint that is gone."""
    cluster = Cluster(lab, sticky(ip), endpoints(ip.here, ip.here2, ip.away), wide_maps=False)
    picks(cluster, ip, ip.vip)
    cluster.put(endpoints(ip.here, ip.here2))
    assert set(picks(cluster, ip, ip.vip).values()) == to(ip.here, ip.here2)
