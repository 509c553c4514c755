"""Real pods: namespaces with real servers and clients, joined by real, routed interfaces.

    with RealNetwork() as network:
        node, client = network.node("node-a"), network.host("client", "198.51.100.7", "2001:db8:100::7")
        node.pod("web-1", "10.1.0.4", "fd00:1::4").serve(8080)
        node.load("table ip t { ... }")
        assert client.ask("203.0.113.7", 443).name == "web-1"

Every host has one interface, `eth0`, that leads to a router: a pod's to its node, a node's and an outside host's to the
network between.  Each link is separate, as container runtimes' point-to-point plugins make it, so that all packets
between pods pass the node's hooks.  `lab.Lab` is for many connections.  `RealNetwork` is for whole connections, a few
at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from nftproxy.trace.links import add_addresses, join
from nftproxy_conformance.lab import topology
from nftproxy_conformance.lab.delay import join_with_delay
from nftproxy_conformance.lab.echo import Conversation, EchoAnswer, EchoServer
from nftproxy_conformance.lab.namespace import Namespace
from nftproxy_conformance.lab.node import Node


class RealHost:
    """A pod, or a machine outside: an address of each family, servers and clients.

    Attributes:
        name: the name that its servers answer with.
        address: its IPv4 address.
        address6: its IPv6 address.
        namespace: its network, to run functions and processes in.
    """

    def __init__(self, namespace: Namespace, address: str, address6: str) -> None:
        self.name = namespace.name
        self.address = address
        self.address6 = address6
        self.namespace = namespace
        self._link: tuple[Node, str]  # its router, and the router's interface to it
        self._stack = ExitStack()
        self._stack.callback(namespace.close)

    def serve(self, port: int, protocol: str = "tcp") -> tuple[EchoServer, EchoServer]:
        """Listen on `port` ("tcp", "udp" or "sctp") of both addresses, until the servers or the host are closed."""
        both = (
            EchoServer(self.namespace, self.name, self.address, port, protocol),
            EchoServer(self.namespace, self.name, self.address6, port, protocol),
        )
        for server in both:
            self.when_closing(server.close)
        return both

    def talk(
        self, address: str, port: int, protocol: str = "tcp", *, sport: int = 0, timeout: float = 60.0
    ) -> Conversation:
        """Connect with a real socket, which the caller closes.  Arguments and errors are those of Conversation."""
        return Conversation(self.namespace, address, port, protocol, sport=sport, timeout=timeout)

    def ask(
        self, address: str, port: int, protocol: str = "tcp", *, sport: int = 0, timeout: float = 60.0
    ) -> EchoAnswer:
        """Connect, return the server's answer, and disconnect.

        Raises:
            OSError: ConnectionRefusedError, TimeoutError and the like, as for any client.
        """
        with self.talk(address, port, protocol, sport=sport, timeout=timeout) as conversation:
            return conversation.ask()

    def add_addresses(self, *addresses: str) -> None:
        """Give the host more addresses, without prefix lengths, and add routes on its router."""
        router, interface = self._link
        add_addresses(self.namespace, topology.UPLINK, *addresses)
        router.ip(*(f"route add {each} dev {interface}" for each in addresses))

    def when_closing(self, function: Callable[..., object], /, *args: object) -> None:
        """Let `close` call `function(*args)`.  The latest callbacks run first."""
        self._stack.callback(function, *args)

    def close(self) -> None:
        """Remove the host with its servers, processes and interface."""
        self._stack.close()


class RealNode(RealHost):
    """A node with pods.  As a host it is the node's own network, with host-network pods and the node's clients.

    Attributes:
        node: its namespace, which takes rules.
    """

    def __init__(self, node: Node, address: str, address6: str, gateways: tuple[str, str]) -> None:
        super().__init__(node, address, address6)
        self.node = node
        self._gateways = gateways

    def load(self, text: str) -> str:
        """Apply nft text, as `Node.load`."""
        return self.node.load(text)

    def pod(self, name: str, address: str, address6: str, *, delay: float = 0.0) -> RealHost:
        """A new pod on this node, with the interface veth-`name`.  It ends with its `close`, or the node's.

        Its TCP segments leave it `delay` seconds late.
        """
        pod = RealHost(_namespace(name), address, address6)
        self.when_closing(pod.close)
        _join(self.node, pod, f"veth-{name}", self._gateways, delay)
        return pod


class RealNetwork:
    """Nodes and outside hosts, and the network between.  A context manager that closes all of them."""

    def __init__(self) -> None:
        self._nodes: list[RealNode] = []
        with ExitStack() as stack:
            self._router = stack.enter_context(Node("network"))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def node(self, name: str = topology.NODE_NAME) -> RealNode:
        """A new node: first 192.168.0.2 with pods 10.1.0.0/24, then .3 with 10.1.1.0/24, and so on.

        The first node also receives packets for the load balancers' addresses.
        """
        number = len(self._nodes)
        gateways = f"10.1.{number}.1", f"fd00:1:0:{number:x}::1"
        node = RealNode(Node(name), f"192.168.0.{number + 2}", f"fd00:c0a8::{number + 2:x}", gateways)
        self._stack.callback(node.close)
        self._nodes.append(node)
        _join(self._router, node, name, (topology.GATEWAY, topology.GATEWAY6))
        pods = f"10.1.{number}.0/24", f"fd00:1:0:{number:x}::/64"
        # packets to a missing pod must not go to the default route
        node.node.ip(*(f"route add unreachable {each}" for each in pods))
        balancers = () if number else (topology.LOAD_BALANCER_CIDR, topology.LOAD_BALANCER_CIDR6)
        self._router.ip(*(_route(each, node) for each in (*pods, *balancers)))
        return node

    def host(self, name: str, address: str, address6: str) -> RealHost:
        """A new host outside, by convention in 198.51.100.0/24 and 2001:db8:100::/64."""
        host = RealHost(_namespace(name), address, address6)
        self._stack.callback(host.close)
        _join(self._router, host, name, (topology.GATEWAY, topology.GATEWAY6))
        return host

    def route(self, network: str, node: RealNode) -> None:
        """Route `network` (a CIDR or an address) to `node` from now on."""
        self._router.ip(_route(network, node))

    def lose(self, *networks: str) -> None:
        """Drop packets to CIDRs or addresses silently, as if a node had died, until the next `route`."""
        self._router.ip(*(f"route replace blackhole {network}" for network in networks))

    def close(self) -> None:
        """Remove everything."""
        self._stack.close()


def _route(network: str, node: RealNode) -> str:
    return f"route replace {network} via {node.address6 if ':' in network else node.address}"


def _namespace(name: str) -> Namespace:
    namespace = Namespace(name)
    namespace.ip("link set lo up")
    return namespace


def _join(router: Node, host: RealHost, interface: str, gateways: tuple[str, str], delay: float = 0.0) -> None:
    """Link a host to its router, where the link is called `interface` and the router's addresses are `gateways`."""
    if delay:
        host.when_closing(join_with_delay(router, interface, host.namespace, topology.UPLINK, delay).close)
    else:
        join(router, interface, host.namespace, topology.UPLINK)
    host._link = router, interface
    host.when_closing(router.ip, f"link del dev {interface}")
    add_addresses(router, interface, *gateways)
    add_addresses(host.namespace, topology.UPLINK, host.address, host.address6)
    router.ip(f"route add {host.address} dev {interface}", f"route add {host.address6} dev {interface}")
    host.namespace.ip(
        *(
            f"route add {route} dev {topology.UPLINK}"
            for gateway in gateways
            for route in (gateway, f"default via {gateway}")
        )
    )
