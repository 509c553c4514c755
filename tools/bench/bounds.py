"""The cost of objects at a bound, and at a hundred times the bound: `python -m tools.bench.bounds`.

Each case is an agent's pure part and a kernel: a hostile Service comes beside 1,000 ordinary
Services.  Measured are the time until the kernel has its rules, the growth of the peak of memory beyond the object
itself, and the elements that get into the kernel.  Each case has a process of its own, as a peak never goes down.

Then come connections to the health port that say nothing, as many as the port may have and a hundred times as many:
how many stay open, the growth of memory, and how long a probe waits for its answer.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from nftproxy_conformance.lab.node import Node

from nftproxy.agent.http.connection_limits import MOST
from nftproxy.agent.http.listeners import Listeners
from nftproxy.agent.reporting.health import Health
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.events import Put
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.model.settings import HEALTHZ_PORT
from nftproxy.pipeline import Pipeline
from nftproxy.rules.pieces import pieces_of
from tests.support.factories import pipeline, service, slice_of
from tests.support.processes import CHECKOUT

BYSTANDERS = 1_000
"""Ordinary Services that are there before."""

Objects = tuple[Service | EndpointSlice, ...]


class Cost(msgspec.Struct):
    """The cost of an object: seconds, bytes, elements, and the reason of its quarantine ("" if it is in none)."""

    seconds: float
    memory: int
    elements: int
    reason: str


class Case(NamedTuple):
    """A kind of object, at the bound and a hundred times as large."""

    what: str
    at_the_bound: Callable[[], Objects]
    hundred_times: Callable[[], Objects]


def hosts(count: int, start: str = "172.16") -> Iterator[str]:
    """Addresses of a private range, each once."""
    first, second = (int(part) for part in start.split("."))
    for number in range(count):
        yield f"{first}.{second + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def fronts(ports: int, addresses: int) -> Objects:
    """A Service with `ports` ports, at `addresses` external addresses and a ClusterIP."""
    numbers = [f"p{number}:{number}" for number in range(1, ports + 1)]
    return (service("evil/one", cluster_ips=["10.97.0.1"], ports=numbers, external_ips=hosts(addresses - 1)),)


def rows(ports: int, endpoints: int) -> Objects:
    """A Service with `ports` ports, each with `endpoints` endpoints."""
    numbers = [f"p{number}:{number}" for number in range(1, ports + 1)]
    pods = list(hosts(endpoints))
    slices = [
        slice_of("evil/one", pods[start : start + 1_000], ports=numbers, suffix=str(start))
        for start in range(0, endpoints, 1_000)
    ]
    return (service("evil/one", cluster_ips=["10.97.0.1"], ports=numbers), *slices)


def ranges(ports: int, count: int) -> Objects:
    """A load balancer with `ports` ports and `count` source ranges."""
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
        for piece in pieces_of(agent.ingest([Put(each) for each in objects])):
            node.call(kernel.apply, piece)
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
    return next((excess.reason for excess in agent.state.excessive.values()), "")


CROWD = """\
import collections, socket, sys
opened = collections.deque(maxlen=500)  # what goes was closed by the other side long ago
for number in range(int(sys.argv[2])):
    source = f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
    opened.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60, source_address=(source, 0)))
print("all", flush=True)
sys.stdin.read()
"""
"""A program that opens connections, each from another address, and says nothing."""


async def measure_crowd(count: int) -> str:
    """Let `count` clients connect to the health port and send nothing.  Returns a row of the second table."""
    made = pipeline(healthz_bind_address=f"127.0.0.1:{HEALTHZ_PORT}", metrics_bind_address="127.0.0.1:0")
    reporter = SyncReporter(Health(30.0), Metrics())
    async with Listeners(made.settings.config, reporter, lambda _: None):
        files, peak = open_files(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        command = [sys.executable, "-c", CROWD, str(HEALTHZ_PORT), str(count)]
        crowd = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert crowd.stdin
        assert crowd.stdout
        assert await crowd.stdout.readline() == b"all\n"
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", HEALTHZ_PORT)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 ")
        waited = time.monotonic() - began
        stayed = open_files() - files - 3  # the crowd's pipes, and this connection
        writer.close()
        crowd.stdin.close()
        await crowd.wait()
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
        return f"| {count:,} | {stayed:,} | {memory / 1e6:,.0f} MB | {waited * 1000:,.0f} ms |"


def open_files() -> int:
    """How many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@click.command()
@click.option("--case", "chosen", type=int, hidden=True)
@click.option("--hundred", is_flag=True, hidden=True)
@click.option("--crowd", type=int, hidden=True)
def main(chosen: int | None, hundred: bool, crowd: int | None) -> None:
    """Print a row for each bound, and for a hundred times the bound."""
    if crowd is not None:
        with Node("node") as node:
            click.echo(node.call(lambda: asyncio.run(measure_crowd(crowd))))
        return
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
    click.echo("\n| silent connections to the health port | of these stay open | memory | a probe waits |")
    click.echo("| --- | --- | --- | --- |")
    for count in (MOST.of_a_listener, 100 * MOST.of_a_listener):
        click.echo(run("--crowd", str(count)).decode().strip())


def ask(number: int, *, hundred: bool) -> Cost:
    """The cost of a case, measured in a process of its own."""
    return msgspec.json.decode(run("--case", str(number), *(["--hundred"] if hundred else [])), type=Cost)


def run(*arguments: str) -> bytes:
    """The output of a process of its own that measures a single case."""
    command = [sys.executable, "-m", "tools.bench.bounds", *arguments]
    return subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
