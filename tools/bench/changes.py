"""Single changes, one after the other: what is written to the API, and by what its commit is known.

The pauses between two are longer than minSyncPeriod (20 ms by default), so that none waits for another.
"""

from __future__ import annotations

import ipaddress
import random
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tools.bench import cluster
from tools.bench.cluster import SERVICES, SLICES, Object, Pod, Size
from tools.bench.listener import Listener
from tools.bench.world import World

PAUSE = (0.13, 0.19)  # seconds, at random, so that nothing falls into step with anything


class Change(NamedTuple):
    """A write, of a kind, and what the messages about its commit must name: addresses in the elements that it touches.

    One that touches nothing has no commit.
    """

    kind: str
    method: str
    path: str
    body: Object | None
    touches: tuple[str, ...]


class Sample(NamedTuple):
    """A change that was made: when the API answered, the seconds until the commit, and what that touched."""

    kind: str
    answered: float
    seconds: float
    elements: int
    rules: int


REPLACED, REMOVED, ADDED = "endpoint replaced", "endpoint removed", "endpoint added"
UNREADY, READY = "endpoint unready", "endpoint ready"
CREATED, FILLED, DELETED = "Service created", "its EndpointSlice created", "Service deleted"
KINDS = (REPLACED, REMOVED, ADDED, UNREADY, READY, CREATED, FILLED, DELETED)


def replacements(size: Size, count: int) -> Iterator[Change]:
    """Another pod in the place of one, for one Service after the other, and then back; both are replacements."""
    for number, service in enumerate(_services(size, count // 2, seed=1)):
        first = cluster.pods(size, service)[0]
        yield replacement(size, service, Pod(cluster.SPARE + number))
        yield replacement(size, service, first)


def replacement(size: Size, service: int, newcomer: Pod) -> Change:
    """A pod in the place of the first that the Service had, or of the last that took that place."""
    rest = cluster.pods(size, service)[1:]
    return _put(REPLACED, service, [*rest, newcomer], newcomer.address)


def rounds(size: Size, count: int) -> Iterator[Change]:
    """All other kinds in turn, each as often, after which everything is as it was."""
    for number, service in enumerate(_services(size, count, seed=2)):
        *rest, last = cluster.pods(size, service)
        yield _put(REMOVED, service, rest, last.address)
        yield _put(ADDED, service, [*rest, last], last.address)
        yield _put(UNREADY, service, [*rest, last._replace(is_ready=False)], last.address)
        yield _put(READY, service, [*rest, last], last.address)
        yield from _newcomer(size, size.services + number)


def _newcomer(size: Size, service: int) -> Iterator[Change]:
    """A Service comes, gets its endpoints, and goes."""
    vip = cluster.vip(service)
    endpoints = cluster.pods(size, service)
    yield Change(CREATED, "POST", SERVICES, cluster.service(service), (vip,))
    yield Change(FILLED, "POST", SLICES, cluster.slice_of(service, endpoints), (vip, endpoints[-1].address))
    yield Change(DELETED, "DELETE", f"{SERVICES}/s{service}", None, (vip,))
    yield Change("", "DELETE", f"{SLICES}/s{service}-1", None, ())


def _put(kind: str, service: int, endpoints: list[Pod], address: str) -> Change:
    body = cluster.slice_of(service, endpoints)
    return Change(kind, "PUT", f"{SLICES}/s{service}-1", body, (cluster.vip(service), address))


def _services(size: Size, count: int, seed: int) -> Iterator[int]:
    chosen = list(range(size.services))
    random.Random(seed).shuffle(chosen)
    for number in range(count):
        yield chosen[number % size.services]


def make(world: World, listener: Listener, change: Change) -> Sample:
    """Write a change, and wait for its commit, which must be the first that follows.

    Raises:
        TimeoutError: no commit touches what it should.
        AssertionError: another commit came first.
    """
    listener.take()
    answered = world.write(change.method, change.path, change.body)
    commits = listener.wait(tuple(ipaddress.ip_address(each).packed for each in change.touches))
    assert len(commits) == 1, f"{len(commits)} commits for one change: {change}"
    commit = commits[0]
    return Sample(change.kind, answered, commit.time - answered, commit.elements, commit.rules)


def series(world: World, listener: Listener, changes: Iterable[Change]) -> list[Sample]:
    """Make changes one by one, each after a pause."""
    samples = []
    for change in changes:
        if change.touches:
            time.sleep(random.uniform(*PAUSE))
            samples.append(make(world, listener, change))
        else:
            world.write(change.method, change.path, change.body)
    return samples
