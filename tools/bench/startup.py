"""Starts: cold, and over rules that are there, with connections made meanwhile, and the effect of both on bystanders.

Bystanders are pings between two pods.  The kernel answers them, and the thread that sends them has a real-time
priority, so the figures show how long the kernel keeps a packet waiting, and not how busy the machine's programs are.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator

from nftproxy_conformance.lab import Kind, Lab, Origin, Outcome, Probe, RealHost, RealNetwork
from nftproxy_conformance.lab.frames import echo_request

from tests.support.background import repeating
from tools.bench import cluster
from tools.bench.cluster import Size
from tools.bench.figures import Figures, note
from tools.bench.rig import Rig, assembled

COLD_STARTS = 3
AT_ONCE, EVERY = 100, 0.05  # connections, and seconds between: some 2,000 a second, a few hundredths of a processor

QUIET, COLD, RELOAD = "nothing else", "cold", "reload"
PING_EVERY = 0.001  # seconds between pings
PATIENCE = 10.0  # seconds for an answer
QUIET_SECONDS = 5.0
ECHO_REPLY = 0
IP_HEADER = 20


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


def measure_bystanders(size: Size, figures: Figures) -> None:
    """Ping while nothing else goes on, while everything is loaded cold, and while it is loaded over the old rules."""
    with RealNetwork() as network:
        node = network.node()
        client = node.pod("client", "10.1.0.10", "fd00:1::10")
        other = node.pod("other", "10.1.0.20", "fd00:1::20")
        with assembled(size, node.node) as rig, pinging(client, other.address) as take:
            time.sleep(QUIET_SECONDS)
            _note(figures, size, QUIET, take())
            rig.start_agent()
            _note(figures, size, COLD, take())
            rig.settle()
            rig.stop_agent()
            take()
            rig.start_agent()
            _note(figures, size, RELOAD, take())


def ping(services: int, when: str) -> str:
    """The name of the figures of pings."""
    return f"ping/{services}/{when}"


Pings = list[float | None]
"""The seconds until each answer, None for a ping that was lost."""


def _note(figures: Figures, size: Size, when: str, pings: Pings) -> None:
    note(figures, ping(size.services, when), (each for each in pings if each is not None))
    figures[f"{ping(size.services, when)}/lost"] = pings.count(None)


@contextlib.contextmanager
def pinging(host: RealHost, address: str) -> Iterator[Callable[[], Pings]]:
    """Ping an IPv4 address from a host, again and again.  Gives a function that takes the pings so far."""
    pings: Pings = []
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

    def send_ping() -> None:
        with contextlib.suppress(PermissionError):  # a container may not: then other programs' work shows as well
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        began = time.perf_counter()
        pings.append(time.perf_counter() - began if answered() else None)

    def take() -> Pings:
        nonlocal pings
        taken, pings = pings, []
        return taken

    with host.namespace.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as end:
        end.settimeout(PATIENCE)
        with repeating(send_ping, PING_EVERY):
            yield take
