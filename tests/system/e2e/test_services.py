"""Services that appear, change and go (test/e2e/network/service.go, dual_stack.go, service_cidrs.go)."""

from __future__ import annotations

from pathlib import Path

import pytest
from nftproxy_conformance.lab import DROPPED, NODE, PORT_UNREACHABLE, TCP_RESET, UNTOUCHED, Kind, Origin, Outcome

from tests.support.cluster import IP, IP6, Ip, at, everywhere, seen
from tests.system.e2e.agent import World, eventually
from tests.system.e2e.objects import Object, external_name, service, service_cidr, slice_of


def test_basic_endpoints(world: World, ip: Ip) -> None:
    """A Service follows its endpoints as they appear and go, and refuses connections without any."""
    both = slice_of(f"{ip.here}@node-a", f"{ip.away}@node-b")
    world.put(service())
    assert world.outcomes(Origin.POD, ip.vip) == {TCP_RESET}
    world.put(slice_of(f"{ip.here}@node-a"))
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here)
    world.put(both)
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here, ip.away)
    world.put(slice_of(f"{ip.away}@node-b"))
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.away)
    world.delete(both)
    assert world.outcomes(Origin.POD, ip.vip) == {TCP_RESET}


def test_multi_port_endpoints(world: World, ip: Ip) -> None:
    """Each port of a Service goes to the endpoints that have a port of its name."""
    world.put(
        service(ports=["one:80", "two:81"]),
        slice_of(ip.here, ports=["one:100"], suffix="1"),
        slice_of(ip.away, ports=["two:101"], suffix="2"),
    )
    assert world.outcomes(Origin.POD, ip.vip, 80) == at(ip.here, port=100)
    assert world.outcomes(Origin.POD, ip.vip, 81) == at(ip.away, port=101)


def test_ports_added_and_removed(world: World, ip: Ip) -> None:
    """A port is served once it is added and until it is removed, and the Service's other port stays."""
    endpoints = slice_of(ip.here, ports=["one:100", "two:101"])
    world.put(service(ports=["one:80"]), endpoints)
    assert world.outcomes(Origin.POD, ip.vip, 80) == at(ip.here, port=100)
    assert world.outcomes(Origin.POD, ip.vip, 81) == {TCP_RESET}
    world.put(service(ports=["one:80", "two:81"]))
    assert world.outcomes(Origin.POD, ip.vip, 81) == at(ip.here, port=101)
    world.put(service(ports=["two:81"]))
    assert world.outcomes(Origin.POD, ip.vip, 80) == {TCP_RESET}
    assert world.outcomes(Origin.POD, ip.vip, 81) == at(ip.here, port=101)


def test_endpoint_ports_change(world: World, ip: Ip) -> None:
    """A Service leads to the present port of its endpoints."""
    world.put(service(), slice_of(ip.here, ports=["8080"]))
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here)
    world.put(slice_of(ip.here, ports=["9090"]))
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here, port=9090)


def test_source_address_is_kept(world: World, ip: Ip) -> None:
    """A pod's source address is kept on the way to a ClusterIP, whether the endpoint is on its node or another."""
    world.put(service(), slice_of(ip.here, ip.away))
    outcomes = world.connect(Origin.POD, ip.vip, times=64)
    assert {outcome.source.ip for outcome in outcomes if outcome.source} == {ip.pod}
    assert set(outcomes) == at(ip.here, ip.away)


def test_hairpin(world: World, ip: Ip) -> None:
    """A pod that reaches itself through its Service is masqueraded, so that it can answer."""
    world.put(service(), slice_of(f"{ip.here}@node-a"))
    assert world.outcomes(Origin.POD, ip.vip, source=ip.here) == at(ip.here, masqueraded=True)


def test_leading_zeros(world: World) -> None:
    """A stored ClusterIP with leading zeros is served at the address that it is in decimal."""
    world.put(service(vips=["10.096.000.010", "fd00:96::10"]), slice_of("010.001.000.004@node-a"))
    assert world.outcomes(Origin.POD, IP.vip) == at(IP.here)


def test_up_and_down(world: World) -> None:
    """Services appear and go without any effect on other Services."""
    web, other = service(), service("other")
    world.put(web, slice_of(IP.here), other, slice_of(IP.away, name="other"))
    assert world.outcomes(Origin.POD, IP.vip) == at(IP.here)
    assert world.outcomes(Origin.POD, IP.vip2) == at(IP.away)
    world.delete(web)
    assert world.outcomes(Origin.POD, IP.vip) == {DROPPED}  # in a ServiceCIDR, but of no Service
    assert world.outcomes(Origin.POD, IP.vip2) == at(IP.away)
    third = service("third", vips=["10.96.0.30"])
    world.put(third, slice_of(IP.away2, name="third"))
    assert world.outcomes(Origin.POD, IP.vip2) == at(IP.away)
    assert world.outcomes(Origin.POD, "10.96.0.30") == at(IP.away2)


def test_recreated(world: World, ip: Ip) -> None:
    """A Service that is deleted and created again, with another address and then its old address, is served."""
    web = service()
    world.put(web, slice_of(ip.here))
    world.delete(web)
    assert world.outcomes(Origin.POD, ip.vip) == {DROPPED}
    world.put(service(vips=[ip.vip2]))
    assert world.outcomes(Origin.POD, ip.vip2) == at(ip.here)
    world.delete(web)
    world.put(web)
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here)
    assert world.outcomes(Origin.POD, ip.vip2) == {DROPPED}


def test_node_port(world: World, ip: Ip, protocol: str) -> None:
    """A node port is served to all clients, masqueraded, until its Service is deleted."""
    web = service(ports=[f"80:30080/{protocol.upper()}"], type="NodePort")
    world.put(web, slice_of(ip.here, ip.away, ports=[f"8080/{protocol.upper()}"]))
    expected = everywhere(at(ip.here, ip.away, masqueraded=True))
    assert world.by_origin(ip.node, 30080, protocol) == expected
    world.delete(web)
    assert Kind.ENDPOINT not in {each.kind for each in world.outcomes(Origin.OUTSIDE, ip.node, 30080, protocol)}


def test_external_ip(world: World, ip: Ip) -> None:
    """An external IP that is no node's address is served."""
    world.put(service(externalIPs=[ip.external]), slice_of(ip.here, ip.away))
    assert world.by_origin(ip.external) == everywhere(at(ip.here, ip.away, masqueraded=True))


def test_same_port_tcp_and_udp(world: World, ip: Ip) -> None:
    """TCP and UDP at the same port and node port reach their own endpoints."""
    world.put(
        service(ports=["tcp:80:30080/TCP", "udp:80:30080/UDP"], type="NodePort"),
        slice_of(ip.here, ports=["tcp:8080/TCP"], suffix="1"),
        slice_of(ip.away, ports=["udp:8081/UDP"], suffix="2"),
    )
    assert world.outcomes(Origin.POD, ip.vip, 80, "tcp") == at(ip.here)
    assert world.outcomes(Origin.POD, ip.vip, 80, "udp") == at(ip.away, port=8081)
    assert world.outcomes(Origin.OUTSIDE, ip.node, 30080, "tcp") == at(ip.here, masqueraded=True)
    assert world.outcomes(Origin.OUTSIDE, ip.node, 30080, "udp") == at(ip.away, port=8081, masqueraded=True)


def test_external_name_becomes_cluster_ip_and_back(world: World, ip: Ip) -> None:
    """A Service is served while its type is ClusterIP, and not while it is ExternalName."""
    world.put(external_name(), slice_of(ip.here))
    assert world.outcomes(Origin.POD, ip.vip) == {DROPPED}
    world.put(service())
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here)
    world.put(external_name())
    assert world.outcomes(Origin.POD, ip.vip) == {DROPPED}


def test_external_name_becomes_node_port_and_back(world: World, ip: Ip) -> None:
    """The ClusterIP and node port are served while the type is NodePort, and neither while it is ExternalName."""
    web = service(ports=["80:30080"], type="NodePort")
    for _ in range(2):
        world.put(external_name(), slice_of(ip.here))
        assert world.outcomes(Origin.POD, ip.vip) == {DROPPED}
        assert not world.outcomes(Origin.OUTSIDE, ip.node, 30080) & at(ip.here, masqueraded=True)
        world.put(web)
        assert world.outcomes(Origin.POD, ip.vip) == at(ip.here)
        assert world.outcomes(Origin.OUTSIDE, ip.node, 30080) == at(ip.here, masqueraded=True)


def test_publish_not_ready_addresses(world: World, ip: Ip) -> None:
    """Endpoints that aren't ready or are terminating are used only if the Service publishes them."""
    world.put(service(publishNotReadyAddresses=True), slice_of(f"{ip.here} published", f"{ip.away} published-draining"))
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here, ip.away)
    world.put(service(), slice_of(f"{ip.here} unready", f"{ip.away} stopped"))
    assert world.outcomes(Origin.POD, ip.vip) == {TCP_RESET}


@pytest.mark.parametrize(
    ("label", "down"),
    [("service.kubernetes.io/service-proxy-name", DROPPED), ("service.kubernetes.io/headless", TCP_RESET)],
)
def test_labels_toggled(world: World, ip: Ip, label: str, down: Outcome) -> None:
    """A Service isn't served as long as it has the label of another proxy or the label "headless"."""
    labels = {label: "other"}
    world.put(service(labels=labels), slice_of(ip.here, labels=labels))
    assert world.outcomes(Origin.POD, ip.vip) == {down}
    world.put(service(), slice_of(ip.here))
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here)
    world.put(service(labels=labels), slice_of(ip.here, labels=labels))
    assert world.outcomes(Origin.POD, ip.vip) == {down}


def test_refused_without_endpoints(world: World, ip: Ip, protocol: str) -> None:
    """Without endpoints every address of a Service refuses at once, for pods, the node, and clients outside."""
    ports = [f"80:30080/{protocol.upper()}"]
    balancer: Object = {"type": "LoadBalancer", "externalIPs": [ip.external], "balanced": [ip.balanced]}
    world.put(
        service(ports=ports, **balancer), slice_of(f"{ip.here}@node-a unready", ports=[f"8080/{protocol.upper()}"])
    )
    for address, port in ((ip.vip, 80), (ip.external, 80), (ip.balanced, 80), (ip.node, 30080)):
        for origin in (Origin.POD, Origin.NODE, Origin.OUTSIDE):
            outcomes = world.outcomes(origin, address, port, protocol, times=4)
            assert {each.kind for each in outcomes} == {Kind.REJECTED}, (origin, address)


def test_refused_for_evicted_pods(world: World, ip: Ip, protocol: str) -> None:
    """Evicted pods leave their slices, and every address refuses at once when the last pod is evicted."""
    ports = {"ports": [f"8080/{protocol.upper()}"], "family": "IPv6" if ip is IP6 else "IPv4"}
    world.put(
        service(ports=[f"80:30080/{protocol.upper()}"], type="NodePort"),
        slice_of(f"{ip.here}@node-a", f"{ip.away}@node-b", **ports),  # type: ignore[arg-type]
    )
    assert world.outcomes(Origin.POD, ip.vip, 80, protocol) == at(ip.here, ip.away)
    world.put(slice_of(f"{ip.away}@node-b", **ports))  # type: ignore[arg-type]
    assert world.outcomes(Origin.POD, ip.vip, 80, protocol) == at(ip.away)
    world.put(slice_of(**ports))  # type: ignore[arg-type]
    for address, port in ((ip.vip, 80), (ip.node, 30080)):
        for origin in (Origin.POD, Origin.NODE, Origin.OUTSIDE):
            outcomes = world.outcomes(origin, address, port, protocol, times=4)
            assert {each.kind for each in outcomes} == {Kind.REJECTED}, (origin, address)


def test_two_services_with_the_same_endpoints(world: World, ip: Ip, protocol: str) -> None:
    """Two Services with the same pods are served independently, and either may be deleted."""
    kind = protocol.upper()
    first = service(ports=[f"80:30080/{kind}"], type="NodePort")
    pods = [slice_of(ip.here, ip.away, name=name, ports=[f"8080/{kind}"]) for name in ("web", "other")]
    world.put(first, service("other", ports=[f"80:30081/{kind}"], type="NodePort"), *pods)
    reached, masked = at(ip.here, ip.away), at(ip.here, ip.away, masqueraded=True)
    for vip, node_port in ((ip.vip, 30080), (ip.vip2, 30081)):
        assert world.outcomes(Origin.POD, vip, 80, protocol) == reached
        assert world.outcomes(Origin.POD, ip.node, node_port, protocol) == masked
    world.delete(first, pods[0])
    assert world.outcomes(Origin.POD, ip.vip2, 80, protocol) == reached
    assert world.outcomes(Origin.POD, ip.node, 30081, protocol) == masked
    assert world.outcomes(Origin.POD, ip.vip, 80, protocol, times=4) == {DROPPED}


def test_node_port_given_up(world: World, ip: Ip, protocol: str) -> None:
    """A Service whose type becomes ClusterIP keeps its address and loses its node port."""
    kind = protocol.upper()
    world.put(service(ports=[f"80:30080/{kind}"], type="NodePort"), slice_of(ip.here, ports=[f"8080/{kind}"]))
    assert world.outcomes(Origin.OUTSIDE, ip.node, 30080, protocol) == at(ip.here, masqueraded=True)
    world.put(service(ports=[f"80/{kind}"]))
    assert Kind.ENDPOINT not in {each.kind for each in world.outcomes(Origin.OUTSIDE, ip.node, 30080, protocol)}
    assert world.outcomes(Origin.POD, ip.vip, 80, protocol) == at(ip.here)


def test_urls_of_the_proxy(world: World) -> None:
    """At kube-proxy's ports /healthz is healthy and has a timestamp, and /proxyMode names the mode."""
    health, mode = world.http("http://127.0.0.1:10256/healthz"), world.http("http://127.0.0.1:10249/proxyMode")
    assert health is not None
    assert (health.status, "lastUpdated" in health.body) == (200, True)
    assert mode is not None
    assert (mode.status, mode.body) == (200, "nftables")


def test_sctp(world: World, ip: Ip) -> None:
    """SCTP is served like TCP, and refused without endpoints."""
    world.put(service(ports=["80/SCTP"]), slice_of(ip.here, ip.away, ports=["8080/SCTP"]))
    assert world.outcomes(Origin.POD, ip.vip, 80, "sctp") == at(ip.here, ip.away)
    assert world.outcomes(Origin.POD, ip.vip, 80, "tcp") == {TCP_RESET}
    world.put(slice_of(ports=["8080/SCTP"], family="IPv6" if ip is IP6 else "IPv4"))
    assert world.outcomes(Origin.POD, ip.vip, 80, "sctp") == {PORT_UNREACHABLE}


def test_several_slices_with_several_ports(world: World, ip: Ip) -> None:
    """A Service uses the endpoints and ports of all its slices, and a slice may be deleted without the other."""
    second = slice_of(ip.here2, ip.away2, ports=["one:200", "two:201"], suffix="2")
    world.put(
        service(ports=["one:80", "two:81"]),
        slice_of(ip.here, ip.away, ports=["one:100"], suffix="1"),
        second,
    )
    first = at(ip.here, ip.away, port=100)
    assert world.outcomes(Origin.POD, ip.vip, 80) == first | at(ip.here2, ip.away2, port=200)
    assert world.outcomes(Origin.POD, ip.vip, 81) == at(ip.here2, ip.away2, port=201)
    world.delete(second)
    assert world.outcomes(Origin.POD, ip.vip, 80) == first
    assert world.outcomes(Origin.POD, ip.vip, 81) == {TCP_RESET}


def test_several_service_cidrs(world: World) -> None:
    """Services in every ServiceCIDR are served, and its unused addresses are dropped as long as it exists."""
    more = service_cidr("more", "10.200.0.0/24", "fd00:200::/112")
    web = service(vips=["10.200.0.10", "fd00:200::10"])
    world.put(more, web, slice_of(IP.here), slice_of(IP6.here))
    assert world.outcomes(Origin.POD, "10.200.0.10") == at(IP.here)
    assert world.outcomes(Origin.POD, "fd00:200::10") == at(IP6.here)
    for address in ("10.200.0.11", "fd00:200::11"):
        assert world.outcomes(Origin.POD, address, times=2) == {DROPPED}
    world.delete(more)
    for address in ("10.200.0.11", "fd00:200::11"):
        assert world.outcomes(Origin.POD, address, times=2) == {UNTOUCHED}
    assert world.outcomes(Origin.POD, "10.200.0.10") == at(IP.here)


def test_source_ranges(world: World, ip: Ip) -> None:
    """Only a load balancer's addresses are restricted to the Service's present source ranges."""

    def balancer(*ranges: str) -> Object:
        return service(type="LoadBalancer", balanced=[ip.balanced], loadBalancerSourceRanges=list(ranges))

    reached = at(ip.here, masqueraded=True)
    world.put(balancer(), slice_of(ip.here))
    assert world.outcomes(Origin.OUTSIDE, ip.balanced) == reached
    world.put(balancer(ip.alone(ip.pod)))
    assert world.outcomes(Origin.OUTSIDE, ip.balanced, times=2) == {DROPPED}
    assert world.outcomes(Origin.POD, ip.balanced) == reached
    world.put(balancer(ip.alone(ip.client)))
    assert world.outcomes(Origin.OUTSIDE, ip.balanced) == reached
    assert world.outcomes(Origin.POD, ip.balanced, times=2) == {DROPPED}
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here)
    world.put(balancer())
    assert world.by_origin(ip.balanced) == everywhere(reached)


def test_dual_stack(world: World) -> None:
    """Each family of a dual-stack Service reaches its own endpoints, whether or not the other family has any."""
    sixth = slice_of(IP6.here)
    world.put(service(), slice_of(IP.here), sixth)
    assert world.by_origin(IP.vip) == seen(
        at(IP.here), at(IP.here), at(IP.here, masqueraded=True), at(IP.here, masqueraded=True)
    )
    assert world.by_origin(IP6.vip) == seen(
        at(IP6.here), at(IP6.here), at(IP6.here, masqueraded=True), at(IP6.here, masqueraded=True)
    )
    world.delete(sixth)
    assert world.outcomes(Origin.POD, IP6.vip) == {TCP_RESET}
    assert world.outcomes(Origin.POD, IP.vip) == at(IP.here)


def test_single_stack(world: World, ip: Ip) -> None:
    """A single-stack Service is served for its family only, until it gets an address of the other family."""
    other = IP if ip is IP6 else IP6
    world.put(service(vips=[ip.vip]), slice_of(IP.here), slice_of(IP6.here))
    assert world.outcomes(Origin.POD, ip.vip) == at(ip.here)
    assert world.outcomes(Origin.POD, other.vip, times=2) == {DROPPED}
    world.put(service(vips=[ip.vip, other.vip]))
    assert world.outcomes(Origin.POD, other.vip) == at(other.here)


def test_becomes_node_port_for_two_protocols(world: World, ip: Ip) -> None:
    """A Service gets a node port for TCP, and then for UDP at the same number, and each is served once added."""
    world.put(service(ports=["tcp:80/TCP"]), slice_of(ip.here, ports=["tcp:8080/TCP", "udp:8080/UDP"]))
    assert Kind.ENDPOINT not in {each.kind for each in world.outcomes(Origin.OUTSIDE, ip.node, 30080)}
    world.put(service(ports=["tcp:80:30080/TCP"], type="NodePort"))
    reached = at(ip.here, masqueraded=True)
    assert world.outcomes(Origin.OUTSIDE, ip.node, 30080, "tcp") == reached
    assert world.outcomes(Origin.OUTSIDE, ip.node, 30080, "udp") != reached
    world.put(service(ports=["tcp:80:30080/TCP", "udp:80:30080/UDP"], type="NodePort"))
    assert world.outcomes(Origin.OUTSIDE, ip.node, 30080, "tcp") == reached
    assert world.outcomes(Origin.OUTSIDE, ip.node, 30080, "udp") == reached


def test_close_wait_timeout(world: World) -> None:
    """The node's conntrack timeout for half-closed TCP connections is an hour, which is kube-proxy's default."""
    path = Path("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait")
    assert world.lab.node.call(path.read_text) == "3600\n"


def test_a_protected_port_is_named_in_log_and_event(world: World) -> None:
    """At the node's own address a load balancer's port 80 is served, and ssh stays the node's, with log and Event."""
    balanced = service(ports=["web:80", "ssh:22"], type="LoadBalancer", balanced=[IP.node])
    world.put(balanced, slice_of(IP.here, ports=["web:8080", "ssh:8080"]))
    assert world.outcomes(Origin.OUTSIDE, IP.node, 80) == at(IP.here, masqueraded=True)
    assert world.outcomes(Origin.OUTSIDE, IP.node, 22, times=2) == {NODE}
    why = "the port is protected on the node's own addresses (nftproxy.protectedPorts)"
    line = f"shop/web does not get {IP.node}:22/TCP, and is served without it: {why}"
    eventually(lambda: line in world.agent.log(), True)
    note = f"NFT303: {IP.node}:22/TCP of port ssh is not served: {why}"
    eventually(lambda: note in [each["note"] for each in world.server.objects("Event")], True)


def test_a_service_beyond_a_limit_harms_nobody(world: World) -> None:
    """A Service with 400 ports and 400 external IPs is quarantined, with log and Event, and another Service works."""
    addresses = [f"203.{each // 250}.{each % 250}.9" for each in range(400)]
    huge = service("other", ports=[f"p{port}:{port}" for port in range(1, 401)], externalIPs=addresses)
    world.put(huge, service(), slice_of(IP.here))
    assert world.outcomes(Origin.POD, IP.vip) == at(IP.here)
    why = "its addresses and ports come to 160800 fronts, and 10000 are allowed"
    eventually(lambda: f"Service shop/other is quarantined: {why}" in world.agent.log(), True)
    eventually(lambda: f"NFT307: not served: {why}" in [each["note"] for each in world.server.objects("Event")], True)
    world.put(service("other", ports=["80"]), slice_of(IP.away, name="other"))
    assert world.outcomes(Origin.POD, IP.vip2) == at(IP.away)
