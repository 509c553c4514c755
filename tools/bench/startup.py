"""Starts: cold, and over rules that are there, with connections made meanwhile, and questions of bystanders."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from nftproxy_conformance.lab import Kind, Lab, Origin, Outcome, Probe, RealHost, RealNetwork

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
ASK_EVERY = 0.002  # seconds between questions
PATIENCE = 10.0  # seconds for an answer: it is lost rather than late
PORT = 7


class Bystander(NamedTuple):
    """How many questions of a pod were answered, and how many were lost."""

    answered: int
    lost: int


def measure_bystanders(size: Size) -> dict[str, Bystander]:
    """Ask a pod from another, by UDP, while everything is loaded cold, and while it is loaded over the old rules."""
    found = {}
    with RealNetwork() as network:
        node = network.node()
        client = node.pod("client", "10.1.0.10", "fd00:1::10")
        other = node.pod("other", "10.1.0.20", "fd00:1::20")
        other.serve(PORT, "udp")
        with assembled(size, node.node) as rig:
            for when in (COLD, RELOAD):
                with asking(client, other.address) as answers:
                    rig.start_agent()
                found[when] = Bystander(answers.count(True), answers.count(False))
                rig.settle()
                rig.stop_agent()
    return found


@contextmanager
def asking(client: RealHost, address: str) -> Iterator[list[bool]]:
    """Ask again and again over one flow.  Gives a list that says of each question whether it was answered."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            conversation.ask()
        except TimeoutError:
            answers.append(False)
        else:
            answers.append(True)

    with client.talk(address, PORT, "udp", timeout=PATIENCE) as conversation, repeating(ask, ASK_EVERY):
        yield answers
