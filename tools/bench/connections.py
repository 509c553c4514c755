"""How long a new connection takes through a Service, and directly to the same pods: real sockets on a node."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack

from nftproxy_conformance.lab import RealHost, RealNetwork

from tools.bench import cluster
from tools.bench.cluster import SERVICES, SLICES, Size
from tools.bench.figures import Figures, note
from tools.bench.rig import Rig, assembled

PODS = 5
CONNECTIONS = 6_000  # of each way
BATCH = 500  # connections that nobody accepts yet: net.core.somaxconn is 4096
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a client that resets leaves no state behind
DIRECT, SERVICE = "directly", "through a Service"
Server = tuple[str, int]


def measure_connections(size: Size, figures: Figures) -> None:
    """Connect from a pod to other pods, directly and through their Service, by turns."""
    with RealNetwork() as network, ExitStack() as stack:
        node = network.node()
        client = node.pod("client", "10.1.0.10", "fd00:1::10")
        servers = [node.pod(f"web-{each}", f"10.1.0.{20 + each}", f"fd00:1::{20 + each}") for each in range(PODS)]
        listening = [stack.enter_context(_listening(each)) for each in servers]
        with assembled(size, node.node) as rig:
            rig.start_agent()
            _serve(rig, [each.address for each in servers])
            rig.settle()
            ways: dict[str, list[Server]] = {
                DIRECT: [(each.address, 8080) for each in servers],
                SERVICE: [(cluster.vip(size.services + 2), 80)],
            }
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(CONNECTIONS // BATCH):
                for way, addresses in ways.items():
                    times[way] += client.namespace.call(_connect, addresses, BATCH)
                    _hang_up(listening)
    for way, seconds in times.items():
        note(figures, name(size.services, way), seconds)


def name(services: int, way: str) -> str:
    """The name of the figures of connections."""
    return f"connection/{services}/{way}"


def _serve(rig: Rig, addresses: Sequence[str]) -> None:
    number = rig.size.services + 2
    body = cluster.slice_of(number, cluster.pods(rig.size, number)[: len(addresses)])
    for endpoint, address in zip(body["endpoints"], addresses, strict=True):
        endpoint["addresses"] = [address]
    rig.write("POST", SERVICES, cluster.service(number))
    rig.write("POST", SLICES, body)


def _listening(host: RealHost) -> socket.socket:
    end = host.namespace.socket(socket.AF_INET, socket.SOCK_STREAM)
    end.bind((host.address, 8080))
    end.listen(4096)
    end.setblocking(False)
    return end


def _connect(servers: Sequence[Server], count: int) -> list[float]:
    """The seconds that each connection took."""
    times = []
    for number in range(count):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.settimeout(None)
            server = servers[number % len(servers)]
            began = time.perf_counter()
            end.connect(server)
            times.append(time.perf_counter() - began)
    return times


def _hang_up(listening: Sequence[socket.socket]) -> None:
    for end in listening:
        while True:
            try:
                end.accept()[0].close()
            except BlockingIOError:
                break
