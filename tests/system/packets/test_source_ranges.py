"""loadBalancerSourceRanges: who may use a load balancer's addresses, and that nothing else is concerned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from nftproxy.lab import DROPPED, TCP_RESET, Lab, Origin, RealNetwork, obstacle
from nftproxy.model.events import Put
from nftproxy.model.objects import Service
from tests.support.factories import node, pipeline, service, slice_of
from tests.system.packets.cluster import IP, IP6, Cluster, Ip, at, each_ip, each_protocol, everywhere, seen
from tests.system.packets.manifests import Manifests, service_manifest, slice_manifest

OUTSIDE = Origin.OUTSIDE


def restricted(ip: Ip, ranges: Iterable[str], protocol: str = "tcp", **tweaks: Any) -> Service:
    """A Service with all kinds of addresses and these source ranges."""
    return service(
        type="LoadBalancer",
        cluster_ips=[ip.vip],
        external_ips=[ip.external],
        load_balancer_ips=[ip.balanced],
        ports=[f"http:80:30080/{protocol}"],
        source_ranges=ranges,
        **tweaks,
    )


def make_cluster(lab: Lab, ip: Ip, ranges: Iterable[str], **tweaks: Any) -> Cluster:
    """A cluster with such a Service, one endpoint on this node, and nothing that masquerades."""
    given = restricted(ip, ranges, external_policy="Local")
    return Cluster(lab, given, slice_of(endpoints=[f"{ip.here}@node-a"]), **tweaks)


def network(ip: Ip, address: str) -> str:
    """The network that an address's pods, nodes or clients are in."""
    return f"{address.rpartition(':')[0]}:/64" if ip.is_ipv6 else f"{address.rpartition('.')[0]}.0/24"


# ---- what ranges apply to ------------------------------------------------------------------------------------------


@each_ip
@each_protocol
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_only_sources_in_a_range_are_let_in(lab: Lab, ip: Ip, protocol: str, policy: str) -> None:
    """A client in a range reaches the endpoint by the load balancer's address, one outside of all ranges is dropped."""
    given = restricted(ip, [ip.alone(ip.client)], protocol, external_policy=policy)
    cluster = Cluster(lab, given, slice_of(endpoints=[f"{ip.here}@node-a"], ports=[f"http:8080/{protocol}"]))
    other = ip.client.removesuffix("200").removesuffix("c8") + "7"
    assert cluster.outcomes(OUTSIDE, ip.balanced, 80, protocol) == at(ip.here, masqueraded=policy == "Cluster")
    assert cluster.outcomes(OUTSIDE, ip.balanced, 80, protocol, source=other) == {DROPPED}


@each_ip
def test_ranges_apply_to_pods_and_the_node(lab: Lab, ip: Ip) -> None:
    """Pods of this node and others and the node itself are subject to ranges like everyone."""
    assert make_cluster(lab, ip, [ip.alone(ip.client)]).by_origin(ip.balanced) == seen(
        {DROPPED}, {DROPPED}, node={DROPPED}, outside=at(ip.here)
    )


@each_ip
@each_protocol
@pytest.mark.parametrize("gone", ["guard", "guard-translated"])
def test_sources_are_looked_at_twice(lab: Lab, ip: Ip, protocol: str, gone: str) -> None:
    """Who passed before the Service was there is stopped after the translation: each of the two looks is enough."""
    given = restricted(ip, [ip.alone(ip.client)], protocol, external_policy="Local")
    cluster = Cluster(lab, given, slice_of(endpoints=[f"{ip.here}@node-a"], ports=[f"http:8080/{protocol}"]))
    lab.load(f"flush chain {ip.nft} nftproxy {gone}")
    assert cluster.by_origin(ip.balanced, 80, protocol, times=2) == seen(
        {DROPPED}, {DROPPED}, node={DROPPED}, outside=at(ip.here)
    )


@each_ip
def test_pods_and_the_node_can_be_let_in(lab: Lab, ip: Ip) -> None:
    """Ranges that have the pods' and the node's networks let these in, and not the outside."""
    ranges = [network(ip, address) for address in (ip.pod, ip.remote_pod, ip.own)]
    assert make_cluster(lab, ip, ranges).by_origin(ip.balanced) == seen(
        at(ip.here), at(ip.here), node=at(ip.here, masqueraded=True), outside={DROPPED}
    )


@each_ip
@pytest.mark.parametrize("front", ["vip", "external", "node"])
def test_ranges_do_not_apply_to_other_addresses(lab: Lab, ip: Ip, front: str) -> None:
    """Nobody is kept from the ClusterIP, external IPs and node ports of a Service with ranges."""
    nobody = [ip.alone(ip.unallocated)]
    given = restricted(ip, nobody)
    cluster = Cluster(lab, given, slice_of(endpoints=[f"{ip.here}@node-a"]), masquerade_all=True)
    port = 30080 if front == "node" else 80
    assert cluster.by_origin(getattr(ip, front), port) == everywhere(at(ip.here, masqueraded=True))


@each_ip
def test_ranges_apply_without_endpoints(lab: Lab, ip: Ip) -> None:
    """Without endpoints, who is in a range is refused, and who is not is dropped and learns nothing."""
    cluster = Cluster(lab, restricted(ip, [ip.alone(ip.client)]))
    assert cluster.by_origin(ip.balanced, times=2) == seen({DROPPED}, {DROPPED}, node={DROPPED}, outside={TCP_RESET})


@each_ip
def test_ranges_apply_to_an_address_on_the_nodes_interface(lab: Lab, ip: Ip) -> None:
    """Ranges count also where the node itself has been given the load balancer's address."""
    lab.add_address(ip.balanced)
    assert make_cluster(lab, ip, [ip.alone(ip.client)]).by_origin(ip.balanced) == seen(
        {DROPPED}, {DROPPED}, node={DROPPED}, outside=at(ip.here)
    )


@each_ip
def test_ranges_do_not_apply_to_an_endpoint(lab: Lab, ip: Ip) -> None:
    """The node reaches an endpoint in its own network that another Service has for a load balancer IP."""
    elsewhere = service(
        "shop/other",
        type="LoadBalancer",
        cluster_ips=[ip.vip2],
        load_balancer_ips=[ip.own],
        ports=["8080"],
        source_ranges=[ip.alone(ip.client)],
    )
    cluster = Cluster(lab, service(cluster_ips=[ip.vip]), slice_of(endpoints=[f"{ip.own}@node-a"]), elsewhere)
    assert cluster.outcomes(Origin.NODE, ip.vip, source=ip.gateway) == at(ip.own)


@each_ip
def test_ranges_apply_to_all_ports_and_addresses_of_the_load_balancer(lab: Lab, ip: Ip) -> None:
    """Every port at each of several load balancer IPs is restricted, and only the Service's ports are."""
    given = service(
        type="LoadBalancer",
        cluster_ips=[ip.vip],
        load_balancer_ips=[ip.balanced, ip.external],
        ports=["http:80", "dns:53/udp"],
        source_ranges=[ip.alone(ip.client)],
    )
    cluster = Cluster(lab, given, slice_of(endpoints=[ip.here], ports=["http:8080", "dns:8080/udp"]))
    for address in (ip.balanced, ip.external):
        for port, protocol in ((80, "tcp"), (53, "udp")):
            assert cluster.outcomes(OUTSIDE, address, port, protocol) == at(ip.here, masqueraded=True)
            assert cluster.outcomes(Origin.POD, address, port, protocol) == {DROPPED}


@each_ip
def test_ranges_are_each_services_own(lab: Lab, ip: Ip) -> None:
    """Of two Services that share a load balancer IP, each port admits its own Service's sources."""
    here = slice_of("shop/web", [ip.here]), slice_of("shop/api", [ip.here2])
    web = service(
        "shop/web",
        type="LoadBalancer",
        cluster_ips=[ip.vip],
        load_balancer_ips=[ip.balanced],
        source_ranges=[ip.alone(ip.client)],
    )
    api = service(
        "shop/api",
        type="LoadBalancer",
        cluster_ips=[ip.vip2],
        load_balancer_ips=[ip.balanced],
        ports=["http:81"],
        source_ranges=[ip.alone(ip.pod)],
    )
    cluster = Cluster(lab, web, api, *here)
    assert cluster.outcomes(OUTSIDE, ip.balanced, 80) == at(ip.here, masqueraded=True)
    assert cluster.outcomes(Origin.POD, ip.balanced, 80) == {DROPPED}
    assert cluster.outcomes(OUTSIDE, ip.balanced, 81) == {DROPPED}
    assert cluster.outcomes(Origin.POD, ip.balanced, 81) == at(ip.here2, masqueraded=True)


# ---- which ranges there are ----------------------------------------------------------------------------------------

EVERYONE = {IP: "0.0.0.0/0", IP6: "::/0"}


@each_ip
@pytest.mark.parametrize("others", [[], ["10.99.0.0/16", "fd00:99::/64"]], ids=["alone", "among others"])
def test_a_range_of_length_zero_admits_everyone(lab: Lab, ip: Ip, others: list[str]) -> None:
    """With a range of length 0 nobody is kept out, whatever the other ranges are."""
    cluster = make_cluster(lab, ip, [*others, EVERYONE[ip]])
    assert cluster.by_origin(ip.balanced) == seen(
        at(ip.here), at(ip.here), node=at(ip.here, masqueraded=True), outside=at(ip.here)
    )


@each_ip
def test_ranges_of_the_other_family_do_not_restrict(lab: Lab, ip: Ip) -> None:
    """Ranges that are all of the other family leave this one open, those of length 0 as well."""
    for others in ([network(other, other.unallocated) for other in (IP, IP6) if other is not ip], [EVERYONE[IP6]]):
        if others == [EVERYONE[IP6]] and ip.is_ipv6:
            continue
        assert make_cluster(lab, ip, others).outcomes(OUTSIDE, ip.balanced) == at(ip.here)
        lab.reset()


def test_a_length_of_zero_is_for_its_own_family(lab: Lab) -> None:
    """::/0 beside an IPv4 range does not open IPv4."""
    assert make_cluster(lab, IP, [EVERYONE[IP6], IP.alone(IP.pod)]).outcomes(OUTSIDE, IP.balanced) == {DROPPED}


# Ranges that overlap, touch, repeat each other or have host bits, and sources with whether they are in one.
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
    """Of IPv6 ranges too, one may lie in another."""
    cluster = make_cluster(lab, IP6, ["2001:db8:100::/64", "2001:db8:100::c0/124", "2001:db8:100::c8/128"])
    assert cluster.outcomes(OUTSIDE, IP6.balanced, source="2001:db8:100::7") == at(IP6.here)
    assert cluster.outcomes(OUTSIDE, IP6.balanced, source="2001:db8:101::7") == {DROPPED}


@each_ip
def test_ranges_are_followed(lab: Lab, ip: Ip) -> None:
    """Ranges that are added, changed and removed count for the next connection."""
    given = slice_of(endpoints=[f"{ip.here}@node-a"])
    cluster = Cluster(lab, restricted(ip, []), given)
    inside, outside = at(ip.here, masqueraded=True), {DROPPED}
    for ranges, client, pod in [
        ([ip.alone(ip.client)], inside, outside),
        ([network(ip, ip.client), ip.alone(ip.client)], inside, outside),
        ([network(ip, ip.pod)], outside, inside),
        ([network(ip, ip.pod), network(ip, ip.client)], inside, inside),
        ([], inside, inside),
    ]:
        cluster.put(restricted(ip, ranges))
        assert cluster.outcomes(OUTSIDE, ip.balanced) == client
        assert cluster.outcomes(Origin.POD, ip.balanced) == pod


# ---- the node's own address ----------------------------------------------------------------------------------------


@each_ip
@pytest.mark.parametrize("is_the_node", [False, True], ids=["a client", "the node"])
def test_a_change_of_ranges_cuts_no_connection(ip: Ip, is_the_node: bool) -> None:
    """Who is connected stays so when the ranges don't admit him any more; a new connection of his is dropped."""
    if why := obstacle():
        pytest.skip(why)
    with RealNetwork() as network:
        real = network.node()
        real.pod("web", IP.here, IP6.here).serve(8080)
        client = real if is_the_node else network.host("client", IP.client, IP6.client)
        admitted = restricted(ip, [ip.alone(ip.node if is_the_node else ip.client)])
        made = pipeline(admitted, slice_of(endpoints=[f"{ip.here}@node-a"]))
        real.load(made.full_transaction({}).text)
        with client.talk(ip.balanced, 80) as conversation:
            assert conversation.ask().name == "web"
            real.load(made.apply([Put(restricted(ip, [ip.alone(ip.remote_pod)]))]).text)
            assert conversation.ask().name == "web"
        with pytest.raises(TimeoutError):
            client.ask(ip.balanced, 80, timeout=0.5)


@each_ip
@pytest.mark.parametrize("has_node", [True, False], ids=["range with the node", "range without"])
def test_a_range_with_the_nodes_address_admits_the_load_balancers(lab: Lab, ip: Ip, has_node: bool) -> None:
    """What the node sends from the load balancer's own address is let in if a range has the node's address."""
    lab.add_address(ip.balanced)
    cluster = make_cluster(lab, ip, [ip.alone(ip.node if has_node else ip.client)])
    outcomes = cluster.outcomes(Origin.NODE, ip.balanced, source=ip.balanced)
    assert outcomes == (at(ip.here, masqueraded=True) if has_node else {DROPPED})


@each_ip
def test_a_range_with_the_nodes_address_does_not_admit_others(lab: Lab, ip: Ip) -> None:
    """A range that holds only the node's address still keeps pods and the outside out."""
    cluster = make_cluster(lab, ip, [ip.alone(ip.node)])
    assert cluster.outcomes(Origin.NODE, ip.balanced, source=ip.node) == at(ip.here, masqueraded=True)
    assert cluster.outcomes(OUTSIDE, ip.balanced) | cluster.outcomes(Origin.POD, ip.balanced) == {DROPPED}


@each_ip
def test_the_nodes_address_is_followed(lab: Lab, ip: Ip) -> None:
    """When the Node gets an address that a range has, the load balancer's own address is admitted."""
    lab.add_address(ip.balanced)
    cluster = make_cluster(lab, ip, [ip.alone(ip.own)])
    assert cluster.outcomes(Origin.NODE, ip.balanced, source=ip.balanced) == {DROPPED}
    cluster.put(node(internal_ips=[ip.own]))
    assert cluster.outcomes(Origin.NODE, ip.balanced, source=ip.balanced) == at(ip.here, masqueraded=True)


# ---- as they are written -------------------------------------------------------------------------------------------


def test_blanks_are_trimmed_and_bad_ranges_skipped(lab: Lab) -> None:
    """A range among blanks counts, and one that is no CIDR is reported and opens nothing."""
    spec = {
        "type": "LoadBalancer",
        "loadBalancerSourceRanges": [f"  {IP.client}/32\t", "198.51.100.0/33", "everyone", "0.0.0.0"],
    }
    given = service_manifest(spec, status={"loadBalancer": {"ingress": [{"ip": IP.balanced}]}})
    cluster = Manifests(lab, given, slice_manifest())
    assert cluster.outcomes(OUTSIDE, IP.balanced) == at(IP.here, masqueraded=True)
    assert cluster.outcomes(OUTSIDE, IP.balanced, source="198.51.100.7") == {DROPPED}
    assert {f"spec.loadBalancerSourceRanges[{number}]" for number in (1, 2, 3)} <= {
        problem.field for problem in cluster.problems
    }
