"""Count the handshakes that need a second SYN, for masqueraded and other connections to servers that close first.

The servers' ends stay in TIME_WAIT.  Clients use few ports again and again.  So most sockets in TIME_WAIT belong to
connections without an entry in connection tracking, a state that would otherwise take minutes to reach.
"""

from __future__ import annotations

import errno
import itertools
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest
from nftproxy_conformance.lab import Namespace, RealHost, RealNetwork, RealNode, obstacle

from tests.support.cluster import IP, IP6, Ip
from tests.support.factories import pipeline, service, slice_of

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.slow]

PORTS = 100  # of each client
FIRST_PORTS = (20_000, 30_000)  # so that no two clients have a port in common
BATCH = 250
PATIENCE = 5.0  # seconds for a connection: a SYN is sent again after 1 and 3
DIRECTLY, SERVICE = "directly", "through a Service"
TOTAL_RETRANS = 100  # where struct tcp_info (linux/tcp.h) has tcpi_total_retrans
SERVER = """\
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 8080), family=family, backlog=4096) as listener:
    print("ready", flush=True)
    while True:
        listener.accept()[0].close()
"""
"""A server that closes first: its end of each connection stays in TIME_WAIT for a minute."""


class Scene(NamedTuple):
    """A node with a pod that serves, and the clients: their network, their addresses, and the addresses they connect
    to.
    """

    node: RealNode
    pod: RealHost
    clients: Namespace
    sources: tuple[str, ...]
    addresses: dict[str, tuple[str, int]]

    def connect(self, way: str, sources: Iterator[tuple[str, int]], count: int) -> Counter[str]:
        """Make connections in turn, and return how many were made and how many needed a retransmitted SYN."""
        return self.clients.call(_connect, self.addresses[way], sources, count)


@contextmanager
def serving(pod: RealHost, address: str) -> Iterator[None]:
    """Have the server listen on an address of a pod."""
    with pod.namespace.popen([sys.executable, "-c", SERVER, address], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline()
            yield
        finally:
            server.kill()


def resent(end: socket.socket) -> int:
    """Return the number of segments that the kernel has sent again."""
    (count,) = struct.unpack_from("=I", end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), TOTAL_RETRANS)
    return int(count)


def _connect(address: tuple[str, int], sources: Iterator[tuple[str, int]], count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    while found["made"] < count:
        with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            end.bind(next(sources))
            end.settimeout(PATIENCE)
            try:
                end.connect(address)
                end.recv(1)
                found["again"] += bool(resent(end))
            except TimeoutError:
                found["again"] += 1
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                continue  # the last connection from here is still being closed
            found["made"] += 1
    return found


@pytest.fixture(params=["outside", "node"])
def scene(request: pytest.FixtureRequest, ip: Ip) -> Iterator[Scene]:
    """A scene with two clients outside, or with a client on the node itself."""
    with RealNetwork() as network, ExitStack() as stack:
        node = network.node()
        pod = node.pod("web", IP.here, IP6.here)
        stack.enter_context(serving(pod, ip.here))
        if request.param == "node":
            yield Scene(node, pod, node.node, (ip.node,), {DIRECTLY: (ip.here, 8080), SERVICE: (ip.vip, 80)})
            return
        host = network.host("clients", IP.client, IP6.client)
        other = "2001:db8:100::c9" if ip.is_ipv6 else "198.51.100.201"
        host.add_addresses(other)
        ways = {DIRECTLY: (ip.here, 8080), SERVICE: (ip.balanced, 80)}
        yield Scene(node, pod, host.namespace, (ip.client, other), ways)


def load(scene: Scene, ip: Ip, *, fully_random: bool) -> None:
    """Load the rules of a Service with the pod on the node."""
    told = service(cluster_ips=[ip.vip], type="LoadBalancer", load_balancer_ips=[ip.balanced])
    made = pipeline(told, slice_of(endpoints=[f"{ip.here}@node-a"]), masquerade_fully_random=fully_random)
    scene.node.load(made.full_transaction({}).text)


def each_port(scene: Scene) -> Iterator[tuple[str, int]]:
    """Yield the clients' addresses and ports in turn, endlessly."""
    clients = list(zip(scene.sources, FIRST_PORTS, strict=False))
    return itertools.cycle([(source, first + number) for number in range(PORTS) for source, first in clients])


def test_masquerading_loses_no_handshake(scene: Scene, ip: Ip) -> None:
    """Of 3,000 handshakes each way, as few need a second SYN through a masquerading Service as directly.

    With random ports some 35 handshakes would: half of the handshakes that hit a port among up to 3,000 in TIME_WAIT,
    of 64,512 ports.
    """
    load(scene, ip, fully_random=False)
    found = {way: Counter[str]() for way in (DIRECTLY, SERVICE)}
    ports = each_port(scene)
    for _ in range(3_000 // BATCH):
        for way, total in found.items():
            total.update(scene.connect(way, ports, BATCH))
    assert found[SERVICE]["made"] == found[DIRECTLY]["made"] == 3_000
    assert found[SERVICE]["again"] <= found[DIRECTLY]["again"] + 5


def test_a_server_on_the_node_may_be_its_own_client(ip: Ip) -> None:
    """The node reaches a server of its own through a ClusterIP, whether masquerading changes its source or not."""
    with RealNetwork() as network:
        node = network.node()
        node.serve(8080)
        made = pipeline(service(cluster_ips=[ip.vip]), slice_of(endpoints=[f"{ip.node}@node-a"]))
        node.load(made.full_transaction({}).text)
        assert [node.ask(ip.vip, 80).name for _ in range(4)] == ["node-a"] * 4


@pytest.mark.parametrize("scene", ["outside"], indirect=True)
def test_random_ports_lose_handshakes(scene: Scene, ip: Ip) -> None:
    """With masqueradeFullyRandom some handshakes need a second SYN, so the test above can find losses."""
    load(scene, ip, fully_random=True)
    found, ports = Counter[str](), each_port(scene)
    while found["again"] <= 5 and found["made"] < 30_000:
        found.update(scene.connect(SERVICE, ports, BATCH))
    assert found["again"] > 5
