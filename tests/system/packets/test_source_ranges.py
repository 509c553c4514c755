"""loadBalancerSourceRanges: the clients that may use a load balancer's addresses, and that nothing else is
concerned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from nftproxy_conformance.lab import DROPPED, TCP_RESET, Lab, Origin, RealNetwork

from nftproxy.model.events import Put
from nftproxy.model.objects import Service
from tests.support.cluster import IP, IP6, Cluster, Ip, at, beside, everywhere, exposed_service, masqueraded, pods, seen
from tests.support.factories import node, pipeline, service, slice_of
from tests.system.packets.manifests import Manifests, service_manifest, slice_manifest
from tests.system.packets.rivals import one, slices, two

OUTSIDE = Origin.OUTSIDE


def restricted(ip: Ip, ranges: Iterable[str], protocol: str = "tcp", **tweaks: Any) -> Service:
    """A Service with all kinds of addresses and these source ranges, which masquerades no client outside."""
    return exposed_service(ip, protocol, **{"source_ranges": ranges, "external_policy": "Local"} | tweaks)


def make_cluster(lab: Lab, ip: Ip, ranges: Iterable[str], **tweaks: Any) -> Cluster:
    """A cluster with such a Service and an endpoint on this node."""
    return Cluster(lab, restricted(ip, ranges), pods(ip, "here"), **tweaks)


def network_of(ip: Ip, address: str) -> str:
    """The network that an address's pods, nodes or clients are in."""
    return f"{address.rpartition(':')[0]}:/64" if ip.is_ipv6 else f"{address.rpartition('.')[0]}.0/24"


# ---- the fronts of ranges ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_only_sources_in_a_range_are_let_in(lab: Lab, ip: Ip, protocol: str, policy: str) -> None:
    """A client in a range reaches the endpoint by the load balancer's address, and a client outside of all ranges is
    dropped.
    """
    given = restricted(ip, [ip.alone(ip.client)], protocol, external_policy=policy)
    cluster = Cluster(lab, given, pods(ip, "here", protocol=protocol))
    assert cluster.outcomes(OUTSIDE, ip.balanced, 80, protocol) == at(ip.here, masqueraded=policy == "Cluster")
    assert cluster.outcomes(OUTSIDE, ip.balanced, 80, protocol, source=beside(ip.client, 7)) == {DROPPED}


def test_ranges_apply_to_pods_and_the_node(lab: Lab, ip: Ip) -> None:
    """Pods of any node and the node itself are subject to ranges like clients outside."""
    assert make_cluster(lab, ip, [ip.alone(ip.client)]).by_origin(ip.balanced) == seen(
        {DROPPED}, {DROPPED}, node={DROPPED}, outside=at(ip.here)
    )


@pytest.mark.parametrize("gone", ["guard", "guard-translated"])
def test_sources_are_looked_at_twice(lab: Lab, ip: Ip, protocol: str, gone: str) -> None:
    """Either of the two looks, before and after the translation, is enough to stop a connection."""
    given = restricted(ip, [ip.alone(ip.client)], protocol)
    cluster = Cluster(lab, given, pods(ip, "here", protocol=protocol))
    lab.load(f"flush chain {ip.nft} nftproxy {gone}")
    assert cluster.by_origin(ip.balanced, 80, protocol, times=2) == seen(
        {DROPPED}, {DROPPED}, node={DROPPED}, outside=at(ip.here)
    )


def test_pods_and_the_node_can_be_let_in(lab: Lab, ip: Ip) -> None:
    """Ranges that have the pods' and the node's networks let these in, and not the outside."""
    ranges = [network_of(ip, address) for address in (ip.pod, ip.remote_pod, ip.own)]
    assert make_cluster(lab, ip, ranges).by_origin(ip.balanced) == seen(
        at(ip.here), at(ip.here), node=masqueraded(ip.here), outside={DROPPED}
    )


@pytest.mark.parametrize("front", ["vip", "external", "node"])
def test_ranges_do_not_apply_to_other_addresses(lab: Lab, ip: Ip, front: str) -> None:
    """Nobody is kept from the ClusterIP, external IPs and node ports of a Service with ranges."""
    nobody = restricted(ip, [ip.alone(ip.unallocated)], external_policy="Cluster")
    cluster = Cluster(lab, nobody, pods(ip, "here"), masquerade_all=True)
    assert cluster.by_origin(*ip.front(front)) == everywhere(masqueraded(ip.here))


def test_ranges_apply_without_endpoints(lab: Lab, ip: Ip) -> None:
    """Without endpoints, clients in a range are refused, and other clients are dropped and learn nothing."""
    cluster = Cluster(lab, restricted(ip, [ip.alone(ip.client)]))
    assert cluster.by_origin(ip.balanced, times=2) == seen({DROPPED}, {DROPPED}, node={DROPPED}, outside={TCP_RESET})


def test_ranges_apply_to_an_address_on_the_nodes_interface(lab: Lab, ip: Ip) -> None:
    """Ranges count also where the node itself has been given the load balancer's address."""
    lab.add_address(ip.balanced)
    assert make_cluster(lab, ip, [ip.alone(ip.client)]).by_origin(ip.balanced) == seen(
        {DROPPED}, {DROPPED}, node={DROPPED}, outside=at(ip.here)
    )


def test_ranges_do_not_apply_to_an_endpoint(lab: Lab, ip: Ip) -> None:
    """The node reaches an endpoint in its own network that another Service has for a load balancer IP."""
    ranges = [ip.alone(ip.client)]
    elsewhere = two(ip, load_balancer_ips=[ip.own], ports=["8080"], source_ranges=ranges)
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]), pods(ip, "own"), elsewhere)
    assert cluster.outcomes(Origin.NODE, ip.vip, source=ip.gateway) == at(ip.own)


def test_ranges_apply_to_all_ports_and_addresses_of_the_load_balancer(lab: Lab, ip: Ip) -> None:
    """Every port at each of several load balancer IPs is restricted, and only the Service's ports are."""
    claim: dict[str, Any] = {"load_balancer_ips": [ip.balanced, ip.external], "ports": ["http:80", "dns:53/udp"]}
    target = slice_of("shop/one", [ip.here], ports=["http:8080", "dns:8080/udp"])
    cluster = Cluster(lab, one(ip, **claim, source_ranges=[ip.alone(ip.client)]), target)
    for address in (ip.balanced, ip.external):
        for port, protocol in ((80, "tcp"), (53, "udp")):
            assert cluster.outcomes(OUTSIDE, address, port, protocol) == masqueraded(ip.here)
            assert cluster.outcomes(Origin.POD, address, port, protocol) == {DROPPED}


def test_ranges_are_each_services_own(lab: Lab, ip: Ip) -> None:
    """Of two Services that share a load balancer IP, each port admits its own Service's sources."""
    first = one(ip, load_balancer_ips=[ip.balanced], source_ranges=[ip.alone(ip.client)])
    claim: dict[str, Any] = {"load_balancer_ips": [ip.balanced], "ports": ["http:81"]}
    second = two(ip, **claim, source_ranges=[ip.alone(ip.pod)])
    cluster = Cluster(lab, first, second, *slices(ip))
    assert cluster.outcomes(OUTSIDE, ip.balanced, 80) == masqueraded(ip.here)
    assert cluster.outcomes(Origin.POD, ip.balanced, 80) == {DROPPED}
    assert cluster.outcomes(OUTSIDE, ip.balanced, 81) == {DROPPED}
    assert cluster.outcomes(Origin.POD, ip.balanced, 81) == masqueraded(ip.away)


# ---- which ranges there are ----------------------------------------------------------------------------------------

EVERYONE = {IP: "0.0.0.0/0", IP6: "::/0"}


@pytest.mark.parametrize("others", [[], ["10.99.0.0/16", "fd00:99::/64"]], ids=["alone", "among others"])
def test_a_range_of_length_zero_admits_everyone(lab: Lab, ip: Ip, others: list[str]) -> None:
    """With a range of length 0 no client is kept out, alone or among other ranges."""
    cluster = make_cluster(lab, ip, [*others, EVERYONE[ip]])
    assert cluster.by_origin(ip.balanced) == seen(
        at(ip.here), at(ip.here), node=masqueraded(ip.here), outside=at(ip.here)
    )


def test_ranges_of_the_other_family_do_not_restrict(lab: Lab, ip: Ip) -> None:
    """Ranges that are all of the other family leave this family open, also with a length of 0."""
    for others in ([network_of(other, other.unallocated) for other in (IP, IP6) if other is not ip], [EVERYONE[IP6]]):
        if others == [EVERYONE[IP6]] and ip.is_ipv6:
            continue
        assert make_cluster(lab, ip, others).outcomes(OUTSIDE, ip.balanced) == at(ip.here)
        lab.reset()


def test_a_length_of_zero_is_for_its_own_family(lab: Lab) -> None:
    """::/0 beside an IPv4 range does not open IPv4."""
    assert make_cluster(lab, IP, [EVERYONE[IP6], IP.alone(IP.pod)]).outcomes(OUTSIDE, IP.balanced) == {DROPPED}


# Ranges that overlap, touch, repeat each other or have host bits, and sources with whether they are in a range.
OVERLAPS: dict[str, tuple[list[str], dict[str, bool]]] = {
    "one in the other": (
        ["198.51.100.0/24", "198.51.100.128/25"],
        {"198.51.100.5": True, "198.51.100.200": True, "198.51.101.5": False},
    ),
    "the narrow one first": (
        ["198.51.100.128/25", "198.51.100.0/24", "198.51.100.200/32"],
        {"198.51.100.5": True, "198.51.100.200": True, "198.51.99.255": False},
    ),
    "neighbours": (
        ["198.51.100.0/25", "198.51.100.128/25"],
        {"198.51.100.0": True, "198.51.100.127": True, "198.51.100.128": True, "198.51.101.0": False},
    ),
    "the same twice": (["198.51.100.0/24", "198.51.100.0/24"], {"198.51.100.5": True, "198.51.101.5": False}),
    "host bits": (["198.51.100.77/24"], {"198.51.100.5": True, "198.51.101.5": False}),
    "edges": (
        ["198.51.100.64/26"],
        {"198.51.100.63": False, "198.51.100.64": True, "198.51.100.127": True, "198.51.100.128": False},
    ),
}


@pytest.mark.parametrize(("ranges", "sources"), OVERLAPS.values(), ids=OVERLAPS)
def test_ranges_may_overlap(lab: Lab, ranges: list[str], sources: dict[str, bool]) -> None:
    """Exactly the sources in some range are let in, however ranges lie to each other."""
    cluster = make_cluster(lab, IP, ranges)
    found = {source: cluster.outcomes(OUTSIDE, IP.balanced, source=source, times=2) for source in sources}
    assert found == {source: at(IP.here) if is_in else {DROPPED} for source, is_in in sources.items()}


def test_ipv6_ranges_may_overlap(lab: Lab) -> None:
    """IPv6 ranges too may be nested."""
    cluster = make_cluster(lab, IP6, ["2001:db8:100::/64", "2001:db8:100::c0/124", "2001:db8:100::c8/128"])
    assert cluster.outcomes(OUTSIDE, IP6.balanced, source="2001:db8:100::7") == at(IP6.here)
    assert cluster.outcomes(OUTSIDE, IP6.balanced, source="2001:db8:101::7") == {DROPPED}


def test_ranges_are_followed(lab: Lab, ip: Ip) -> None:
    """Ranges that are added, changed and removed count for the next connection."""
    cluster = make_cluster(lab, ip, [])
    inside, outside = masqueraded(ip.here), {DROPPED}
    for ranges, client, pod in [
        ([ip.alone(ip.client)], inside, outside),
        ([network_of(ip, ip.client), ip.alone(ip.client)], inside, outside),
        ([network_of(ip, ip.pod)], outside, inside),
        ([network_of(ip, ip.pod), network_of(ip, ip.client)], inside, inside),
        ([], inside, inside),
    ]:
        cluster.put(restricted(ip, ranges, external_policy="Cluster"))
        assert cluster.outcomes(OUTSIDE, ip.balanced) == client
        assert cluster.outcomes(Origin.POD, ip.balanced) == pod


# ---- the node's own address ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_the_node", [False, True], ids=["a client", "the node"])
def test_a_change_of_ranges_cuts_no_connection(network: RealNetwork, ip: Ip, is_the_node: bool) -> None:
    """A connected client stays so when the ranges don't admit it any more, and its new connection is dropped."""
    real = network.node()
    real.pod("web", IP.here, IP6.here).serve(8080)
    client = real if is_the_node else network.host("client", IP.client, IP6.client)
    admitted = restricted(ip, [ip.alone(ip.node if is_the_node else ip.client)], external_policy="Cluster")
    made = pipeline(admitted, pods(ip, "here"))
    real.load(made.full_transaction({}).text)
    with client.talk(ip.balanced, 80) as conversation:
        assert conversation.ask().name == "web"
        real.load(made.ingest([Put(restricted(ip, [ip.alone(ip.remote_pod)], external_policy="Cluster"))]).text)
        assert conversation.ask().name == "web"
    with pytest.raises(TimeoutError):
        client.ask(ip.balanced, 80, timeout=0.5)


@pytest.mark.parametrize("has_node", [True, False], ids=["range with the node", "range without"])
def test_a_range_with_the_nodes_address_admits_the_load_balancers(lab: Lab, ip: Ip, has_node: bool) -> None:
    """A connection of the node from the load balancer's own address is let in if a range has the node's address."""
    lab.add_address(ip.balanced)
    cluster = make_cluster(lab, ip, [ip.alone(ip.node if has_node else ip.client)])
    outcomes = cluster.outcomes(Origin.NODE, ip.balanced, source=ip.balanced)
    assert outcomes == (masqueraded(ip.here) if has_node else {DROPPED})


def test_a_range_with_the_nodes_address_does_not_admit_others(lab: Lab, ip: Ip) -> None:
    """A range that holds only the node's address still keeps pods and the outside out."""
    cluster = make_cluster(lab, ip, [ip.alone(ip.node)])
    assert cluster.outcomes(Origin.NODE, ip.balanced, source=ip.node) == masqueraded(ip.here)
    assert cluster.outcomes(OUTSIDE, ip.balanced) | cluster.outcomes(Origin.POD, ip.balanced) == {DROPPED}


def test_the_nodes_address_is_followed(lab: Lab, ip: Ip) -> None:
    """When the Node gets an address that a range has, the load balancer's own address is admitted."""
    lab.add_address(ip.balanced)
    cluster = make_cluster(lab, ip, [ip.alone(ip.own)])
    assert cluster.outcomes(Origin.NODE, ip.balanced, source=ip.balanced) == {DROPPED}
    cluster.put(node(internal_ips=[ip.own]))
    assert cluster.outcomes(Origin.NODE, ip.balanced, source=ip.balanced) == masqueraded(ip.here)


# ---- as they are written -------------------------------------------------------------------------------------------


def test_blanks_are_trimmed_and_bad_ranges_skipped(lab: Lab) -> None:
    """A range among blanks counts, and a text that is no CIDR is reported and opens nothing."""
    spec = {
        "type": "LoadBalancer",
        "loadBalancerSourceRanges": [f"  {IP.client}/32\t", "198.51.100.0/33", "everyone", "0.0.0.0"],
    }
    given = service_manifest(spec, status={"loadBalancer": {"ingress": [{"ip": IP.balanced}]}})
    cluster = Manifests(lab, given, slice_manifest())
    assert cluster.outcomes(OUTSIDE, IP.balanced) == masqueraded(IP.here)
    assert cluster.outcomes(OUTSIDE, IP.balanced, source="198.51.100.7") == {DROPPED}
    assert {f"spec.loadBalancerSourceRanges[{number}]" for number in (1, 2, 3)} <= {
        problem.field for problem in cluster.problems
    }
