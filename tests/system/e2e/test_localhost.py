"""Node ports at localhost: an agent's process, real pods on two nodes, and clients on the node itself."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Namespace, Origin, RealHost, RealNetwork, RealNode, obstacle
from nftproxy_conformance.lab.topology import SERVICE_CIDR, SERVICE_CIDR6

from tests.support.cluster import IP, IP6, Ip, at
from tests.system.e2e.agent import Agent, World, ask_http, eventually
from tests.system.e2e.objects import Object, node, service, service_cidr, slice_of
from tests.system.e2e.test_real_nodes import address_of, anyone, who

NODE_PORT, BEACON_PORT, BOTH = 30080, 30090, {"web-0", "web-1"}
CONFIG = "nodePortAddresses: [primary, localhost]\n"
_numbers = itertools.count(8081)


class Node(NamedTuple):
    """A node whose agent serves localhost, its pod web-0, the pod web-1 on another node, and the API server."""

    machine: RealNode
    pods: list[RealHost]
    server: ApiServer
    agent: Agent

    def put(self, *objects: Object) -> None:
        """Create or change objects, and wait until the node serves them."""
        self.server.put(*objects)
        self.settle()

    def settle(self) -> None:
        """Wait until the node has all Services and slices, by a beacon as in agent.py."""
        name = f"port-{next(_numbers)}"
        beacon = service("beacon", vips=["10.96.255.1"], ports=[f"{name}:80:{BEACON_PORT}"], type="NodePort")
        place = next(_beacon_places)
        self.server.put(beacon, slice_of(f"{self.pods[place].address}@x", name="beacon", ports=[f"{name}:8080"]))
        eventually(who(self.machine, "127.0.0.1", BEACON_PORT), f"web-{place}")

    def slices(self, *numbers: int, condition: str = "ready") -> list[Object]:
        """Slices of both families with the pods of these numbers."""
        return [
            slice_of(
                *(f"{address_of(self.pods[n], ip)}@{('node-a', 'node-b')[n]} {condition}" for n in numbers),
                family="IPv6" if ip.is_ipv6 else "IPv4",
                ports=["tcp:8080/TCP", "udp:8080/UDP"],
            )
            for ip in (IP, IP6)
        ]

    def metric(self, name: str, ip: Ip) -> float:
        """A sample of the metrics of localhost's node ports, by its name and family."""
        answer = ask_http(self.machine.namespace, "http://127.0.0.1:10249/metrics")
        sample = f'kubeproxy_nftables_localhost_nodeport_{name}{{ip_family="{ip_family(ip)}"}} '
        (value,) = [line for line in answer.body.splitlines() if line.startswith(sample)] if answer else ["nan"]
        return float(value.rpartition(" ")[2])

    def failures(self, ip: Ip) -> float:
        """The number of failures to listen on a node port at localhost."""
        return self.metric("listener_creation_failures_total", ip)


_beacon_places = itertools.cycle([0, 1])


def web(**spec: Any) -> Object:
    """A Service with a node port, for TCP and UDP."""
    return service(ports=[f"tcp:80:{NODE_PORT}/TCP", f"udp:80:{NODE_PORT}/UDP"], type="NodePort", **spec)


def localhost(ip: Ip) -> str:
    """The localhost address of the family."""
    return "::1" if ip.is_ipv6 else "127.0.0.1"


def look(it: Node, ip: Ip, protocol: str = "tcp") -> Callable[[], str]:
    """A function that returns the name of the pod that answers at localhost."""
    return who(it.machine, localhost(ip), NODE_PORT, protocol)


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Two nodes.  The first node has an agent and the API server."""
    if why := obstacle():
        pytest.skip(why)
    with ExitStack() as stack:
        network = stack.enter_context(RealNetwork())
        machine, other = network.node("node-a"), network.node("node-b")
        pods = [machine.pod("web-0", "10.1.0.4", "fd00:1::4"), other.pod("web-1", "10.1.1.4", "fd00:1:0:1::4")]
        for pod in pods:
            for protocol in ("tcp", "udp"):
                pod.serve(8080, protocol)
        server = stack.enter_context(ApiServer(tls=True, authenticate=True, make_socket=machine.namespace.socket))
        server.put(service_cidr("kubernetes", SERVICE_CIDR, SERVICE_CIDR6))
        server.put(node("node-a", machine.address, machine.address6))
        agent = Agent(machine.namespace, "node-a", server, tmp_path_factory.mktemp("localhost"), CONFIG)
        agent.start()
        yield Node(machine, pods, server, agent)
        agent.check_log()


@pytest.fixture
def it(shared_node: Node) -> Node:
    """A node in a cluster without Services."""
    for kind in ("Service", "EndpointSlice"):
        for each in shared_node.server.objects(kind):
            shared_node.server.delete(kind, each["metadata"]["namespace"], each["metadata"]["name"])
    shared_node.settle()
    return shared_node


def test_pods_here_and_elsewhere_are_reached(it: Node, ip: Ip) -> None:
    """Every endpoint serves localhost and sees the node's address, and rules serve the node's own address as ever."""
    it.put(web(), *it.slices(0, 1))
    assert anyone(it.machine, localhost(ip), NODE_PORT) == BOTH
    assert anyone(it.machine, address_of(it.machine, ip), NODE_PORT) == BOTH
    it.put(*it.slices(1))
    assert it.machine.ask(localhost(ip), NODE_PORT).client.ip == address_of(it.machine, ip)
    assert it.metric("listeners", ip) > 0


def ip_family(ip: Ip) -> str:
    """The Kubernetes API's name of the family."""
    return "IPv6" if ip.is_ipv6 else "IPv4"


def test_limits_are_not_for_localhost(it: Node, ip: Ip) -> None:
    """Limits on connections and sources apply at the node's own address, and not at localhost."""
    limited = web()
    limited["metadata"]["annotations"] = {
        "nftproxy.dev/client-connections": "1",
        "nftproxy.dev/denied-source-ranges": "127.0.0.0/8,::1/128",
    }
    it.put(limited, *it.slices(0))
    with ExitStack() as stack:
        for place, most in ((localhost(ip), 4), (address_of(it.machine, ip), 1)):
            for _ in range(most):
                conversation = stack.enter_context(it.machine.talk(place, NODE_PORT))
                assert conversation.ask().name == "web-0"
        with pytest.raises(TimeoutError):
            it.machine.ask(address_of(it.machine, ip), NODE_PORT, timeout=0.5)
        assert it.machine.ask(localhost(ip), NODE_PORT).name == "web-0"


def test_policy_local(it: Node, ip: Ip) -> None:
    """With externalTrafficPolicy Local only the node's own endpoints serve localhost, which refuses without any."""
    it.put(web(externalTrafficPolicy="Local"), *it.slices(0, 1))
    assert anyone(it.machine, localhost(ip), NODE_PORT) == {"web-0"}
    it.put(*it.slices(1))
    assert look(it, ip)() == "ConnectionRefusedError"


def test_affinity(it: Node, ip: Ip) -> None:
    """With session affinity all clients at localhost reach the same endpoint, and another once it has gone."""
    it.put(web(sessionAffinity="ClientIP"), *it.slices(0, 1))
    (first,) = anyone(it.machine, localhost(ip), NODE_PORT)
    number = int(first[-1])
    it.put(*it.slices(1 - number))
    assert anyone(it.machine, localhost(ip), NODE_PORT) == BOTH - {first}


def test_only_tcp(it: Node, ip: Ip) -> None:
    """UDP is refused at localhost, and served at the node's own address."""
    it.put(web(), *it.slices(1))
    assert look(it, ip)() == "web-1"
    assert look(it, ip, "udp")() == "ConnectionRefusedError"
    assert who(it.machine, address_of(it.machine, ip), NODE_PORT, "udp")() == "web-1"


def test_endpoints_come_and_go(it: Node, ip: Ip) -> None:
    """New connections follow the endpoints, terminating endpoints included, while an established connection stays."""
    it.put(web(), *it.slices(0))
    with it.machine.talk(localhost(ip), NODE_PORT) as conversation:
        assert conversation.ask().name == "web-0"
        for slices, seen in (
            (it.slices(1), "web-1"),
            (it.slices(0, condition="draining"), "web-0"),
            (it.slices(0, condition="stopped"), "ConnectionRefusedError"),
            (it.slices(1), "web-1"),
        ):
            it.put(*slices)
            assert look(it, ip)() == seen
            assert conversation.ask().name == "web-0"
        it.server.delete("Service", "shop", "web")
        it.settle()
        assert look(it, ip)() == "ConnectionRefusedError"
        assert conversation.ask().name == "web-0"


def test_a_pod_that_hangs_up(it: Node, ip: Ip) -> None:
    """When a pod's server closes a connection, its client at localhost sees the connection end."""
    it.put(web(), *it.slices(1))
    servers = it.pods[1].serve(9090)
    it.put(slice_of(f"{address_of(it.pods[1], ip)}@node-b", family=ip_family(ip), ports=["tcp:9090/TCP"]))
    with it.machine.talk(localhost(ip), NODE_PORT) as conversation:
        assert conversation.ask().name == "web-1"
        for server in servers:
            server.close()
        with pytest.raises(ConnectionError):
            conversation.ask()


def test_a_port_that_another_program_has(it: Node, ip: Ip) -> None:
    """A taken port is named in the log and in an Event on the Service, and is served once it is free."""
    family = socket.AF_INET6 if ip.is_ipv6 else socket.AF_INET
    host = f"[{localhost(ip)}]" if ip.is_ipv6 else localhost(ip)
    with it.machine.namespace.socket(family, socket.SOCK_STREAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((localhost(ip), NODE_PORT))
        other.listen()
        before = _times_reported(it), it.failures(ip)
        failure = f"can't listen on {host}:{NODE_PORT} for the node port of Service shop/web: Address already in use"
        with it.agent.logging(failure):
            it.put(web(), *it.slices(1))
        eventually(lambda: (_times_reported(it) > before[0], it.failures(ip) > before[1]), (True, True))
    eventually(look(it, ip), "web-1")


def _times_reported(it: Node) -> int:
    """The number of failures to listen reported in Events.  The failures of a Service share an Event, with a count."""
    found = [each for each in it.server.objects("Event") if each["reason"] == "FailedToListenOnLocalhost"]
    assert all(each["note"].startswith("NFT011: node node-a can't listen on ") for each in found)
    return sum(each.get("series", {"count": 1})["count"] for each in found)


@pytest.mark.parametrize("ip", [IP, pytest.param(IP6, marks=pytest.mark.slow)], ids=["ip", "ip6"])
def test_the_agent_stops(it: Node, ip: Ip) -> None:
    """Without the agent localhost refuses and its connections end, rules serve on, and a start restores localhost."""
    it.put(web(), *it.slices(1))
    with it.machine.talk(localhost(ip), NODE_PORT) as conversation:
        assert conversation.ask().name == "web-1"
        it.agent.stop()
        with pytest.raises(ConnectionError):
            conversation.ask()
    assert look(it, ip)() == "ConnectionRefusedError"
    assert who(it.machine, address_of(it.machine, ip), NODE_PORT)() == "web-1"
    it.agent.start()
    eventually(look(it, ip), "web-1")


def test_nothing_listens_unless_it_is_asked_for(it: Node) -> None:
    """In the range of node ports, only TCP node ports of Services have a listener at localhost."""
    it.put(web(), *it.slices(1))
    assert listening(it.machine.namespace) == [NODE_PORT, NODE_PORT, BEACON_PORT]


def listening(namespace: Namespace) -> list[int]:
    """The node ports (30000 to 32767) with a listener at localhost, each once for each family."""
    lines = namespace.run(["ss", "-Htln", "src", "127.0.0.1", "or", "src", "[::1]"]).splitlines()
    ports = (int(line.split()[3].rpartition(":")[2]) for line in lines)
    return sorted(port for port in ports if 30000 <= port <= 32767)


@pytest.mark.slow
def test_a_plain_configuration_has_no_listener(world: World) -> None:
    """Without localhost in the configuration, no node port has a listener there."""
    world.put(service(ports=[f"80:{NODE_PORT}"], type="NodePort"), slice_of("10.1.0.4@node-a"))
    assert world.outcomes(Origin.NODE, IP.node, NODE_PORT) == at("10.1.0.4", masqueraded=True)
    assert listening(world.lab.node) == []
