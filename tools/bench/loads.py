"""Many changes: a large Service, a burst, minutes of changes, and memory after thousands."""

from __future__ import annotations

import ipaddress
import itertools
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tools.bench import changes, cluster
from tools.bench.changes import Change
from tools.bench.cluster import SERVICES, SLICES, Pod
from tools.bench.figures import Figures, note
from tools.bench.listener import Listener
from tools.bench.rig import Rig

FIRST_OF_COUNT = "first Service with so many endpoints"
LARGE, PER_SLICE = 1_000, 100  # endpoints: the EndpointSlice controller's --max-endpoints-per-slice
ROLLED, AT_ONCE = 20, 100  # endpoints of a rollout, and Services that are rolled out together
AFTER = 3.0  # seconds that the last change of many takes at the most, on a machine without much else to do
PATIENCE = 60.0  # seconds until a change that hasn't come is lost
LEAD = 0.1  # seconds by which a commit may be heard of before the answer to its write: the listener waits for nobody


# ---- a large Service -----------------------------------------------------------------------------------------------


def measure_large(rig: Rig, figures: Figures, rounds: int = 40) -> None:
    """A Service of 1,000 endpoints loses a pod, and gets it back."""
    number = rig.size.services + 1
    pods = [rig.fresh_pod() for _ in range(LARGE)]
    parts = [pods[start : start + PER_SLICE] for start in range(0, LARGE, PER_SLICE)]
    rig.write("POST", SERVICES, cluster.service(number))
    for part, endpoints in enumerate(parts):
        rig.write("POST", SLICES, cluster.slice_of(number, endpoints, part))
    time.sleep(AFTER)
    with rig.listener() as listener:
        samples = changes.series(rig, listener, _losses(number, parts, rounds))
    for kind in (changes.REMOVED, changes.ADDED):
        of_kind = [each for each in samples[2:] if each.kind == kind]  # the first two make the chain
        note(figures, f"large/{kind}", (each.seconds for each in of_kind))
        note(figures, f"large elements/{kind}", (each.elements for each in of_kind))
    rig.write("DELETE", f"{SERVICES}/s{number}")
    for part in range(len(parts)):
        rig.write("DELETE", f"{SLICES}/s{number}-{part}")
    time.sleep(AFTER)


def _losses(number: int, parts: Sequence[list[Pod]], rounds: int) -> Iterator[Change]:
    chance = random.Random(3)
    for _ in range(rounds + 1):
        part = chance.randrange(len(parts))
        lost = chance.choice(parts[part])
        rest = [each for each in parts[part] if each != lost]
        yield changes.put(changes.REMOVED, number, rest, lost, part)
        yield changes.put(changes.ADDED, number, [*rest, lost], lost, part)


# ---- numbers of endpoints that are new -----------------------------------------------------------------------------


def measure_new_counts(rig: Rig, figures: Figures, counts: int = 30) -> None:
    """Services in turn get more endpoints than any Service has had, each time another number."""
    most = rig.size.endpoints + 5  # other rows may have made chains for up to so many
    with rig.listener() as listener:
        samples = changes.series(rig, listener, _growing(rig, range(most, most + counts)))
    note(figures, f"new count/{rig.size.services}", (each.seconds for each in samples))
    for service in range(counts):
        rig.write("PUT", f"{SLICES}/s{service}-1", cluster.slice_of(service, cluster.pods(rig.size, service)))
    time.sleep(AFTER)


def _growing(rig: Rig, counts: range) -> Iterator[Change]:
    for service, count in enumerate(counts):
        had = cluster.pods(rig.size, service)
        endpoints = [*had, *(rig.fresh_pod() for _ in range(count - len(had)))]
        yield changes.put(FIRST_OF_COUNT, service, endpoints, endpoints[-1])


# ---- many changes --------------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """A change that was written: when the API had answered, and the bytes by which its commit is known."""

    answered: float
    needle: bytes


def _write_many(rig: Rig, count: int, rate: float) -> list[Written]:
    """Replace an endpoint of each Service in turn, `rate` each second."""
    newcomers = [rig.fresh_pod() for _ in range(count)]
    services = (number % rig.size.services for number in range(count))
    made = [changes.replacement(rig.size, *each) for each in zip(services, newcomers, strict=True)]
    return _write(rig, list(zip(made, newcomers, strict=True)), rate)


def _write(rig: Rig, made: Iterable[tuple[Change, Pod]], rate: float) -> list[Written]:
    """Write `rate` changes each second, each of which brings a pod that no Service has had."""
    written = []
    began = time.monotonic()
    for number, (change, newcomer) in enumerate(made):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        answered = rig.write(change.method, change.path, change.body)
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


def measure_burst(rig: Rig, figures: Figures) -> None:
    """A thousand changes to as many Services, as near to one second as the API server takes them."""
    with rig.listener() as listener:
        written = _write_many(rig, 1_000, rate=1_000)
        arrived = _arrivals(listener, written)
    last = written[-1].answered
    figures["burst/writing"] = last - written[0].answered
    figures["burst/after the last"] = max(time_ for _, time_ in arrived) - last


def measure_rollout(rig: Rig, figures: Figures) -> None:
    """A hundred Services at once exchange 20 endpoints each, as near to one second as the API server takes them."""
    with rig.listener() as listener:
        before = rig.agent.cpu
        written = _write(rig, list(_rolled(rig)), rate=ROLLED * AT_ONCE)
        arrived = _arrivals(listener, written)
        figures["rollout/cpu"] = (rig.agent.cpu - before) / len(written)
    figures["rollout/writing"] = written[-1].answered - written[0].answered
    note(figures, "rollout", (time_ - each.answered for each, time_ in arrived))


def _rolled(rig: Rig) -> Iterator[tuple[Change, Pod]]:
    """Each change with its new pod.  A pod stays for the next changes of its Service, so that a commit names it."""
    size = rig.size
    pods = [[*cluster.pods(size, each), *(rig.fresh_pod() for _ in range(ROLLED))] for each in range(AT_ONCE)]
    for step in range(1, ROLLED + 1):
        for service, its in enumerate(pods):
            endpoints = its[step : step + size.endpoints]
            yield changes.put(changes.REPLACED, service, endpoints, endpoints[-1]), endpoints[-1]


def measure_sustained(rig: Rig, figures: Figures, seconds: int = 60, rate: int = 200) -> None:
    """Measure `rate` changes each second, for `seconds` seconds."""
    with rig.listener() as listener:
        before, began = rig.agent.cpu, time.monotonic()
        written = _write_many(rig, rate * seconds, rate)
        figures["sustained/cores"] = (rig.agent.cpu - before) / (time.monotonic() - began)
        figures["sustained/rate"] = len(written) / (written[-1].answered - written[0].answered)
        note(figures, "sustained", (time_ - each.answered for each, time_ in _arrivals(listener, written)))


def measure_soak(rig: Rig, figures: Figures) -> None:
    """Memory after 500 changes, and after 5,000."""
    for count, name in ((500, "soak/after 500"), (4_500, "soak/after 5000")):
        _write_many(rig, count, rate=50)
        time.sleep(AFTER)
        figures[name] = rig.agent.resident
