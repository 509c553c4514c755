"""Single changes in a row: how long each takes to get into the kernel, and its cost.

A commit belongs to a change if the messages about it name the addresses that the change touches.  The pauses between
two changes are longer than minSyncPeriod (10 ms by default), so that none waits for another.
"""

from __future__ import annotations

import ipaddress
import random
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tools.bench import cluster
from tools.bench.cluster import SERVICES, SLICES, Object, Pod, Size
from tools.bench.figures import Figures, note
from tools.bench.listener import Listener
from tools.bench.rig import Rig

PAUSE = (0.13, 0.19)  # seconds, at random, so that changes don't fall into step with anything
WARM_UP = 5  # rounds: each new number of endpoints makes a new chain once


class Change(NamedTuple):
    """A write of some kind, and the addresses in the elements that it touches.  Without any there is no commit."""

    kind: str
    method: str
    path: str
    body: Object | None
    touches: tuple[str, ...]


class Sample(NamedTuple):
    """A change that was made: the seconds from the API's answer until the commit, and the commit's counts."""

    kind: str
    seconds: float
    elements: int
    rules: int


REPLACED, REMOVED, ADDED = "endpoint replaced", "endpoint removed", "endpoint added"
UNREADY, READY = "endpoint unready", "endpoint ready"
CREATED, FILLED, DELETED = "Service created", "its EndpointSlice created", "Service deleted"
KINDS = (REPLACED, REMOVED, ADDED, UNREADY, READY, CREATED, FILLED, DELETED)
SLICE_WRITES = frozenset({REPLACED, REMOVED, ADDED, UNREADY, READY, FILLED})
ALL = "EndpointSlice write"
"""The name of the figure for all changes that are writes of EndpointSlices."""
OTHERS = "all other kinds"


# ---- kinds of changes ----------------------------------------------------------------------------------------------


def replacements(size: Size, count: int) -> Iterator[Change]:
    """Another pod in the place of a Service's first, and then that pod back, for many Services in turn."""
    for number, service in enumerate(_services(size, count // 2, seed=1)):
        first = cluster.pods(size, service)[0]
        yield replacement(size, service, Pod(cluster.SPARE + number))
        yield replacement(size, service, first)


def replacement(size: Size, service: int, newcomer: Pod) -> Change:
    """The change that puts `newcomer` in the place of a Service's first endpoint."""
    return put(REPLACED, service, [*cluster.pods(size, service)[1:], newcomer], newcomer)


def rounds(size: Size, count: int) -> Iterator[Change]:
    """Yield `count` changes of each other kind, in turn.  At the end the cluster is as before."""
    for number, service in enumerate(_services(size, count, seed=2)):
        *rest, last = cluster.pods(size, service)
        yield put(REMOVED, service, rest, last)
        yield put(ADDED, service, [*rest, last], last)
        yield put(UNREADY, service, [*rest, last._replace(is_ready=False)], last)
        yield put(READY, service, [*rest, last], last)
        yield from _newcomer(size, size.services + number)


def _newcomer(size: Size, service: int) -> Iterator[Change]:
    """A Service comes, gets its endpoints, and goes."""
    vip = cluster.vip(service)
    endpoints = cluster.pods(size, service)
    yield Change(CREATED, "POST", SERVICES, cluster.service(service), (vip,))
    yield Change(FILLED, "POST", SLICES, cluster.slice_of(service, endpoints), (vip, endpoints[-1].address))
    yield Change(DELETED, "DELETE", f"{SERVICES}/s{service}", None, (vip,))
    yield Change("", "DELETE", f"{SLICES}/s{service}-1", None, ())


def put(kind: str, service: int, endpoints: list[Pod], touched: Pod) -> Change:
    """The change that writes a slice with these endpoints.  `touched` is the pod that comes, goes or changes."""
    body = cluster.slice_of(service, endpoints)
    return Change(kind, "PUT", f"{SLICES}/s{service}-1", body, (cluster.vip(service), touched.address))


def _services(size: Size, count: int, seed: int) -> Iterator[int]:
    chosen = list(range(size.services))
    random.Random(seed).shuffle(chosen)
    for number in range(count):
        yield chosen[number % size.services]


# ---- making them ---------------------------------------------------------------------------------------------------


def make(rig: Rig, listener: Listener, change: Change) -> Sample:
    """Write a change, and wait for its commit, which must be the first that follows.

    Raises:
        TimeoutError: no commit touches the addresses of the change.
        AssertionError: another commit came first.
    """
    listener.take()
    answered = rig.write(change.method, change.path, change.body)
    commits = listener.wait(tuple(ipaddress.ip_address(each).packed for each in change.touches))
    assert len(commits) == 1, f"{len(commits)} commits for one change: {change}"
    commit = commits[0]
    return Sample(change.kind, commit.time - answered, commit.elements, commit.rules)


def series(rig: Rig, listener: Listener, changes: Iterable[Change]) -> list[Sample]:
    """Make the changes in order, each after a pause."""
    samples = []
    for change in changes:
        if change.touches:
            time.sleep(random.uniform(*PAUSE))
            samples.append(make(rig, listener, change))
        else:
            rig.write(change.method, change.path, change.body)
    return samples


def measure(rig: Rig, figures: Figures) -> None:
    """Make changes of all kinds: enough of each for its 99th percentile, where a target is set for that."""
    measure_rounds(rig, figures, 100 if rig.size.services == 10_000 else 40)


def measure_rounds(rig: Rig, figures: Figures, count: int) -> None:
    """Make `count` changes of each kind, and note the figures of each kind and of all writes of EndpointSlices."""
    services = rig.size.services
    samples = []
    with rig.listener() as listener:
        series(rig, listener, rounds(rig.size, WARM_UP))
        for name, changes in ((REPLACED, replacements(rig.size, count)), (OTHERS, rounds(rig.size, count))):
            before = rig.agent.cpu
            made = series(rig, listener, changes)
            figures[f"cpu/{services}/{name}"] = (rig.agent.cpu - before) / len(made)
            samples += made
    note(figures, f"latency/{services}/{ALL}", (each.seconds for each in samples if each.kind in SLICE_WRITES))
    for kind in KINDS:
        of_kind = [each for each in samples if each.kind == kind]
        note(figures, f"latency/{services}/{kind}", (each.seconds for each in of_kind))
        note(figures, f"elements/{services}/{kind}", (each.elements for each in of_kind))
        figures[f"rules/{services}/{kind}"] = max(each.rules for each in of_kind)
