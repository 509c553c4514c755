"""UDP flows that continue while their servers change (test/e2e/network/conntrack.go).

A client keeps its port, so conntrack sees all its packets as the same flow.  Each check below sends a packet.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from nftproxy_conformance.lab import DROPPED, PORT_UNREACHABLE, Kind, Origin, Outcome, endpoint

from tests.support.cluster import IP, IP6, Ip
from tests.system.e2e.agent import World, eventually
from tests.system.e2e.objects import Object, service, slice_of

_sports = itertools.count(3000)

each_way = pytest.mark.parametrize(
    ("origin", "is_node_port"),
    [(Origin.POD, False), (Origin.NODE, False), (Origin.OUTSIDE, True), (Origin.POD, True)],
    ids=["pod-ClusterIP", "node-ClusterIP", "outside-NodePort", "pod-NodePort"],
)


class Client:
    """A client that keeps its port, and the outcomes of its packets."""

    def __init__(self, world: World, origin: Origin, address: str, port: int, protocol: str = "udp") -> None:
        self._world, self._origin, self._address, self._port = world, origin, address, port
        self._protocol = protocol
        self._sport = next(_sports)
        self.masqueraded = origin is Origin.NODE or port != 53

    def send(self) -> Outcome:
        """Send a packet, and return its outcome."""
        return self._world.connect(self._origin, self._address, self._port, self._protocol, sport=self._sport)[0]

    def reaches(self, address: str, port: int = 5353) -> None:
        """Wait until the flow reaches an endpoint, and check that it stays there."""
        wanted = endpoint(address, port, masqueraded=self.masqueraded)
        eventually(self.send, wanted)
        assert {self.send() for _ in range(5)} == {wanted}

    def is_refused(self) -> None:
        """Wait until the flow is refused."""
        eventually(self.send, PORT_UNREACHABLE)


def dns(node_port: int = 30053, **tweaks: Any) -> Object:
    """A Service for UDP."""
    return service(ports=[f"53:{node_port}/UDP"], **({"type": "NodePort"} | tweaks))


def pods(ip: Ip, *addresses: str, port: int = 5353) -> Object:
    """The endpoints of the Service."""
    return slice_of(*addresses, ports=[f"{port}/UDP"], family="IPv6" if ip is IP6 else "IPv4")


def client_of(world: World, ip: Ip, origin: Origin, is_node_port: bool) -> Client:
    """A client of the Service."""
    return Client(world, origin, *((ip.node, 30053) if is_node_port else (ip.vip, 53)))


@each_way
def test_server_pod_cycles(world: World, ip: Ip, origin: Origin, is_node_port: bool) -> None:
    """A flow follows its Service from server to server, with and without a gap between the servers."""
    world.put(dns(), pods(ip, f"{ip.here}@node-a"))
    client = client_of(world, ip, origin, is_node_port)
    client.reaches(ip.here)
    world.put(pods(ip, f"{ip.away}@node-b"))
    client.reaches(ip.away)
    world.put(pods(ip))
    client.is_refused()
    world.put(pods(ip, f"{ip.here2}@node-a"))
    client.reaches(ip.here2)


@each_way
def test_endpoints_become_ready(world: World, ip: Ip, origin: Origin, is_node_port: bool) -> None:
    """A flow that began before any endpoint was ready reaches the first ready endpoint."""
    world.put(dns(), pods(ip, f"{ip.here}@node-a unready"))
    client = client_of(world, ip, origin, is_node_port)
    client.is_refused()
    world.put(pods(ip, f"{ip.here}@node-a"))
    client.reaches(ip.here)


def test_flow_began_before_the_service(world: World, ip: Ip) -> None:
    """A flow to a free node port reaches the Service that later gets the node port."""
    client = client_of(world, ip, Origin.OUTSIDE, is_node_port=True)
    assert client.send().kind is not Kind.ENDPOINT
    world.put(dns(), pods(ip, f"{ip.here}@node-a"))
    client.reaches(ip.here)


@each_way
def test_target_port_changes(world: World, ip: Ip, origin: Origin, is_node_port: bool) -> None:
    """A flow goes to the servers' present port."""
    world.put(dns(), pods(ip, f"{ip.here}@node-a"))
    client = client_of(world, ip, origin, is_node_port)
    client.reaches(ip.here)
    world.put(pods(ip, f"{ip.here}@node-a", port=5454))
    client.reaches(ip.here, 5454)


def test_fewer_servers(world: World, ip: Ip) -> None:
    """When a server is replaced, the flows of the remaining server stay, and all other flows move."""
    world.put(dns(), pods(ip, ip.here, ip.away))
    clients = [client_of(world, ip, Origin.POD, is_node_port=False) for _ in range(16)]
    before = [client.send() for client in clients]
    assert set(before) == {endpoint(ip.here, 5353), endpoint(ip.away, 5353)}
    world.put(pods(ip, ip.away, ip.away2))
    after_wanted = {endpoint(ip.away, 5353), endpoint(ip.away2, 5353)}
    eventually(lambda: {client.send() for client in clients} <= after_wanted, wanted=True)
    for client, then in zip(clients, before, strict=True):
        if then == endpoint(ip.away, 5353):
            assert client.send() == then


def test_cluster_ip_changes(world: World, ip: Ip) -> None:
    """A flow to a Service's former address ends, and a flow to its new address works."""
    world.put(dns(), pods(ip, f"{ip.here}@node-a"))
    client = client_of(world, ip, Origin.POD, is_node_port=False)
    client.reaches(ip.here)
    world.put(dns(vips=[ip.vip2]))
    eventually(client.send, DROPPED)
    Client(world, Origin.POD, ip.vip2, 53).reaches(ip.here)


def test_node_port_changes(world: World, ip: Ip) -> None:
    """A flow to a Service's former node port ends, and a flow to its new node port works."""
    world.put(dns(), pods(ip, f"{ip.here}@node-a"))
    client = client_of(world, ip, Origin.OUTSIDE, is_node_port=True)
    client.reaches(ip.here)
    world.put(dns(node_port=30054))
    eventually(lambda: client.send().kind is Kind.ENDPOINT, wanted=False)
    Client(world, Origin.OUTSIDE, ip.node, 30054).reaches(ip.here)


def test_service_goes(world: World, ip: Ip) -> None:
    """A flow to a Service that is deleted ends."""
    web = dns()
    world.put(web, pods(ip, f"{ip.here}@node-a"))
    client = client_of(world, ip, Origin.POD, is_node_port=False)
    client.reaches(ip.here)
    world.delete(web)
    eventually(client.send, DROPPED)


@pytest.mark.parametrize("ip", [IP, pytest.param(IP6, marks=pytest.mark.slow)], ids=["ip", "ip6"])
def test_stale_at_start(world: World, ip: Ip) -> None:
    """A flow whose server went while the agent was stopped moves once the agent runs again."""
    world.put(dns(), pods(ip, f"{ip.here}@node-a"))
    client = client_of(world, ip, Origin.POD, is_node_port=False)
    client.reaches(ip.here)
    world.agent.stop()
    world.server.put(pods(ip, f"{ip.away}@node-b"))
    client.reaches(ip.here)
    world.agent.start()
    client.reaches(ip.away)


@pytest.mark.parametrize("policy", ["Cluster", "Local"])
def test_server_pod_cycles_behind_a_load_balancer(world: World, ip: Ip, policy: str) -> None:
    """Flows to a load balancer's address and to an external IP follow their Service, too."""
    spec: Object = {"type": "LoadBalancer", "externalIPs": [ip.external], "externalTrafficPolicy": policy}
    world.put(dns(balanced=[ip.balanced], **spec), pods(ip, f"{ip.here}@node-a"))
    clients = [Client(world, Origin.OUTSIDE, address, 53) for address in (ip.balanced, ip.external)]
    for client in clients:
        client.masqueraded = policy == "Cluster"
        client.reaches(ip.here)
    world.put(pods(ip))
    for client in clients:
        client.is_refused()
    world.put(pods(ip, f"{ip.here2}@node-a"))
    for client in clients:
        client.reaches(ip.here2)


def test_policy_becomes_local(world: World, ip: Ip) -> None:
    """Flows at another node's pod move to this node's once the policy is Local, or end if it has none."""
    both = pods(ip, f"{ip.here}@node-a", f"{ip.away}@node-b")
    world.put(dns(), pods(ip, f"{ip.away}@node-b"))
    outside, inside = (client_of(world, ip, Origin.OUTSIDE, True), client_of(world, ip, Origin.POD, False))
    for client in (outside, inside):
        client.reaches(ip.away)
    world.put(both)
    for client in (outside, inside):
        client.reaches(ip.away)
    local: Object = {"externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"}
    world.put(dns(**local))
    outside.masqueraded = False
    for client in (outside, inside):
        client.reaches(ip.here)
    world.put(pods(ip, f"{ip.away}@node-b"))
    for client in (outside, inside):
        eventually(client.send, DROPPED)


def test_associations_leave_a_pod_that_is_gone(world: World, ip: Ip) -> None:
    """An SCTP client that connects anew from its port stays at its pod while that is in the slices, and no longer."""
    family = "IPv6" if ip is IP6 else "IPv4"
    world.put(service(ports=["53/SCTP"]), slice_of(f"{ip.here}@node-a", ports=["5353/SCTP"], family=family))
    client = Client(world, Origin.POD, ip.vip, 53, "sctp")
    client.reaches(ip.here)
    unready = slice_of(f"{ip.here}@node-a unready", f"{ip.away}@node-b", ports=["5353/SCTP"], family=family)
    world.put(unready)
    client.reaches(ip.here)
    world.put(slice_of(f"{ip.away}@node-b", ports=["5353/SCTP"], family=family))
    client.reaches(ip.away)


RESTRICTIONS: dict[str, tuple[dict[str, str], bool]] = {
    "denied": ({"nftproxy.dev/denied-source-ranges": "0.0.0.0/1,128.0.0.0/1,::/1,8000::/1"}, False),
    "guarded": ({"nftproxy.dev/source-ranges-for": "node-ports,external-ips"}, True),
}


@pytest.mark.parametrize("restriction", RESTRICTIONS)
@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_a_new_restriction_stops_flows_without_an_answer(world: World, ip: Ip, protocol: str, restriction: str) -> None:
    """A one-way sender, and a client that repeats its first packet, are dropped at all fronts that are restricted."""
    annotations, has_ranges = RESTRICTIONS[restriction]
    kind: Object = {"type": "LoadBalancer", "externalIPs": [ip.external]}
    given = service(ports=[f"53:30053/{protocol.upper()}"], balanced=[ip.balanced], **kind)
    family = "IPv6" if ip is IP6 else "IPv4"
    world.put(given, slice_of(f"{ip.here}@node-a", ports=[f"5353/{protocol.upper()}"], family=family))
    fronts = [(ip.balanced, 53), (ip.external, 53), (ip.node, 30053), *([] if has_ranges else [(ip.vip, 53)])]
    clients = [Client(world, Origin.OUTSIDE, *front, protocol) for front in fronts]
    for client in clients:
        client.masqueraded = True
        client.reaches(ip.here)
    if has_ranges:
        given["spec"]["loadBalancerSourceRanges"] = ["192.0.2.0/24", "2001:db8:9::/64"]
    given["metadata"]["annotations"] = annotations
    world.put(given)
    for client in clients:
        eventually(client.send, DROPPED)
