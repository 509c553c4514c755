"""Starts: cold, and over rules that are there, with connections made meanwhile, and pings of bystanders."""

from __future__ import annotations

import contextlib
import itertools
import socket
import statistics
import struct
from collections.abc import Iterator
from typing import NamedTuple

from nftproxy_conformance.lab import Kind, Lab, Origin, Outcome, Probe, RealHost, RealNetwork
from nftproxy_conformance.lab.frames import echo_request

from tests.support.background import repeating
from tools.bench import cluster
from tools.bench.cluster import Size
from tools.bench.figures import Figures
from tools.bench.rig import Rig, assembled

COLD_STARTS = 3
AT_ONCE, EVERY = 100, 0.05  # connections, and seconds between: some 2,000 a second, a few hundredths of a processor


def measure_start(rig: Rig, figures: Figures) -> None:
    """From the process's start until the kernel has everything, with no rules before, and the memory that it takes."""
    name = f"{rig.size.services}"
    times = []
    for _ in range(COLD_STARTS):
        rig.stop_agent()
        rig.node.reset()
        times.append(rig.start_agent())
    rig.settle()
    figures[f"start/{name}"] = statistics.median(times)
    figures[f"memory/{name}/settled"] = rig.agent.resident
    figures[f"memory/{name}/peak"] = rig.agent.peak


def measure_restart(size: Size, figures: Figures, times: int = 3) -> None:
    """The agent ends and starts again over its rules, while a pod connects to all Services in turn."""
    count, astray = 0, list[Outcome]()
    with Lab() as lab, assembled(size, lab.node) as rig:
        services = itertools.cycle(range(size.services))

        def connect() -> None:
            nonlocal count
            batch = list(itertools.islice(services, AT_ONCE))
            outcomes = lab.connect_many([Probe(Origin.POD, cluster.vip(each), 80) for each in batch])
            count += len(outcomes)
            astray.extend(_astray(size, batch, outcomes))

        rig.start_agent()
        rig.settle()
        seconds = []
        with repeating(connect, EVERY):
            for _ in range(times):
                rig.stop_agent()
                seconds.append(rig.start_agent())
                rig.settle()
    figures[f"restart/{size.services}"] = statistics.median(seconds)
    figures[f"restart/{size.services}/connections"] = count
    figures[f"restart/{size.services}/lost"] = len(astray)


def _astray(size: Size, services: list[int], outcomes: list[Outcome]) -> Iterator[Outcome]:
    """The connections that reached none of their Service's endpoints."""
    for service, outcome in zip(services, outcomes, strict=True):
        wanted = {pod.address for pod in cluster.pods(size, service)}
        if outcome.kind is not Kind.ENDPOINT or outcome.endpoint is None or outcome.endpoint.ip not in wanted:
            yield outcome


COLD, RELOAD = "cold", "reload"
PING_EVERY = 0.001  # seconds between pings
PATIENCE = 10.0  # seconds for an answer
ECHO_REPLY = 0
IP_HEADER = 20


class Pings(NamedTuple):
    """How many pings were answered, and how many were lost."""

    answered: int
    lost: int


def ping_bystanders(size: Size) -> dict[str, Pings]:
    """Ping from pod to pod while everything is loaded cold, and while it is loaded over the old rules."""
    found = {}
    with RealNetwork() as network:
        node = network.node()
        client = node.pod("client", "10.1.0.10", "fd00:1::10")
        other = node.pod("other", "10.1.0.20", "fd00:1::20")
        with assembled(size, node.node) as rig:
            for when in (COLD, RELOAD):
                with pinging(client, other.address) as answers:
                    rig.start_agent()
                found[when] = Pings(answers.count(True), answers.count(False))
                rig.settle()
                rig.stop_agent()
    return found


@contextlib.contextmanager
def pinging(host: RealHost, address: str) -> Iterator[list[bool]]:
    """Ping an IPv4 address from a host, again and again.  Gives a list that says of each ping whether it was answered.

    The kernel answers pings, so programs that the machine is busy with lose none.
    """
    answers: list[bool] = []
    numbers = itertools.cycle(range(1, 65536))

    def answered() -> bool:
        number = next(numbers)
        end.sendto(echo_request(number), (address, 0))
        try:
            while struct.unpack_from("!BBHHH", end.recv(128), IP_HEADER)[::4] != (ECHO_REPLY, number):
                pass
        except TimeoutError:
            return False
        return True

    with host.namespace.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as end:
        end.settimeout(PATIENCE)
        with repeating(lambda: answers.append(answered()), PING_EVERY):
            yield answers
