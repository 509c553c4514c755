"""Services of type LoadBalancer as they change (test/e2e/network/loadbalancer.go)."""

from __future__ import annotations

from nftproxy_conformance.lab import DROPPED, UNTOUCHED, Kind, Origin, Outcome

from tests.support.cluster import Ip, at
from tests.system.e2e.agent import World
from tests.system.e2e.objects import service, slice_of


def outcome(world: World, address: str, port: int, protocol: str) -> set[Outcome]:
    """The outcomes of eight connections from outside."""
    return world.outcomes(Origin.OUTSIDE, address, port, protocol, times=8)


def test_type_and_ports_change(world: World, ip: Ip, protocol: str) -> None:
    """When a Service's type and ports change, only its present addresses and ports are served."""
    kind, masked = protocol.upper(), at(ip.here, masqueraded=True)

    def reached(port: int, node_port: int, *, balanced: bool = True) -> list[bool]:
        """Whether the load balancer's address, the node port and the ClusterIP reach the pod."""
        places = [(ip.balanced, port)] * balanced + [(ip.node, node_port)] * bool(node_port)
        assert world.outcomes(Origin.POD, ip.vip, port, protocol, times=8) == at(ip.here)
        return [outcome(world, address, at_port, protocol) == masked for address, at_port in places]

    world.put(service(ports=[f"80/{kind}"]), slice_of(ip.here, ports=[f"8080/{kind}"]))
    assert reached(80, 0, balanced=False) == []
    world.put(service(ports=[f"80:30080/{kind}"], type="NodePort"))
    assert reached(80, 30080, balanced=False) == [True]
    assert outcome(world, ip.balanced, 80, protocol) == {UNTOUCHED}
    world.put(service(ports=[f"80:30080/{kind}"], type="LoadBalancer", balanced=[ip.balanced]))
    assert reached(80, 30080) == [True, True]
    world.put(service(ports=[f"80:30081/{kind}"], type="LoadBalancer", balanced=[ip.balanced]))
    assert reached(80, 30081) == [True, True]
    assert Kind.ENDPOINT not in {each.kind for each in outcome(world, ip.node, 30080, protocol)}
    world.put(service(ports=[f"81:30081/{kind}"], type="LoadBalancer", balanced=[ip.balanced]))
    assert reached(81, 30081) == [True, True]
    assert outcome(world, ip.balanced, 80, protocol) == {UNTOUCHED}
    world.put(service(ports=[f"81/{kind}"]))
    assert reached(81, 0, balanced=False) == []
    assert outcome(world, ip.balanced, 81, protocol) == {UNTOUCHED}
    assert Kind.ENDPOINT not in {each.kind for each in outcome(world, ip.node, 30081, protocol)}


def test_without_node_ports(world: World, ip: Ip) -> None:
    """A load balancer's address is served without a node port, and the node port once the Service has it."""
    masked = at(ip.here, masqueraded=True)
    world.put(
        service(type="LoadBalancer", balanced=[ip.balanced], allocateLoadBalancerNodePorts=False), slice_of(ip.here)
    )
    assert outcome(world, ip.balanced, 80, "tcp") == masked
    world.put(service(ports=["80:30080"], type="LoadBalancer", balanced=[ip.balanced]))
    assert outcome(world, ip.balanced, 80, "tcp") == masked
    assert outcome(world, ip.node, 30080, "tcp") == masked


def test_same_port_inside(world: World, ip: Ip) -> None:
    """From inside, TCP and UDP at the same port of a load balancer's Service reach their own endpoints."""
    world.put(
        service(ports=["tcp:80/TCP", "udp:80/UDP"], type="LoadBalancer", balanced=[ip.balanced]),
        slice_of(ip.here, ports=["tcp:8080/TCP"], suffix="1"),
        slice_of(ip.away, ports=["udp:8081/UDP"], suffix="2"),
    )
    for protocol, address, port in (("tcp", ip.here, 8080), ("udp", ip.away, 8081)):
        assert world.outcomes(Origin.POD, ip.vip, 80, protocol, times=8) == at(address, port=port)
        masked = at(address, port=port, masqueraded=True)
        assert world.outcomes(Origin.POD, ip.balanced, 80, protocol, times=8) == masked


def test_address_given_up(world: World, ip: Ip) -> None:
    """An address that leaves the status of a Service is no longer served, but the ClusterIP still is."""
    world.put(service(type="LoadBalancer", balanced=[ip.balanced]), slice_of(ip.here))
    assert outcome(world, ip.balanced, 80, "tcp") == at(ip.here, masqueraded=True)
    world.put(service(type="LoadBalancer"))
    assert outcome(world, ip.balanced, 80, "tcp") == {UNTOUCHED}
    assert world.outcomes(Origin.POD, ip.vip, times=8) == at(ip.here)
    assert world.outcomes(Origin.POD, ip.unallocated, times=2) == {DROPPED}
