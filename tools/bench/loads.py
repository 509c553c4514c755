"""Many changes: one large Service, a burst, minutes of them, and what memory makes of thousands."""

from __future__ import annotations

import ipaddress
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tools.bench import changes, cluster
from tools.bench.changes import Change
from tools.bench.cluster import SERVICES, SLICES, Pod
from tools.bench.figures import Figures, note
from tools.bench.listener import Listener
from tools.bench.world import World

FIRST_OF_COUNT = "first Service with so many endpoints"
LARGE, PER_SLICE = 1_000, 100  # endpoints; the EndpointSlice controller's --max-endpoints-per-slice
AFTER = 3.0  # seconds that the last change of many takes at the most, on a machine without much else to do
PATIENCE = 60.0  # seconds until a change that hasn't come is lost
LEAD = 0.1  # seconds by which a commit may be heard of before the answer to its write: the listener waits for nobody


# ---- a large Service -----------------------------------------------------------------------------------------------


def measure_large(world: World, figures: Figures, rounds: int = 40) -> None:
    """A Service of 1,000 endpoints loses one, and gets it back."""
    number = world.size.services + 1
    everyone = [world.fresh_pod() for _ in range(LARGE)]
    parts = [everyone[start : start + PER_SLICE] for start in range(0, LARGE, PER_SLICE)]
    world.write("POST", SERVICES, cluster.service(number))
    for part, endpoints in enumerate(parts):
        world.write("POST", SLICES, cluster.slice_of(number, endpoints, part))
    time.sleep(AFTER)
    with world.listener() as listener:
        samples = changes.series(world, listener, _losses(number, parts, rounds))
    for kind in (changes.REMOVED, changes.ADDED):
        of_kind = [each for each in samples[2:] if each.kind == kind]  # the first two make the chain
        note(figures, f"large/{kind}", (each.seconds for each in of_kind))
        note(figures, f"large elements/{kind}", (each.elements for each in of_kind))
    world.write("DELETE", f"{SERVICES}/s{number}")
    for part in range(len(parts)):
        world.write("DELETE", f"{SLICES}/s{number}-{part}")
    time.sleep(AFTER)


def _losses(number: int, parts: Sequence[list[Pod]], rounds: int) -> Iterator[Change]:
    chance = random.Random(3)
    for _ in range(rounds + 1):
        part = chance.randrange(len(parts))
        lost = chance.choice(parts[part])
        rest = [each for each in parts[part] if each != lost]
        for kind, endpoints in ((changes.REMOVED, rest), (changes.ADDED, [*rest, lost])):
            body = cluster.slice_of(number, endpoints, part)
            touches = (cluster.vip(number), lost.address)
            yield Change(kind, "PUT", f"{SLICES}/s{number}-{part}", body, touches)


# ---- numbers of endpoints that are new -----------------------------------------------------------------------------


def measure_new_counts(world: World, figures: Figures, counts: int = 30) -> None:
    """One Service after the other gets more endpoints than any Service has had, each time another number."""
    most = world.size.endpoints + 5  # what other rows may have made
    with world.listener() as listener:
        samples = changes.series(world, listener, _growing(world, range(most, most + counts)))
    note(figures, f"new count/{world.size.services}", (each.seconds for each in samples))
    for service in range(counts):
        world.write("PUT", f"{SLICES}/s{service}-1", cluster.slice_of(service, cluster.pods(world.size, service)))
    time.sleep(AFTER)


def _growing(world: World, counts: range) -> Iterator[Change]:
    for service, count in enumerate(counts):
        had = cluster.pods(world.size, service)
        endpoints = [*had, *(world.fresh_pod() for _ in range(count - len(had)))]
        touches = (cluster.vip(service), endpoints[-1].address)
        body = cluster.slice_of(service, endpoints)
        yield Change(FIRST_OF_COUNT, "PUT", f"{SLICES}/s{service}-1", body, touches)


# ---- many changes --------------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """A change that was written: when the API had answered, and by what its commit is known."""

    answered: float
    needle: bytes


def _write_many(world: World, count: int, rate: float) -> list[Written]:
    """Replace an endpoint of one Service after the other, so many in a second."""
    newcomers = [world.fresh_pod() for _ in range(count)]
    services = (number % world.size.services for number in range(count))
    made = [changes.replacement(world.size, *each) for each in zip(services, newcomers, strict=True)]
    written = []
    began = time.monotonic()
    for number, (change, newcomer) in enumerate(zip(made, newcomers, strict=True)):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        answered = world.write(change.method, change.path, change.body)
        written.append(Written(answered, ipaddress.ip_address(newcomer.address).packed))
    return written


def _arrivals(listener: Listener, written: Sequence[Written]) -> list[tuple[Written, float]]:
    """Each change with the time of its commit.

    Raises:
        AssertionError: some have not come, long after the last was written.
    """
    pending, arrived, end = list(written), [], time.monotonic() + PATIENCE
    while pending:
        assert time.monotonic() < end, f"{len(pending)} of {len(written)} changes have not come within {PATIENCE} s"
        time.sleep(AFTER)
        for commit in listener.take():
            near = list(itertools.takewhile(lambda it: it.answered < commit.time + LEAD, pending))  # noqa: B023
            here = {each for each in near if each.needle in commit.given}
            arrived += [(each, commit.time) for each in here]
            pending = [each for each in near if each not in here] + pending[len(near) :]
    return arrived


def measure_burst(world: World, figures: Figures) -> None:
    """A thousand changes to as many Services, as near to one second as the API server takes them."""
    with world.listener() as listener:
        written = _write_many(world, 1_000, rate=1_000)
        arrived = _arrivals(listener, written)
    last = written[-1].answered
    figures["burst/writing"] = last - written[0].answered
    figures["burst/after the last"] = max(time_ for _, time_ in arrived) - last


def measure_sustained(world: World, figures: Figures, seconds: int = 60, rate: int = 200) -> None:
    """So many changes in each second, for so many seconds."""
    with world.listener() as listener:
        before, began = world.agent.cpu, time.monotonic()
        written = _write_many(world, rate * seconds, rate)
        figures["sustained/cores"] = (world.agent.cpu - before) / (time.monotonic() - began)
        figures["sustained/rate"] = len(written) / (written[-1].answered - written[0].answered)
        note(figures, "sustained", (time_ - each.answered for each, time_ in _arrivals(listener, written)))


def measure_soak(world: World, figures: Figures) -> None:
    """Memory after 500 changes, and after 5,000."""
    for count, name in ((500, "soak/after 500"), (4_500, "soak/after 5000")):
        _write_many(world, count, rate=50)
        time.sleep(AFTER)
        figures[name] = world.agent.resident
