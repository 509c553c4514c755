"""Least connections by IPVS, and by nftproxy's algorithm of that name: `python -m tools.bench.least_connections`.

A node, three pods and a client in network namespaces for each way to choose a pod, all ways at the same time.  Each pod
works on eight requests at a time and lets the others wait.  A request is a connection that lasts until it is answered.
All ways have the same requests at the same moments: 70 % of what the pods can do.  The pods are equally fast, or the
last pod is four times slower, so that a third of the requests is more than it can do.

With several nodes each sees the connections of its own clients alone, as each agent or IPVS would.

IPVS takes its modules: `python -m tools.vm -- python -m tools.bench.least_connections`.
"""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

import click
from nftproxy_conformance.lab import RealHost, RealNetwork, RealNode, obstacle

from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.extensions.least_connections.agent.connection_counts import established_connections
from nftproxy.extensions.least_connections.agent.load_watch import LoadWatch
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.events import Put
from nftproxy.model.objects import Place
from tests.support.factories import node, pipeline, service, slice_of
from tools.bench.figures import markdown

VIP, PORT, SERVED = "10.96.0.10", 80, 8080
PODS = ("10.1.0.4", "10.1.0.5", "10.1.0.6")
WORKERS, WORK, LOAD = 8, 3.0, 0.7
"""Requests that a pod works on at a time, the mean of their seconds at a fast pod, and the load as a part of all."""
MODULES = ("ip_vs", "ip_vs_rr", "ip_vs_lc")
TCP = socket.AF_INET, socket.SOCK_STREAM
OWN = ("random", "least-connections")
"""The ways that are our rules, by the name of the algorithm."""
PATIENCE = 60.0
"""Seconds within which a client connects, or fails."""


class Request(NamedTuple):
    """The seconds after the beginning, the seconds of work at a fast pod, and the number of the client's node."""

    at: float
    work: float
    node: int


class Outcome(NamedTuple):
    """The pod that answered, and the seconds that the client waited."""

    pod: str
    took: float


class Case(NamedTuple):
    """How many times slower the last pod is, and the number of nodes."""

    slower: float
    nodes: int

    def __str__(self) -> str:
        pods = "three equal pods" if self.slower == 1 else f"one pod of three {self.slower:g} times slower"
        return f"{pods}, {self.nodes} node{'s' * (self.nodes > 1)}"


def requests_of(case: Case, seconds: float, seed: int) -> list[Request]:
    """Return the requests of a case, the same for the same seed."""
    draw = random.Random(seed)
    rate = LOAD * (len(PODS) - 1 + 1 / case.slower) * WORKERS / WORK
    made: list[Request] = []
    at = draw.expovariate(rate)
    while at < seconds:
        made.append(Request(at, draw.expovariate(1 / WORK), draw.randrange(case.nodes)))
        at += draw.expovariate(rate)
    return made


class Rules:
    """A node that has our rules for the Service, which follow its connections as in an agent."""

    def __init__(self, given: RealNode, algorithm: str) -> None:
        self._node = given
        self._pipeline = pipeline(families=[Family.IPV4])
        self._kernel = given.node.call(Kernel)
        self.writes, self.cost = 0, 0.0
        made = service(annotations={"algorithm": algorithm})
        self._pipeline.ingest([Put(node()), Put(made), Put(slice_of(endpoints=[f"{pod}@node-a" for pod in PODS]))])
        self._node.node.call(self._kernel.apply, self._pipeline.full_transaction({}))

    async def follow(self) -> None:
        """Write the rules anew whenever the agent's watch says so."""
        watch = LoadWatch(self._pipeline.balanced_lists, self._count, Metrics())
        watch.rules_loaded()
        async for events in watch.events():
            began = time.process_time()
            if transaction := self._pipeline.ingest(events):
                self._node.node.call(self._kernel.apply, transaction)
                self.writes += 1
                self.cost += time.process_time() - began

    def _count(self, places: Iterable[Place]) -> Counter[Place]:
        return self._node.node.call(established_connections, places)


class World:
    """Nodes, pods and clients, with one way to choose a pod.

    Args:
        way: a scheduler of IPVS, or an algorithm of ours.
        case: the pods and nodes.
    """

    def __init__(self, way: str, case: Case) -> None:
        self.way = way
        self._case = case
        self._stack = ExitStack()
        network = self._stack.enter_context(RealNetwork())
        self._nodes = [network.node(f"node-{number}") for number in range(case.nodes)]
        self._pods = [self._nodes[0].pod(f"pod-{n}", pod, f"fd00:1::{n + 4}") for n, pod in enumerate(PODS)]
        self._clients = [
            each.pod(f"client-{number}", f"10.1.{number}.99", f"fd00:1:0:{number}::99")
            for number, each in enumerate(self._nodes)
        ]
        self._rules: list[Rules] = []
        for each in self._nodes:
            if way in OWN:
                self._rules.append(Rules(each, way))
            else:
                serve_by_ipvs(each, way)

    async def outcomes(self, requests: Sequence[Request]) -> list[Outcome]:
        """Make the requests, and return their outcomes when all are answered."""
        slower = [1.0] * (len(PODS) - 1) + [self._case.slower]
        servers = [await serve(pod, times) for pod, times in zip(self._pods, slower, strict=True)]
        following = [asyncio.create_task(rules.follow()) for rules in self._rules]
        loop = asyncio.get_running_loop()
        began = loop.time()
        for task in following:
            loop.call_at(began + requests[-1].at, task.cancel)
        try:
            return list(await asyncio.gather(*(self._outcome(began, each) for each in requests)))
        finally:
            for task in following:
                task.cancel()
            ended = await asyncio.gather(*following, return_exceptions=True)
            for server in servers:
                server.close()
            for error in ended:
                if not isinstance(error, asyncio.CancelledError):
                    raise RuntimeError("the watch has ended") from error

    async def _outcome(self, began: float, request: Request) -> Outcome:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(began + request.at - loop.time())
        with self._clients[request.node].namespace.socket(*TCP) as made:
            made.setblocking(False)
            sent = loop.time()
            async with asyncio.timeout(PATIENCE):
                await loop.sock_connect(made, (VIP, PORT))
            await loop.sock_sendall(made, str(request.work).encode())
            pod = await loop.sock_recv(made, 100)
            assert pod, "hung up without an answer"
            return Outcome(pod.decode(), loop.time() - sent)

    @property
    def writes(self) -> str:
        """How many times rules were written, with the processor time of each."""
        count = sum(each.writes for each in self._rules)
        return f"{count} writes, {1000 * sum(each.cost for each in self._rules) / count:.1f} ms each" if count else ""

    def close(self) -> None:
        """Remove everything."""
        self._stack.close()


def serve_by_ipvs(given: RealNode, scheduler: str) -> None:
    """Make the Service a virtual server of IPVS."""
    servers = [f"-a -t {VIP}:{PORT} -r {pod}:{SERVED} -m" for pod in PODS]
    given.node.ip(f"address add {VIP}/32 dev lo")
    given.node.run(["ipvsadm", "--restore"], "\n".join([f"-A -t {VIP}:{PORT} -s {scheduler}", *servers, ""]))


async def serve(pod: RealHost, slower: float) -> asyncio.Server:
    """Answer requests in a pod with its name, each after its work."""
    working = asyncio.Semaphore(WORKERS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        work = float(await reader.read(100))
        async with working:
            await asyncio.sleep(work * slower)
        writer.write(pod.name.encode())
        await writer.drain()
        writer.close()

    listener = pod.namespace.socket(*TCP)
    listener.bind((pod.address, SERVED))
    return await asyncio.start_server(answer, sock=listener, backlog=4096)


def row(way: str, outcomes: Sequence[Outcome], writes: str) -> Sequence[str]:
    """Return the cells of a way in the table."""
    took = sorted(each.took for each in outcomes)
    pods = Counter(each.pod for each in outcomes)
    name = f"nftproxy, {way}" if way in OWN else f"IPVS {way}"
    shares = ", ".join(str(pods[f"pod-{number}"]) for number in range(len(PODS)))
    return name, f"{statistics.mean(took):.1f} s", f"{statistics.quantiles(took, n=100)[98]:.1f} s", shares, writes


async def compare(ways: Iterable[str], case: Case, seconds: float, seed: int) -> list[Sequence[str]]:
    """Try ways at the same time.  Return the rows of their table."""
    requests = requests_of(case, seconds, seed)
    with ExitStack() as stack:
        worlds = [stack.enter_context(closing(World(way, case))) for way in ways]
        outcomes = await asyncio.gather(*(world.outcomes(requests) for world in worlds))
    return [row(world.way, found, world.writes) for world, found in zip(worlds, outcomes, strict=True)]


@click.command()
@click.option("--way", "ways", multiple=True, default=["rr", "lc", *OWN], show_default=True)
@click.option("--slower", type=float, default=4.0, show_default=True, help="How many times slower the last pod is.")
@click.option("--nodes", type=int, default=1, show_default=True)
@click.option("--seconds", type=float, default=150.0, show_default=True, help="The time in which requests begin.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(ways: Sequence[str], slower: float, nodes: int, seconds: float, seed: int) -> None:
    """Print how long requests took, and how many each pod answered, for each way."""
    if why := obstacle():
        raise click.ClickException(why)
    if set(ways) - set(OWN) and subprocess.run(["modprobe", "--all", *MODULES], check=False).returncode:
        raise click.ClickException("this kernel has no IPVS; a virtual machine has (tools/vm)")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    case = Case(slower, nodes)
    rows = asyncio.run(compare(ways, case, seconds, seed))
    click.echo(markdown((str(case), "mean", "p99", "requests of each pod", "writes"), rows), nl=False)


if __name__ == "__main__":
    main()
