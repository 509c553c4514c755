"""Where the time of a change goes: the agent's own modules in this process, with a stopwatch around each stage."""

from __future__ import annotations

import functools
import gc
import json
import resource
import socket
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

import msgspec
from nftproxy_conformance.lab.node import Node

from nftproxy import pipeline
from nftproxy.api.reflector import Reflector
from nftproxy.api.resources import resources
from nftproxy.installed import INSTALLED, OPTIONS
from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.kernel.nfnetlink.element_batch import ElementWriter
from nftproxy.pipeline import Pipeline
from nftproxy.policy.extension import Settings
from nftproxy.policy.flows import Flows
from nftproxy.policy.state import ClusterState
from nftproxy.rules.renderer import Renderer
from nftproxy.rules.ruleset import Generation
from nftproxy.rules.transaction import Transaction
from tests.support.factories import renderer
from tests.support.lists import receive_list
from tools.bench import changes, cluster
from tools.bench.changes import Change
from tools.bench.cluster import Size
from tools.bench.figures import Figures
from tools.bench.rig import Rig

P = ParamSpec("P")
T = TypeVar("T")

COUNT, FIRST = 400, 20  # timed changes, after the first changes, which make chains
ARRIVALS = 50
COUNTED = "endpoint removed or added"
API, MESSAGES, KERNEL, COMMIT = "API server to socket", "netlink messages", "kernel", "messages and kernel"
OTHER_PIPELINE, OTHER_KERNEL = "the rest of the pipeline", "around the messages: locks and files"

# In the order in which a change passes them.  Each has its own time only, without that of stages inside it.
STAGES: tuple[tuple[str, Any, str], ...] = (
    ("decode and parse", Reflector, "receive_data"),
    ("state", ClusterState, "ingest"),
    ("compile", pipeline, "compile_service"),
    ("render", Renderer, "port"),
    ("diff", Generation, "replace_blocks"),
    ("transaction", pipeline, "change_transaction"),
    ("UDP flows", Flows, "refresh"),
    (OTHER_PIPELINE, Pipeline, "ingest"),
    (COMMIT, ElementWriter, "apply"),
    (OTHER_KERNEL, Kernel, "apply"),
)
NAMES = (API, *dict.fromkeys(name for name, _, _ in STAGES if name != COMMIT), MESSAGES, KERNEL)


class Stopwatch:
    """The time of each stage since the last look, without that of the stages inside it."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def running(self, stage: str) -> Iterator[None]:
        """Count the time inside as this stage's."""
        self._note()
        self._running.append(stage)
        try:
            yield
        finally:
            self._note()
            self._running.pop()

    def _note(self) -> None:
        now = time.perf_counter()
        if self._running:
            self._seconds[self._running[-1]] += now - self._since
        self._since = now

    def around(self, stage: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function, with its time counted, and if it is a generator, that of its steps."""

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.running(stage):
                result = function(*args, **kwargs)
            return self._steps(stage, result) if isinstance(result, Generator) else result  # type: ignore[return-value]

        return call

    def _steps(self, stage: str, steps: Iterable[Any]) -> Iterator[Any]:
        iterator = iter(steps)
        nothing = object()
        while True:
            with self.running(stage):
                step = next(iterator, nothing)
            if step is nothing:
                return
            yield step

    def take(self) -> dict[str, float]:
        """The seconds of each stage, which begin again at 0."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds


def measure_arrival(rig: Rig, figures: Figures) -> None:
    """Measure the time from the API server's answer to a write until a watcher has the event."""
    with Watcher(rig) as watcher, rig.listener() as listener:
        delays = []
        for change in changes.replacements(rig.size, ARRIVALS):
            watcher.arrived.clear()
            sample = changes.make(rig, listener, change)
            assert watcher.arrived.wait(5)
            delays.append(watcher.time - sample.answered)
            time.sleep(changes.PAUSE[1])
    figures[f"stages/{API}"] = statistics.median(delays)


class Watcher:
    """A watch of all EndpointSlices beside the agent's."""

    def __init__(self, rig: Rig) -> None:
        self.arrived = threading.Event()
        self.time = 0.0
        self._end = rig.node.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._end.connect(("127.0.0.1", rig.port))
        path = f"{cluster.SLICES}?watch=1&resourceVersion={rig.revision()}"
        self._end.sendall(f"GET {path} HTTP/1.1\r\nHost: api\r\n\r\n".encode())
        self._end.recv(1 << 16)  # the headers
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while self._end.recv(1 << 16):
            self.time = time.monotonic()
            self.arrived.set()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._end.close()


def measure_stages(size: Size, figures: Figures) -> None:
    """Time each stage of changes that keep the number of endpoints, and of changes that don't."""
    stopwatch = Stopwatch()
    with Node("stages") as node, ExitStack() as stack:
        made = _Middle(size)
        node.call(made.load)
        for name, owner, attribute in STAGES:
            function = getattr(owner, attribute)
            stack.enter_context(patch.object(owner, attribute, stopwatch.around(name, function)))
        gc.collect()
        gc.freeze()
        for what, made_changes in (
            (changes.REPLACED, changes.replacements(size, COUNT + FIRST)),
            (COUNTED, _lost_and_found(size)),
        ):
            _time(node, made, stopwatch, made_changes, f"stages/{what}", figures)
        gc.unfreeze()


def _lost_and_found(size: Size) -> Iterator[Change]:
    kinds = (changes.REMOVED, changes.ADDED)
    return (change for change in changes.rounds(size, (COUNT + FIRST) // 2) if change.kind in kinds)


class _Middle:
    """All between the socket and the kernel, as the agent has it."""

    def __init__(self, size: Size) -> None:
        self.pipeline = Pipeline(
            cluster.NODE, Settings(capabilities=probe().capabilities, extensions=INSTALLED), renderer()
        )
        self.kernel = Kernel()
        self.revision = 1
        by_kind: dict[str, list[cluster.Object]] = defaultdict(list)
        for each in cluster.objects(size):
            by_kind[each["kind"]].append(each)
        for resource_ in resources(cluster.NODE, options=OPTIONS):
            reflector = Reflector(resource_)
            reflector.request(0.0, 0.5)
            name = resource_.kind.name
            body = {"kind": f"{name}List", "metadata": {"resourceVersion": "1"}, "items": by_kind[name]}
            body["apiVersion"] = resource_.kind.api_versions[0]
            self.pipeline.ingest(receive_list(reflector, msgspec.json.encode(body)))
            assert not reflector.pause.reason, reflector.pause
            if name == "EndpointSlice":
                self.slices = reflector
        self.slices.request(0.0, 0.5)  # the watch

    def load(self) -> None:
        """Load everything."""
        self.kernel.apply(self.pipeline.full_transaction({}))

    def line(self, change: Change) -> bytes:
        """The line of a watch about a change."""
        assert change.body is not None
        self.revision += 1
        change.body["metadata"]["resourceVersion"] = str(self.revision)
        return json.dumps({"type": "MODIFIED", "object": change.body}).encode() + b"\n"

    def follow(self, line: bytes) -> Transaction:
        """From the socket to the transaction."""
        return self.pipeline.ingest(self.slices.receive_data(line, 0.0))


def _time(node: Node, made: _Middle, stopwatch: Stopwatch, each: Iterable[Change], name: str, figures: Figures) -> None:
    """Time changes.  The node's thread does nothing but commit, so its own time is that of the messages."""
    times: dict[str, list[float]] = defaultdict(list)
    own = 0.0
    for number, change in enumerate(each):
        line = made.line(change)
        time.sleep(0.01)  # the kernel frees the remains of a commit
        if number == FIRST:
            times.clear()
            own = node.call(_own_time)
        stopwatch.take()
        node.call(made.kernel.apply, made.follow(line))
        for stage, seconds in stopwatch.take().items():
            times[stage].append(seconds)
    commits = times.pop(COMMIT)
    own_part = min((node.call(_own_time) - own) / len(commits), statistics.mean(commits))
    figures[f"{name}/{MESSAGES}"] = own_part
    figures[f"{name}/{KERNEL}"] = statistics.mean(commits) - own_part
    for stage, spent in times.items():
        figures[f"{name}/{stage}"] = statistics.median(spent)


def _own_time() -> float:
    """Seconds that this thread has spent outside the kernel, counted by ticks, so good for many changes together."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_utime
