"""An API server that goes and comes back: `python -m tools.bench.outages`.

Many nodes are simulated: each has the reflectors that the agent has, with a clock and chance that are made up.  Beside
them stands a model of client-go's reflector (tools/cache/reflector.go of 1.36, with list and watch), as kube-proxy has
four of them too.  The server answers at once and to everybody, but it has no history from before: each watch gets 410.

A last node is real: the agent as a process, its rules in a kernel, and the tests' API server, which goes and comes too.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Lab, obstacle

from nftproxy.api.pauses import ReflectorTimes
from nftproxy.api.reflector import ApiRequest, Reflector
from nftproxy.api.resources import Resource, resources
from tests.support.lists import receive_list
from tests.system.faults.bench import Bench, endpoints, furnish, service

NODES = 5_000
AWAY = (2.0, 12.0, 60.0)
"""Seconds: a restart, and outages after which client-go's pauses are long and longest."""
LATENCY = 0.005  # seconds from a request to its answer
BACKUP, KNOWN, LATER = 900, 1_000, 2_000  # versions: of a backup, as the nodes know it, and when the server is back
SERVICES = 200  # of the real node
PATIENCE = 120.0  # seconds


class Step(NamedTuple):
    """The next step of a client: after so many seconds, or as soon as another client of its node has an answer."""

    seconds: float
    awaits_server: bool = False


class Ours:
    """Our own reflector, fed with the bytes that a server would send."""

    def __init__(self, resource: Resource, chance: Callable[[], float], times: ReflectorTimes) -> None:
        self.is_right = False
        self._chance = chance
        self._kind = resource.kind.name
        self._reflector = Reflector(resource, times)
        for request_at in (-1_000.0, -999.0):  # a listing, and a watch that runs
            request = self._reflector.request(request_at, chance())
            self._reflector.receive_answer(request_at)
            if not request.is_watch:
                receive_list(self._reflector, self._page(KNOWN), request_at)
        self._reflector.receive_failure("reset", 0.0)

    @property
    def first(self) -> Step:
        """The step that follows the loss of the watch."""
        return self._next()

    def attempt(self, now: float, version: int | None) -> tuple[str, Step | None]:
        """Make a request."""
        request = self._reflector.request(now, self._chance())
        if version is None:
            self._reflector.receive_failure("refused", now)
            return "", self._next()
        self._reflector.receive_answer(now)
        verb = _verb(request)
        if not request.is_watch:
            self.is_right |= bool(receive_list(self._reflector, self._page(version), now))
        elif int(request.params["resourceVersion"]) < version:
            self._reflector.receive_data(_GONE, now)
        else:
            return verb, None
        return verb, self._next()

    def _page(self, version: int) -> bytes:
        return b'{"kind":"%sList","metadata":{"resourceVersion":"%d"},"items":[]}' % (self._kind.encode(), version)

    def _next(self) -> Step:
        pause = self._reflector.pause
        return Step(pause.seconds(self._chance()), pause.awaits_server)


def _verb(request: ApiRequest) -> str:
    if request.is_watch:
        return "watch"
    return "question" if request.params.get("limit") == "1" else "list"


_GONE = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'


class ClientGo:
    """client-go's: it watches until it is answered, and lists after a backoff.

    wait.NewExponentialBackoffManager(800 ms, 30 s, 2 min, 2.0, 1.0): doubled each time, up to as much again by chance,
    reset after two minutes without a failure.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        self.is_right = False
        self.first = Step(0.0)
        self._chance = chance
        self._duration = 0.8
        self._verbs = iter(("watch", "list", "watch"))
        self._last = 0.0

    def attempt(self, now: float, version: int | None) -> tuple[str, Step | None]:
        """Make a request."""
        if version is None:
            return "", self._backoff(now)
        verb = next(self._verbs)
        if verb == "list":
            self.is_right = True
            return verb, Step(0.0)
        return verb, None if self.is_right else self._backoff(now)

    def _backoff(self, now: float) -> Step:
        if now - self._last > 120.0:
            self._duration = 0.8
        self._last = now
        pause, self._duration = self._duration, min(self._duration * 2.0, 30.0)
        return Step(pause * (1.0 + self._chance()))


class Result(NamedTuple):
    """The result for many nodes: seconds from the server's return until each was right, and the requests that it took.

    `peak` is the most of them in a second, `attempts` how many connections a node tried in vain in a second.
    """

    seconds: list[float]
    requests: Counter[str]
    peak: int
    attempts: float

    def percentile(self, percent: int) -> float:
        """The time within which so many of a hundred nodes were right."""
        return statistics.quantiles(self.seconds, n=100)[percent - 1] if percent < 100 else max(self.seconds)


Fleet = Sequence[Sequence[Ours | ClientGo]]


class Simulation:
    """Nodes and a server that is away from time 0 on, and the nodes' next requests in the order of their times.

    Args:
        fleet: each node's clients.
        away: seconds.
        version: the server's when it is back.
    """

    def __init__(self, fleet: Fleet, away: float, version: int) -> None:
        self._fleet = fleet
        self._away = away
        self._version = version
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, int, Ours | ClientGo]] = []
        self._planned: dict[Ours | ClientGo, tuple[int, Step]] = {}
        self._requests, self._per_second = Counter[str](), Counter[int]()
        self._attempts = 0
        self._right: dict[int, float] = {}

    def run(self) -> Result:
        """Follow each node until its watches run."""
        for node, clients in enumerate(self._fleet):
            for client in clients:
                self._plan(0.0, node, client, client.first)
        while self._due:
            now, number, node, client = heapq.heappop(self._due)
            if self._planned[client][0] == number:
                self._attempt(now, node, client)
        attempts = self._attempts / len(self._fleet) / self._away
        return Result(list(self._right.values()), self._requests, max(self._per_second.values()), attempts)

    def _plan(self, now: float, node: int, client: Ours | ClientGo, step: Step) -> None:
        number = next(self._numbers)
        self._planned[client] = number, step
        heapq.heappush(self._due, (now + step.seconds, number, node, client))

    def _attempt(self, now: float, node: int, client: Ours | ClientGo) -> None:
        is_back = now >= self._away
        verb, step = client.attempt(now, self._version if is_back else None)
        self._planned[client] = -1, Step(0.0)
        if is_back:
            now += LATENCY
            self._requests[verb] += 1
            self._per_second[int(now - self._away)] += 1
            self._wake(now, node)
        else:
            self._attempts += 1
        if step is not None:
            self._plan(now, node, client, step)
        if all(each.is_right for each in self._fleet[node]):
            self._right.setdefault(node, now - self._away)

    def _wake(self, now: float, node: int) -> None:
        """Wake the clients of this node that wait for the server, as its `Cluster` does it."""
        for client in self._fleet[node]:
            if self._planned[client][1].awaits_server:
                self._plan(now, node, client, Step(0.0))


def simulate(nodes: int, away: float, make: Callable[[], Sequence[Ours | ClientGo]], version: int = LATER) -> Result:
    """Let a server be away for so long, and come back with a version, but no history."""
    return Simulation([make() for _ in range(nodes)], away, version).run()


def ours(seed: int, times: ReflectorTimes | None = None) -> Callable[[], list[Ours]]:
    """Makes a node of ours."""
    chance = random.Random(seed).random
    return lambda: [Ours(resource, chance, times or ReflectorTimes()) for resource in resources("node")]


def client_go(seed: int) -> Callable[[], list[ClientGo]]:
    """Makes a node of client-go's: Services, EndpointSlices, ServiceCIDRs and its Node, as ours."""
    chance = random.Random(seed).random
    return lambda: [ClientGo(chance) for _ in resources("node")]


# A real node


class Real(NamedTuple):
    """The result for a node: seconds from the server's return until its rules were right, and its requests."""

    seconds: float
    requests: Counter[str]


def measure(away: Sequence[float]) -> Iterator[tuple[str, Real]]:
    """Let the tests' server go and come back, without its history, and then from a backup."""
    with Lab() as lab, ApiServer(tls=True, authenticate=True, make_socket=lab.node.socket) as server:
        furnish(server)
        for number in range(1_000, 1_000 + SERVICES):
            server.put(service(number), endpoints(number))
        with tempfile.TemporaryDirectory() as directory, Bench(lab, server, Path(directory)) as bench:
            bench.start()
            bench.wait_until_right()
            for number, seconds in enumerate(away):
                yield f"{seconds:.0f} s away, history lost", _outage(bench, seconds, number)
            yield "12 s away, backup restored", _restore(bench, 12.0)


def _outage(bench: Bench, away: float, number: int) -> Real:
    """A server that loses its history, and changes meanwhile."""
    time.sleep(ReflectorTimes().healthy)
    bench.server.stop()
    bench.server.put(service(3_000 + number), endpoints(3_000 + number))
    bench.server.delete("Service", "shop", f"s{1_000 + number}")
    time.sleep(away)
    bench.server.compact()
    return _return(bench)


def _restore(bench: Bench, away: float) -> Real:
    """An etcd that is restored from a backup, which has a few Services less."""
    backup = bench.server.revision
    for number in range(4_000, 4_031):
        bench.server.put(service(number), endpoints(number))
    bench.wait_until_right()
    time.sleep(ReflectorTimes().healthy)
    bench.server.stop()
    bench.server.restore(backup)
    time.sleep(away)
    return _return(bench)


def _return(bench: Bench) -> Real:
    bench.count_anew()
    bench.wanted()
    bench.server.start()
    began = time.monotonic()
    bench.wait_until(bench.is_right, PATIENCE)
    seconds = time.monotonic() - began
    bench.wait_until_right()
    requests = [each for each in bench.requests() if each.verb in {"list", "watch"}]
    return Real(seconds, Counter("question" if each.query.get("limit") == "1" else each.verb for each in requests))


def _row(name: str, result: Result, nodes: int) -> str:
    times = "; ".join(f"{result.percentile(percent):.1f} s" for percent in (50, 99, 100))
    each = ", ".join(f"{count / nodes:.4g} {verb}" for verb, count in sorted(result.requests.items()))
    return f"| {name} | {times} | {each} | {result.peak:,} | {result.attempts:.2f} |"


@click.command()
@click.option("--nodes", default=NODES, show_default=True, help="How many are simulated.")
@click.option("--seed", default=1, show_default=True, help="Of chance.")
@click.option("--simulated-only", is_flag=True, help="Leave the real node out, which takes two minutes and root.")
def main(nodes: int, seed: int, simulated_only: bool) -> None:
    """Print the tables of docs/performance.md about outages."""
    click.echo("| simulated | right after: p50; p99; all | requests of a node | most in a second | tried in vain |")
    click.echo("| --- | --- | --- | --- | --- |")
    restored = simulate(nodes, 12.0, ours(seed), BACKUP)
    click.echo(_row("12 s away, backup restored, nftproxy", restored, nodes))
    for away in AWAY:
        for name, make in (("nftproxy", ours(seed)), ("client-go", client_go(seed))):
            click.echo(_row(f"{away:.0f} s away, {name}", simulate(nodes, away, make), nodes))
    if simulated_only:
        return
    if why := obstacle():
        raise click.ClickException(why)
    click.echo("\n| one real node | rules right after | requests |\n| --- | --- | --- |")
    for name, real in measure((2.0, 12.0, 30.0)):
        each = ", ".join(f"{count} {verb}" for verb, count in sorted(real.requests.items()))
        click.echo(f"| {name} | {real.seconds:.1f} s | {each} |")


if __name__ == "__main__":
    main()
