"""Packets that went through our rules: clients with a stale flow move to another endpoint, and other clients stay."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest
from nftproxy_conformance.lab import PORT_UNREACHABLE, UNTOUCHED, Lab, Origin, Outcome, RealNetwork, obstacle

from nftproxy.kernel.conntrack.sweeps import SweepQueue
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import EndpointSlice, Service
from tests.support.cluster import IP, Cluster, Ip
from tests.support.factories import IPV4, IPV6, pipeline, service, slice_of


def dns(ip: Ip, *, ports: str = "dns:53:30053/udp", vip: str = "", **tweaks: Any) -> Service:
    """A Service with a ClusterIP, a load balancer's address and a node port."""
    fields = {"type": "LoadBalancer", "load_balancer_ips": [ip.balanced], "ports": [ports]} | tweaks
    return service("kube/dns", cluster_ips=[vip or ip.vip], **fields)


def pods(ip: Ip, *addresses: str, port: int = 5353) -> EndpointSlice:
    """These pods, all elsewhere, as endpoints of `dns`."""
    texts = [f"{address}@node-b" for address in addresses]
    return slice_of("kube/dns", texts, ports=[f"dns:{port}/udp"], family=IPV6 if ip.is_ipv6 else IPV4)


def to(address: str, port: int = 5353) -> Outcome:
    """The outcome of a packet that reached a pod, with its source hidden or not."""
    return Outcome(UNTOUCHED.kind.ENDPOINT, (address, port))  # type: ignore[arg-type]  # equal to the lab's Address


class Client:
    """A client that keeps its source port, and so its flow, while the cluster around it changes."""

    def __init__(self, cluster: Cluster, ip: Ip, address: str, port: int, *, sport: int = 5000, protocol: str = "udp"):
        self._cluster = cluster
        self._target = (Origin.OUTSIDE, address, port, protocol)
        self._flow = {"source": ip.client, "sport": sport}

    def send(self) -> Outcome:
        """Send another packet, and return its outcome."""
        outcome = self._cluster.lab.connect(*self._target, **self._flow)  # type: ignore[arg-type]
        return to(*outcome.endpoint) if outcome.endpoint else outcome


def sweep(cluster: Cluster) -> int:
    """Sweep the fronts that are due, as the agent does after each transaction, and return the number of deleted
    entries.
    """
    with closing(SweepQueue()) as swept:
        return cluster.lab.node.call(lambda: asyncio.run(swept.sweep(cluster.pipeline.flows.pop_due())))


def fronts(ip: Ip) -> dict[str, tuple[str, int]]:
    """Every kind of address at which `dns` is reached."""
    return {"ClusterIP": (ip.vip, 53), "load balancer": (ip.balanced, 53), "node port": (ip.node, 30053)}


def served(lab: Lab, ip: Ip, front: str) -> tuple[Cluster, Client]:
    """A cluster in which `dns` has a single pod, and a client that has just reached it."""
    cluster = Cluster(lab, dns(ip), pods(ip, ip.away))
    client = Client(cluster, ip, *fronts(ip)[front])
    sweep(cluster)
    assert client.send() == to(ip.away)
    return cluster, client


each_front = pytest.mark.parametrize("front", fronts(IP))


@each_front
def test_a_client_follows_its_service_through_nothing(lab: Lab, ip: Ip, front: str) -> None:
    """When the last endpoint goes the client is refused, and when another comes the client reaches that."""
    cluster, client = served(lab, ip, front)
    cluster.put(pods(ip))
    assert client.send() == to(ip.away), "rules alone don't move a flow"
    assert sweep(cluster) == 1
    assert client.send() == PORT_UNREACHABLE
    cluster.put(pods(ip, ip.away2))
    sweep(cluster)
    assert client.send() == to(ip.away2)


@each_front
def test_only_the_clients_of_a_lost_endpoint_move(lab: Lab, ip: Ip, front: str) -> None:
    """When an endpoint of two goes, its clients move to the other endpoint, whose clients stay."""
    cluster = Cluster(lab, dns(ip), pods(ip, ip.away, ip.away2))
    clients = [Client(cluster, ip, *fronts(ip)[front], sport=sport) for sport in range(5000, 5020)]
    sweep(cluster)
    lost = sum(client.send() == to(ip.away) for client in clients)
    assert 0 < lost < 20, "chance, once in half a million"
    cluster.put(pods(ip, ip.away2, "fd00:1:0:3::4" if ip.is_ipv6 else "10.1.3.4"))
    assert sweep(cluster) == lost
    assert sweep(cluster) == 0
    cluster.put(pods(ip, ip.away2))
    sweep(cluster)
    assert {client.send() for client in clients} == {to(ip.away2)}


@each_front
def test_a_changed_target_port_moves_the_client(lab: Lab, ip: Ip, front: str) -> None:
    """A pod that serves at another port now gets its clients there."""
    cluster, client = served(lab, ip, front)
    cluster.put(pods(ip, ip.away, port=5354))
    assert sweep(cluster) == 1
    assert client.send() == to(ip.away, 5354)


def test_a_client_with_a_changed_address_is_let_go(lab: Lab, ip: Ip) -> None:
    """The flow to a former address or node port of a Service ends, and a flow to its new address begins."""
    cluster = Cluster(lab, dns(ip), pods(ip, ip.away))
    sweep(cluster)
    old = [Client(cluster, ip, *front) for front in ((ip.vip, 53), (ip.node, 30053))]
    new = [Client(cluster, ip, *front, sport=5001) for front in ((ip.vip2, 53), (ip.node, 30054))]
    assert [client.send() for client in old] == [to(ip.away)] * 2
    assert to(ip.away) not in [client.send() for client in new]
    cluster.put(dns(ip, vip=ip.vip2, ports="dns:53:30054/udp"))
    assert sweep(cluster) == 4, "two that were translated, two that were not"
    assert to(ip.away) not in [client.send() for client in old]
    assert [client.send() for client in new] == [to(ip.away)] * 2


@each_front
def test_a_client_that_came_first_gets_its_service(lab: Lab, ip: Ip, front: str) -> None:
    """A flow that was made before the Service existed, and so went elsewhere, goes to the Service's first endpoint."""
    cluster = Cluster(lab)
    client = Client(cluster, ip, *fronts(ip)[front])
    sweep(cluster)
    assert client.send() != to(ip.away)
    cluster.put(dns(ip))
    assert sweep(cluster) == 0
    assert client.send() == PORT_UNREACHABLE
    cluster.put(pods(ip, ip.away))
    assert sweep(cluster) == 1
    assert client.send() == to(ip.away)


@each_front
def test_a_removed_service_lets_its_clients_go(lab: Lab, ip: Ip, front: str) -> None:
    """No packet is translated for a Service that is no more."""
    cluster, client = served(lab, ip, front)
    cluster.follow(Removed(Service, dns(ip).key))
    assert sweep(cluster) == 1
    assert client.send() != to(ip.away)


def test_a_restart_ends_stale_flows_only(lab: Lab, ip: Ip) -> None:
    """At the start, flows to endpoints that went meanwhile are deleted, of Services without endpoints too.  Other flows
    stay.
    """
    before = Cluster(lab, dns(ip), pods(ip, ip.away, ip.away2), *other_service(ip, ip.here))
    clients = [Client(before, ip, ip.vip, 53, sport=sport) for sport in range(5000, 5020)]
    other = Client(before, ip, ip.vip2, 514)
    sent = [client.send() for client in clients]
    assert other.send() == to(ip.here, 514)
    lab.load("flush ruleset\n")
    after = Cluster(lab, dns(ip), pods(ip, ip.away2), *other_service(ip))
    assert sweep(after) == sent.count(to(ip.away)) + 1
    assert {client.send() for client in clients} == {to(ip.away2)}
    assert other.send() == PORT_UNREACHABLE


def other_service(ip: Ip, *addresses: str) -> tuple[Service, EndpointSlice]:
    """Another Service and its pods."""
    name, family = "kube/log", IPV6 if ip.is_ipv6 else IPV4
    made = service(name, cluster_ips=[ip.vip2], ports=["log:514/udp"])
    return made, slice_of(name, addresses, ports=["log:514/udp"], family=family)


@pytest.mark.parametrize("protocol", ["tcp", "sctp"])
def test_of_connections_only_associations_leave_a_pod_that_is_gone(lab: Lab, ip: Ip, protocol: str) -> None:
    """A TCP connection to a pod that is gone is left to its own end.  SCTP and UDP aren't."""
    ports = ["dns:53/udp", f"other:53/{protocol}"]
    both = service("kube/dns", cluster_ips=[ip.vip], ports=ports)
    family = IPV6 if ip.is_ipv6 else IPV4
    many = slice_of("kube/dns", [ip.away], ports=["dns:5353/udp", f"other:5353/{protocol}"], family=family)
    cluster = Cluster(lab, both, many)
    clients = [Client(cluster, ip, ip.vip, 53, protocol=each) for each in ("udp", protocol)]
    sweep(cluster)
    assert [client.send() for client in clients] == [to(ip.away)] * 2
    cluster.follow(Removed(EndpointSlice, many.key))
    assert sweep(cluster) == (1 if protocol == "tcp" else 2)
    other = to(ip.away) if protocol == "tcp" else PORT_UNREACHABLE
    assert [client.send() for client in clients] == [PORT_UNREACHABLE, other]


def test_a_draining_pod_keeps_its_clients(lab: Lab, ip: Ip) -> None:
    """A pod that serves while it terminates keeps its clients, though new clients go elsewhere, until it ends."""
    family = IPV6 if ip.is_ipv6 else IPV4
    cluster = Cluster(lab, dns(ip), pods(ip, ip.away))
    old, new = (Client(cluster, ip, ip.vip, 53, sport=sport) for sport in (5000, 5001))
    sweep(cluster)
    assert old.send() == to(ip.away)
    draining = slice_of("kube/dns", [f"{ip.away} draining", ip.away2], ports=["dns:5353/udp"], family=family)
    cluster.put(draining)
    assert sweep(cluster) == 0
    assert (old.send(), new.send()) == (to(ip.away), to(ip.away2))
    cluster.put(pods(ip, ip.away2))
    assert cluster.pipeline.ingest([]).text == ""
    assert sweep(cluster) == 1
    assert old.send() == to(ip.away2)


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_a_real_client_follows_real_pods() -> None:
    """An open socket reaches successive pods, through a Service that for a moment has no pod."""
    with RealNetwork() as network:
        node, client = network.node(), network.host("client", "198.51.100.7", "2001:db8:100::7")
        for name, number in (("first", 4), ("second", 5)):
            node.pod(name, f"10.1.0.{number}", f"fd00:1::{number}").serve(5353, "udp")
        made = pipeline(dns(IP), slice_of("kube/dns", ["10.1.0.4@node-a"], ports=["dns:5353/udp"]))
        node.load(made.full_transaction({}).text)
        swept = SweepQueue()

        def follow(*endpoints: str) -> None:
            moved = slice_of("kube/dns", endpoints, ports=["dns:5353/udp"])
            node.load(made.ingest([Put(moved)]).text)
            node.node.call(lambda: asyncio.run(swept.sweep(made.flows.pop_due())))

        with client.talk(IP.balanced, 53, "udp", sport=5000) as conversation:
            follow("10.1.0.4@node-a")
            assert conversation.ask().name == "first"
            follow()
            with pytest.raises(ConnectionRefusedError):
                conversation.ask()
            follow("10.1.0.5@node-a")
            assert conversation.ask().name == "second"
        swept.close()
