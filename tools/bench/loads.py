"""A minute of changes."""

from __future__ import annotations

import ipaddress
import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

from tools.bench import changes
from tools.bench.figures import Figures, note
from tools.bench.listener import Listener
from tools.bench.rig import Rig

AFTER = 3.0  # seconds that the last change of many takes at the most, on a machine without much else to do
PATIENCE = 60.0  # seconds until a change that hasn't come is lost
LEAD = 0.1  # seconds by which a commit may be heard of before the answer to its write: the listener waits for nobody


class Written(NamedTuple):
    """A change that was written: when the API had answered, and the bytes by which its commit is known."""

    answered: float
    needle: bytes


def _write(rig: Rig, count: int, rate: float) -> list[Written]:
    """Replace an endpoint of each Service in turn, `rate` each second, by a pod that no Service has had."""
    written = []
    began = time.monotonic()
    for number in range(count):
        newcomer = rig.fresh_pod()
        change = changes.replacement(rig.size, number % rig.size.services, newcomer)
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


def measure_sustained(rig: Rig, figures: Figures, seconds: int = 60, rate: int = 200) -> None:
    """Measure `rate` changes each second, for `seconds` seconds."""
    with rig.listener() as listener:
        before, began = rig.agent.cpu, time.monotonic()
        written = _write(rig, rate * seconds, rate)
        figures["sustained/cores"] = (rig.agent.cpu - before) / (time.monotonic() - began)
        figures["sustained/rate"] = len(written) / (written[-1].answered - written[0].answered)
        note(figures, "sustained", (time_ - each.answered for each, time_ in _arrivals(listener, written)))
