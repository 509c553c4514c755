"""Starting: cold, and again over rules that are there, with connections made all the while."""

from __future__ import annotations

import itertools
import statistics
import threading
from collections.abc import Iterator

from nftproxy.lab import Kind, Lab, Origin, Outcome, Probe
from tools.bench import cluster
from tools.bench.cluster import Size
from tools.bench.figures import Figures
from tools.bench.world import World

COLD_STARTS = 3
AT_ONCE, EVERY = 100, 0.05  # connections, and seconds between: some 2,000 a second, a few hundredths of a processor


def measure_start(world: World, figures: Figures) -> None:
    """From the process's start until the kernel has everything, with no rules before; and what memory that takes."""
    name = f"{world.size.services}"
    times = []
    for _ in range(COLD_STARTS):
        world.stop_agent()
        world.forget_rules()
        times.append(world.start_agent())
    world.settle()
    figures[f"start/{name}"] = statistics.median(times)
    figures[f"memory/{name}/settled"] = world.agent.resident
    figures[f"memory/{name}/peak"] = world.agent.peak


def measure_restart(size: Size, figures: Figures, times: int = 3) -> None:
    """The agent ends and starts again over its rules, while connections are made to Services."""
    with Lab() as lab, World(size, lab.node) as world:
        world.start_agent()
        world.settle()
        with Connecting(lab, size) as connecting:
            figures[f"restart/{size.services}"] = statistics.median(_restarted(world) for _ in range(times))
        figures[f"restart/{size.services}/connections"] = connecting.count
        figures[f"restart/{size.services}/lost"] = len(connecting.astray)


def _restarted(world: World) -> float:
    world.stop_agent()
    seconds = world.start_agent()
    world.settle()
    return seconds


class Connecting:
    """A pod that connects to one Service after the other, all the while, and what became of it.

    Args:
        lab: where the node is.
        size: of the cluster.

    Attributes:
        count: how many connections there were.
        astray: those that reached none of their Service's endpoints.
    """

    def __init__(self, lab: Lab, size: Size) -> None:
        self.count = 0
        self.astray: list[Outcome] = []
        self._lab = lab
        self._size = size
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._connect, name="connecting")

    def __enter__(self) -> Connecting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _connect(self) -> None:
        services = itertools.cycle(range(self._size.services))
        while not self._is_over.wait(EVERY):
            batch = list(itertools.islice(services, AT_ONCE))
            outcomes = self._lab.connect_many([Probe(Origin.POD, cluster.vip(each), 80) for each in batch])
            self.count += len(outcomes)
            self.astray += self._wrong(batch, outcomes)

    def _wrong(self, services: list[int], outcomes: list[Outcome]) -> Iterator[Outcome]:
        for service, outcome in zip(services, outcomes, strict=True):
            wanted = {pod.address for pod in cluster.pods(self._size, service)}
            if outcome.kind is not Kind.ENDPOINT or outcome.endpoint is None or outcome.endpoint.ip not in wanted:
                yield outcome
