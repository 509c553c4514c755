"""TCP connections to endpoints that are gone end at once, of Services that ask for it, with real sockets and pods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from nftproxy_conformance.lab.echo import Conversation
from nftproxy_conformance.lab.pods import RealNetwork, RealNode

from nftproxy.extensions.failover.gone_addresses import PAUSE, START_PAUSE, GoneAddresses
from nftproxy.kernel.conntrack.sweeps import Sweeper
from nftproxy.model.events import Put
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.pipeline import Pipeline
from tests.support.cluster import IP, IP6, Ip
from tests.support.factories import pipeline, service, slice_of

GONE = {"failover": "gone"}


class World:
    """Node-a with our rules, pods on both nodes, and clients everywhere."""

    def __init__(self, network: RealNetwork) -> None:
        self.network = network
        self.node: RealNode = network.node("node-a")
        self.other = network.node("node-b")
        self.pod = self.node.pod("client", "10.1.0.9", "fd00:1::9")
        self.clients = {
            "pod": self.pod,
            "node": self.node,
            "outside": network.host("outside", "198.51.100.7", "2001:db8:100::7"),
        }
        self.pods = {
            "here": self.node.pod("here", "10.1.0.4", "fd00:1::4"),
            "away": self.other.pod("away", "10.1.1.4", "fd00:1:0:1::4"),
            "left": self.other.pod("left", "10.1.1.5", "fd00:1:0:1::5"),
        }
        for pod in self.pods.values():
            pod.serve(8080)
        self.sweeper = Sweeper(lambda _: None)
        self.pipeline: Pipeline
        self._now = 0.0

    def load(self, *objects: Service | EndpointSlice) -> None:
        """Load the rules of these objects, as an agent that has just started."""
        self.pipeline = pipeline(*objects)
        self.node.load("flush ruleset\n")
        self.node.load(self.pipeline.full_transaction({}).text)
        self.pipeline.view(GoneAddresses).look(self.pipeline.state, self._now)

    def put(self, *objects: Service | EndpointSlice) -> None:
        """Change the rules."""
        self.node.load(self.pipeline.ingest([Put(each) for each in objects]).text)

    def pass_time(self, seconds: float = 3 * PAUSE) -> int:
        """Let time pass for the agent, which looks and sweeps.  Return the number of connections that it ends."""
        end, ended = self._now + seconds, 0
        while self._now <= end:
            swept = self.pipeline.view(GoneAddresses).look(self.pipeline.state, self._now)
            ended += self.node.node.call(self.sweeper.sweep, swept).total() if swept else 0
            self._now += PAUSE / 4
        return ended

    def web(self, ip: Ip, *pods: str, annotations: dict[str, str] = GONE, **tweaks: str) -> None:
        """Load a Service with endpoints on these pods, long after the start."""
        self.node.node.reset()
        fields = {"type": "NodePort", "external_ips": [ip.external], "ports": ["http:80:30080"]} | tweaks
        web = service(cluster_ips=[ip.vip], annotations=annotations, **fields)  # type: ignore[arg-type]
        self.load(web, self.slice(ip, *pods))
        self.pass_time(2 * START_PAUSE)

    def slice(self, ip: Ip, *pods: str, name: str = "shop/web", conditions: str = "") -> EndpointSlice:
        """An EndpointSlice with these pods."""
        hosts = {**self.pods, "own": self.node}
        ends = [f"{ip.of(hosts[pod])}@node-{'a' if pod in {'here', 'own'} else 'b'} {conditions}" for pod in pods]
        return slice_of(name, ends, ports=("http:8080",), suffix=ip.nft, family=ip.family)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two nodes with pods and clients."""
    with RealNetwork() as network:
        made = World(network)
        yield made
        made.sweeper.close()


def cut(world: World, ip: Ip, pod: str) -> ExitStack:
    """Cut a pod from the network without a word, until the stack is closed."""
    host, done = world.pods[pod], ExitStack()
    family, address = ("ip6" if ip.is_ipv6 else "ip"), ip.of(host)
    router = world.node if pod == "here" else world.other
    router.load(
        f"table {family} dead {{\n chain c {{\n type filter hook forward priority -300\n"
        f"{family} saddr {address} drop\n {family} daddr {address} drop\n }}\n"
        f" chain o {{\n type filter hook output priority 10\n {family} daddr {address} drop\n }}\n}}\n"
    )
    done.callback(router.load, f"delete table {family} dead\n")
    return done


def talk(world: World, client: str, target: tuple[str, int], name: str) -> Conversation:
    """A connection to the pod of this name."""
    while True:
        made = world.clients[client].talk(*target, timeout=60)
        if made.ask().name == name:
            return made
        made.close()


WAYS = [
    ("pod", "vip", "here"),
    ("pod", "vip", "away"),
    ("node", "vip", "away"),
    ("outside", "node", "here"),
    ("outside", "external", "away"),
    ("pod", "node", "away"),
]


@pytest.mark.parametrize(("client", "front", "dead"), WAYS)
def test_connections_to_an_endpoint_that_is_gone_are_reset(
    world: World, ip: Ip, client: str, front: str, dead: str
) -> None:
    """Another pod resets the next packet of each kind of client, and connections to that pod go on."""
    world.web(ip, dead, "left")
    target = ip.front(front)
    with talk(world, client, target, dead) as lost, talk(world, client, target, "left") as well, cut(world, ip, dead):
        world.put(world.slice(ip, "left"))
        assert world.pass_time() > 0
        with pytest.raises(ConnectionResetError):
            lost.ask()
        assert well.ask().name == "left"


def test_connections_of_the_last_endpoint_are_reset(world: World, ip: Ip) -> None:
    """Where no endpoint is left the rules themselves reset it."""
    world.web(ip, "away")
    with talk(world, "pod", (ip.vip, 80), "away") as lost, cut(world, ip, "away"):
        world.put(world.slice(ip))
        assert world.pass_time() > 0
        with pytest.raises((ConnectionResetError, ConnectionRefusedError)):
            lost.ask()


@pytest.mark.parametrize("annotations", [{}, {"failover": "silent,refused"}])
def test_other_services_keep_their_connections(world: World, ip: Ip, annotations: dict[str, str]) -> None:
    """A Service without the word leaves its connections to the pod, also beside a Service with it."""
    world.web(ip, "away", "left", annotations=annotations)
    asking = service("shop/asking", cluster_ips=[ip.vip2], annotations=GONE)
    world.put(asking, world.slice(ip, "away", "left", name="shop/asking"))
    with talk(world, "pod", (ip.vip, 80), "away") as kept, talk(world, "pod", (ip.vip2, 80), "away"):
        world.put(world.slice(ip, "left"), world.slice(ip, "left", name="shop/asking"))
        assert world.pass_time() > 0
        assert kept.ask().name == "away"


def test_connections_straight_to_the_pod_go_on(world: World, ip: Ip) -> None:
    """A client that connects to the address of a pod itself keeps its connection."""
    world.web(ip, "away", "left")
    with world.pod.talk(ip.of(world.pods["away"]), 8080, timeout=60) as straight:
        assert straight.ask().name == "away"
        world.put(world.slice(ip, "left"))
        assert world.pass_time() == 0
        assert straight.ask().name == "away"


@pytest.mark.parametrize("conditions", ["draining", "stopped", "unready"])
def test_a_terminating_pod_keeps_its_clients(world: World, ip: Ip, conditions: str) -> None:
    """A pod that is in a slice in any condition finishes its work."""
    world.web(ip, "away")
    with talk(world, "pod", (ip.vip, 80), "away") as draining:
        world.put(world.slice(ip, "away", conditions=conditions))
        assert world.pass_time(100) == 0
        assert draining.ask().name == "away"


def test_a_pod_in_another_slice_keeps_its_clients(world: World, ip: Ip) -> None:
    """A pod that has left this Service is alive as long as any other has it, even if that doesn't ask."""
    world.web(ip, "away", "left")
    world.put(service("shop/other", cluster_ips=[ip.vip2]), world.slice(ip, "away", name="shop/other"))
    with talk(world, "pod", (ip.vip, 80), "away") as kept:
        world.put(world.slice(ip, "left"))
        assert world.pass_time(100) == 0
        assert kept.ask().name == "away"
        world.put(world.slice(ip, name="shop/other"))
        assert world.pass_time() > 0
        with pytest.raises(ConnectionResetError):
            kept.ask()


def test_an_address_that_flaps_resets_nobody(world: World, ip: Ip) -> None:
    """However often an address leaves the slices and comes back within a second, its clients stay."""
    world.web(ip, "away", "left")
    with talk(world, "pod", (ip.vip, 80), "away") as kept:
        for _ in range(20):
            world.put(world.slice(ip, "left"))
            assert world.pass_time(PAUSE / 2) == 0
            world.put(world.slice(ip, "away", "left"))
            assert world.pass_time(PAUSE / 2) == 0
        assert kept.ask().name == "away"


def test_a_hostile_tenant_resets_nobody_else(world: World, ip: Ip) -> None:
    """A Service whose slices name the pods of another Service, and lose them, ends only its own connections."""
    world.web(ip, "away", "left")
    evil = service("evil/web", cluster_ips=[ip.vip2], annotations=GONE)
    world.put(evil, world.slice(ip, "away", "left", name="evil/web"))
    with talk(world, "pod", (ip.vip, 80), "away") as victim, talk(world, "pod", (ip.vip2, 80), "away") as own:
        world.put(world.slice(ip, name="evil/web"))
        assert world.pass_time(100) == 0
        assert [victim.ask().name, own.ask().name] == ["away", "away"]


def test_a_host_network_pod(world: World, ip: Ip) -> None:
    """An endpoint at the node's own address ends when no slice has that address, as the node itself resets it."""
    servers = world.node.serve(8080)
    world.web(ip, "own", "left")
    with talk(world, "outside", (ip.external, 80), "node-a") as lost:
        world.put(world.slice(ip, "left"))
        assert world.pass_time() > 0
        with pytest.raises(ConnectionResetError):
            lost.ask()
    for server in servers:
        server.close()


def test_an_address_that_a_new_pod_has_taken_over(world: World, ip: Ip) -> None:
    """A connection to an address that is another Service's endpoint now is reset by the pod there."""
    taken = world.other.pod("taken", "10.1.1.7", "fd00:1:0:1::7")
    world.pods["taken"] = taken
    taken.serve(8080)
    world.web(ip, "taken", "left")
    with talk(world, "pod", (ip.vip, 80), "taken") as lost:
        with cut(world, ip, "taken"):
            taken.close()
        world.pods["taken"] = again = world.other.pod("again", "10.1.1.7", "fd00:1:0:1::7")
        again.serve(9090)
        new = service("shop/new", cluster_ips=[ip.vip2], ports=["http:9090"])
        world.put(new, slice_of("shop/new", [f"{ip.of(again)}@node-b"], ports=("http:9090",)), world.slice(ip, "left"))
        assert world.pass_time() == 0
        with pytest.raises(ConnectionResetError):
            lost.ask()
    world.pods.pop("taken").close()


def test_a_restart_ends_what_went_meanwhile(world: World, ip: Ip) -> None:
    """An agent that starts ends connections to addresses that went while it was away, after a while, and no others."""
    world.web(ip, "away", "left")
    with talk(world, "pod", (ip.vip, 80), "away") as lost, talk(world, "pod", (ip.vip, 80), "left") as well:
        asking = service(type="NodePort", cluster_ips=[ip.vip], ports=["http:80:30080"], annotations=GONE)
        world.load(asking, world.slice(ip, "left"))
        assert world.pass_time(START_PAUSE - 1) == 0
        assert lost.ask().name == "away"
        assert world.pass_time() > 0
        with pytest.raises(ConnectionResetError):
            lost.ask()
        assert well.ask().name == "left"


def test_rules_are_those_of_a_service_without_it() -> None:
    """The word alone adds nothing to the rules, in either family."""
    for ip in (IP, IP6):
        slices = slice_of(endpoints=[ip.away])
        plain, asking = (service(cluster_ips=[ip.vip], annotations=each) for each in ({}, GONE))
        texts = [pipeline(each, slices).full_transaction({}).text for each in (plain, asking)]
        assert texts[0] == texts[1]
