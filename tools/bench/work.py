"""The work of the pure parts in counts, which no other load of the machine changes: lines of Python, elements."""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from nftproxy.api.parse import parse_json
from nftproxy.library import Cluster
from nftproxy.model.annotations import PREFIX
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import Ignored
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Transaction
from nftproxy.sources.files import load
from tests.support.factories import INSTALLED_KINDS, renderer
from tools.bench import changes, cluster
from tools.bench.cluster import Pod, Size
from tools.bench.figures import Figures

LOAD, RENDER, CHANGE = "cold start", "render", "a change"
WAYS: dict[str, dict[str, str]] = {
    "plain": {},
    "affinity": {"sessionAffinity": "ClientIP"},
    "weights": {f"{PREFIX}weights": "zone:a=3,zone:b=1"},
    "round-robin": {f"{PREFIX}algorithm": "round-robin"},
    "consistent-hash": {f"{PREFIX}algorithm": "consistent-hash"},
}
"""Large Services: a field of the spec, or an annotation."""
ROLLED, AT_ONCE = 20, 100  # endpoints of a rollout, and Services that are rolled out together
LOSSES = 20
LARGE, PER_SLICE = 1_000, 100  # endpoints: the EndpointSlice controller's --max-endpoints-per-slice


def lines(work: Callable[[], object]) -> int:
    """Count the lines of Python that some work runs, with the beginnings and ends of calls.

    A comprehension on a single line counts each of its rounds.  Python 3.13 misses instructions, but no lines.
    """
    count = 0

    def note(_frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal count
        count += 1
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def measure_lines(size: Size, figures: Figures) -> None:
    """Count the lines of Python of a cold start, of `render`, and of the change of an endpoint."""
    texts = [json.dumps(each).encode() for each in cluster.objects(size)]
    pipeline, templates = cluster.new_pipeline(), renderer()

    def start() -> None:
        pipeline.ingest(map(_put, texts))
        pipeline.full_transaction({})

    with tempfile.TemporaryDirectory(prefix="nftproxy-bench-") as directory:
        path = cluster.write(size, Path(directory, "cluster.json"))
        work = {
            LOAD: start,
            RENDER: lambda: Cluster(load([path], INSTALLED_KINDS), cluster.NODE, templates=templates).render(),
            CHANGE: lambda: [_send(pipeline, change.body) for change in changes.replacements(size, 20)],
        }
        for name, function in work.items():
            figures[f"lines/{size.services}/{name}"] = lines(function)


def measure_large(figures: Figures) -> None:
    """Measure which share of a Service's elements changes when one of 1,000 endpoints goes: the mean of several."""
    for way, options in WAYS.items():
        service = cluster.service(0)
        for name, value in options.items():
            within = service["metadata"].setdefault("annotations", {}) if "/" in name else service["spec"]
            within[name] = value
        pods = [Pod(number) for number in range(LARGE)]
        parts = [pods[start : start + PER_SLICE] for start in range(0, LARGE, PER_SLICE)]
        pipeline = cluster.new_pipeline()
        for each in (service, *(cluster.slice_of(0, part, number) for number, part in enumerate(parts))):
            _send(pipeline, each)
        of_service = sum(map(pipeline.size_of, pipeline.state.services))
        touched = [made.size().elements for made in _losses(pipeline, parts)]
        figures[f"large share/{way}"] = statistics.mean(touched) / of_service


def _losses(pipeline: Pipeline, parts: list[list[Pod]]) -> Iterator[Transaction]:
    chance = random.Random(3)
    for _ in range(LOSSES):
        number = chance.randrange(len(parts))
        lost = chance.choice(parts[number])
        yield _send(pipeline, cluster.slice_of(0, [each for each in parts[number] if each != lost], number))
        _send(pipeline, cluster.slice_of(0, parts[number], number))


def measure_rollout(size: Size, figures: Figures) -> None:
    """Count elements and declarations of each change while a hundred Services exchange 20 endpoints, one at a time."""
    pipeline = cluster.new_pipeline()
    pipeline.ingest(_put(json.dumps(each).encode()) for each in cluster.objects(size))
    sizes = []
    for step in range(1, ROLLED + 1):
        for service in range(AT_ONCE):
            new = [Pod(cluster.SPARE + service * ROLLED + number) for number in range(ROLLED)]
            endpoints = [*cluster.pods(size, service), *new][step : step + size.endpoints]
            sizes.append(_send(pipeline, cluster.slice_of(service, endpoints)).size())
    figures["rolled/elements/mean"] = statistics.mean(each.elements for each in sizes)
    figures["rolled/elements/max"] = max(each.elements for each in sizes)
    figures["rolled/declarations"] = sum(each.statements - each.elements for each in sizes)


def _send(pipeline: Pipeline, given: cluster.Object | None) -> Transaction:
    return pipeline.ingest([_put(json.dumps(given).encode())])


def _put(text: bytes) -> Event:
    parsed = parse_json(text, "", [], kinds=INSTALLED_KINDS)
    assert parsed is not None
    assert not isinstance(parsed, Ignored)
    return Put(parsed)
