"""What one object costs at a bound, and what one a hundred times as large costs: `python -m tools.bench.bounds`.

Each case is an agent's pure part and a kernel: beside 1,000 ordinary Services comes the hostile one.  Measured are the
time until the kernel has what it asks for, what the peak of memory grows by beyond the object itself, and how many
elements get into the kernel.  Each case has a process of its own, as a peak never goes down.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click
import msgspec

from nftproxy.kernel.libnftables import Kernel
from nftproxy.lab.node import Node
from nftproxy.model.events import Put
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.pipeline import Pipeline
from tests.support.factories import pipeline, service, slice_of
from tools.bench.processes import CHECKOUT

BYSTANDERS = 1_000
"""Ordinary Services that are there before."""

Objects = tuple[Service | EndpointSlice, ...]


class Cost(msgspec.Struct):
    """What an object has cost: seconds, bytes, elements; why it is quarantined, "" if it isn't."""

    seconds: float
    memory: int
    elements: int
    reason: str


class Case(NamedTuple):
    """What is multiplied, and the objects at the bound and a hundred times as large."""

    what: str
    at_the_bound: Callable[[], Objects]
    hundred_times: Callable[[], Objects]


def hosts(count: int, start: str = "172.16") -> Iterator[str]:
    """Addresses of a private range, each once."""
    first, second = (int(part) for part in start.split("."))
    for number in range(count):
        yield f"{first}.{second + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def fronts(ports: int, addresses: int) -> Objects:
    """A Service of some ports at so many external addresses and one ClusterIP."""
    numbers = [f"p{number}:{number}" for number in range(1, ports + 1)]
    return (service("evil/one", cluster_ips=["10.97.0.1"], ports=numbers, external_ips=hosts(addresses - 1)),)


def rows(ports: int, endpoints: int) -> Objects:
    """A Service of some ports, each with so many endpoints."""
    numbers = [f"p{number}:{number}" for number in range(1, ports + 1)]
    pods = list(hosts(endpoints))
    slices = [
        slice_of("evil/one", pods[start : start + 1_000], ports=numbers, suffix=str(start))
        for start in range(0, endpoints, 1_000)
    ]
    return (service("evil/one", cluster_ips=["10.97.0.1"], ports=numbers), *slices)


def ranges(ports: int, count: int) -> Objects:
    """A load balancer of some ports with so many source ranges."""
    numbers = [f"p{number}:{number}" for number in range(1, ports + 1)]
    made = service(
        "evil/one",
        cluster_ips=["10.97.0.1"],
        ports=numbers,
        type="LoadBalancer",
        load_balancer_ips=["203.0.113.1"],
        source_ranges=[f"{address}/32" for address in hosts(2 * count)][::2],
    )
    return (made,)


CASES = (
    Case("fronts", lambda: fronts(100, 100), lambda: fronts(1_000, 1_000)),
    Case("rows", lambda: rows(100, 1_000), lambda: rows(1_000, 10_000)),
    Case("source ranges, with 1,000 ports", lambda: ranges(1_000, 1_000), lambda: ranges(1_000, 100_000)),
)


def measure(objects: Objects) -> Cost:
    """Let the objects come to a node that has ordinary Services."""
    with Node("node") as node:
        agent = pipeline(*bystanders())
        kernel = Kernel()
        node.call(kernel.apply, agent.full_transaction({}))
        before = sum(generation.element_count() for generation in agent.generations.values())
        gc.collect()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        node.call(kernel.apply, agent.apply([Put(each) for each in objects]))
        seconds = time.monotonic() - began
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
        after = sum(generation.element_count() for generation in agent.generations.values())
        return Cost(seconds, memory, after - before, reason(agent))


def bystanders() -> Iterator[Service | EndpointSlice]:
    """Ordinary Services of ten endpoints."""
    for number in range(BYSTANDERS):
        name = f"shop/s{number}"
        yield service(name, cluster_ips=[f"10.96.{number >> 8}.{number & 255}"], ports=["http:80"])
        yield slice_of(name, list(hosts(10, "10.1")))


def reason(agent: Pipeline) -> str:
    """Why the hostile Service is quarantined."""
    return next(iter(agent.state.excessive.values()), "")


@click.command()
@click.option("--case", "chosen", type=int, hidden=True)
@click.option("--hundred", is_flag=True, hidden=True)
def main(chosen: int | None, hundred: bool) -> None:
    """Print a row for each bound, and one for what is a hundred times as large."""
    if chosen is not None:
        case = CASES[chosen]
        objects = case.hundred_times() if hundred else case.at_the_bound()
        click.echo(msgspec.json.encode(measure(objects)).decode())
        return
    click.echo("| what one Service asks for | until the kernel has it | memory | elements | quarantined |")
    click.echo("| --- | --- | --- | --- | --- |")
    for number, case in enumerate(CASES):
        for factor in (1, 100):
            cost = ask(number, hundred=factor > 1)
            size = "at the bound" if factor == 1 else "a hundred times the bound"
            click.echo(
                f"| {case.what}: {size} | {cost.seconds * 1000:,.0f} ms | {cost.memory / 1e6:,.0f} MB"
                f" | {cost.elements:,} | {cost.reason or 'no'} |"
            )


def ask(number: int, *, hundred: bool) -> Cost:
    """The cost of a case, measured in a process of its own."""
    command = [sys.executable, "-m", "tools.bench.bounds", "--case", str(number), *(["--hundred"] if hundred else [])]
    done = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    return msgspec.json.decode(done.stdout, type=Cost)


if __name__ == "__main__":
    main()
