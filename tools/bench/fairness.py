"""The delay of small changes beside a tenant whose changes are large: `python -m tools.bench.fairness`.

For a minute an agent's loop with a kernel of its own follows two tenants.  The hostile tenant changes a large Service
twice a second.  The victim has an endpoint that moves four times a second.  The command prints the time until the
kernel has the victim's endpoint, and the agent's peak of memory.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import resource
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

import click
from nftproxy_conformance.lab.node import Node

from nftproxy.agent.loop import SyncLoop
from nftproxy.agent.reporting.health import Health
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.kernel.async_kernel import AsyncKernel
from nftproxy.kernel.drift import TableWatch
from nftproxy.kernel.nfnetlink.commit_listener import CommitListener
from nftproxy.model.events import Event, Listed, Put
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.rules.transaction import Commit, Transaction
from tests.support.factories import node, pipeline, service, slice_of
from tests.support.processes import CHECKOUT
from tools.bench.bounds import hosts

SECONDS, REWRITES, MOVES = 60.0, 0.5, 0.25
"""The duration of each case, and the seconds between changes of the large Service, and of the victim's endpoint."""
LARGE, ITS_IP = "evil/one", "10.97.0.1"
PORTS, PODS = 100, 1_000
"""100,000 rows, which is the limit of a Service."""
TENANTS, SERVICES = 10, 14
"""The tenants with many small changes, and the Services of each."""
WEIGHTED = 4
"""Rows that an endpoint counts as, if endpoints have weights."""
NAMES = [f"p{port}:{port}" for port in range(1, PORTS + 1)]


class Case(NamedTuple):
    """The objects that the hostile tenant rewrites, by the number of the change."""

    what: str
    change: Callable[[int], Sequence[Service | EndpointSlice]]
    start: Callable[[], Sequence[Service | EndpointSlice]] = lambda: large()


def large(number: int = 0, algorithm: str = "random") -> list[Service | EndpointSlice]:
    """The large Service and its slice."""
    asked = {} if algorithm == "random" else {"algorithm": algorithm}
    offered = [f"p{port}:{port + number % 2}" for port in range(1, PORTS + 1)]
    return [
        service(LARGE, cluster_ips=[ITS_IP], ports=list(NAMES), annotations=asked),
        slice_of(LARGE, list(hosts(PODS)), ports=offered),
    ]


def flipped(number: int) -> list[Service | EndpointSlice]:
    """The large Service with another algorithm."""
    return large(algorithm=("random", "round-robin")[number % 2])[:1]


def weighted(number: int) -> list[Service | EndpointSlice]:
    """The large Service with a weight for a zone, or without."""
    asked: dict[str, str] = {"weights": "zone:b=2"} if number % 2 else {}
    pods = [f"{pod}@node-b{' in=b' * (index % 2)}" for index, pod in enumerate(hosts(PODS // WEIGHTED))]
    return [
        service(LARGE, cluster_ips=[ITS_IP], ports=list(NAMES), annotations=asked),
        slice_of(LARGE, pods, ports=list(NAMES)),
    ]


def many_services() -> list[Service | EndpointSlice]:
    """Services of ten namespaces, 4,000 rows each, which are within the budget together."""
    made: list[Service | EndpointSlice] = []
    for index in range(TENANTS * SERVICES):
        made.append(service(_name(index), cluster_ips=[f"10.97.{index // 250}.{1 + index % 250}"], ports=NAMES[:10]))
        made += many_changes(index)
    return made


@functools.cache
def many_changes(index: int, version: int = 0) -> list[Service | EndpointSlice]:
    """The slice of such a Service, an endpoint of which is another in each version."""
    return [slice_of(_name(index), [*hosts(399), f"10.4.0.{1 + version}"], ports=NAMES[:10])]


def _name(index: int) -> str:
    return f"evil-{index % TENANTS}/s{index // TENANTS}"


def many(number: int) -> list[Service | EndpointSlice]:
    """Half of these Services with another endpoint."""
    return [each for index in range(number % 2, TENANTS * SERVICES, 2) for each in many_changes(index, number // 2 % 4)]


CASES = (
    Case("nothing", lambda _: ()),
    Case("the ports of its slice", large),
    Case("`algorithm`, random or round-robin", flipped),
    Case("`weights`, none or `zone:b=2`", weighted),
    Case("each second all of ten tenants' 14 Services of 4,000 rows", many, many_services),
)


class Watched(AsyncKernel):
    """A kernel that measures the time until the victim's endpoints are in force."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.moved: dict[str, float] = {}

    async def apply(self, transaction: Transaction) -> Commit:
        """Apply the transaction."""
        commit = await super().apply(transaction)
        for pod in [pod for pod in self.moved if f": {pod} . " in transaction.text]:
            self.waits.append(time.monotonic() - self.moved.pop(pod))
        return commit


async def measure(case: Case) -> str:
    """Return a row of the table."""
    made, kernel = pipeline(node=None), Watched()
    reporter = SyncReporter(Health(30.0, made.generations), Metrics())
    listener = CommitListener()
    began = asyncio.Event()

    async def loaded(_: object) -> float:
        began.set()
        return float("inf")

    loop = SyncLoop(
        made,
        kernel,
        reporter,
        TableWatch(listener),
        loaded,
        sync_period=30.0,
        min_sync_period=0.02,
    )
    asyncio.get_running_loop().add_reader(listener.fileno(), loop.read_commits)
    started = case.start()
    small = [service("shop/web")]

    async def everything() -> AsyncGenerator[Sequence[Event]]:
        services = tuple(each for each in (*started, *small) if isinstance(each, Service))
        slices = tuple(each for each in started if isinstance(each, EndpointSlice))
        yield [Put(node()), Listed(Service, services), Listed(EndpointSlice, slices)]
        await asyncio.Event().wait()

    async def rewriting() -> AsyncGenerator[Sequence[Event]]:
        yield []
        await began.wait()
        for number in itertools.count(1):
            yield [Put(each) for each in case.change(number)]
            await asyncio.sleep(REWRITES)

    async def moving() -> AsyncGenerator[Sequence[Event]]:
        yield []
        await began.wait()
        for pod in hosts(int(SECONDS / MOVES), "10.3"):
            kernel.moved[pod] = time.monotonic()
            yield [Put(slice_of("shop/web", [pod], suffix=pod))]
            await asyncio.sleep(MOVES)
        loop.stop()

    await loop.run({"cluster": everything(), "rewriting": rewriting(), "moving": moving()})
    kernel.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    waits = sorted([*kernel.waits, *(time.monotonic() - at for at in kernel.moved.values())])
    late = sum(each > 1.0 for each in waits) / len(waits)
    return f"| {case.what} | {median(waits):.2f} s | {waits[-1]:.1f} s | {late:.0%} | {memory:.0f} MB |"


def rows() -> Iterator[str]:
    """The rows of the table, each measured in a separate process."""
    for number in range(len(CASES)):
        command = [sys.executable, "-m", "tools.bench.fairness", "--case", str(number)]
        yield subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE).stdout.decode().strip()


@click.command()
@click.option("--case", "chosen", type=int, hidden=True)
def main(chosen: int | None) -> None:
    """Print a row for each kind of change."""
    if chosen is not None:
        with Node("node") as lab:
            click.echo(lab.call(lambda: asyncio.run(measure(CASES[chosen]))))
        return
    click.echo("| a tenant rewrites twice a second | others wait, p50 | at most | more than 1 s | peak of memory |")
    click.echo("| --- | --- | --- | --- | --- |")
    for row in rows():
        click.echo(row)


if __name__ == "__main__":
    main()
