"""Successive sweeps: requests meanwhile are swept next, and failures are retried."""

from __future__ import annotations

import asyncio
import errno
import gc
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from nftproxy.kernel.conntrack import sweeps as conntrack
from nftproxy.kernel.conntrack.sweeps import Sweeper, SweepQueue
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
from nftproxy.netlink import codec
from nftproxy.policy.flows import Sweeps
from tests.kernel.conntrack.entries import FRONT, Tracked, fill, sweeps, track, tracked
from tests.support.factories import IPV4, IPV6
from tests.support.waiting import PATIENCE


class Slow:
    """Takes the place of `Sweeper.sweep`: each sweep waits for its leave, and is written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Sweeps] = []
        self.failures: list[Exception] = []
        self.begun, self.leave = threading.Semaphore(0), threading.Semaphore(0)
        monkeypatch.setattr(Sweeper, "sweep", lambda _, sweeps: self._sweep(sweeps))
        monkeypatch.setattr(conntrack, "FIRST_PAUSE", 0.01)

    def _sweep(self, sweeps: Sweeps) -> Counter[tuple[Family, bool]]:
        self.asked.append(sweeps)
        self.begun.release()
        assert self.leave.acquire(timeout=PATIENCE)
        if self.failures:
            raise self.failures.pop(0)
        return Counter({(IPV4, False): 1, (IPV4, True): 2})


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Sweeps that take as long as the test wants."""
    return Slow(monkeypatch)


@pytest.fixture
def swept() -> Iterator[SweepQueue]:
    """The queue of the test."""
    with closing(SweepQueue()) as made:
        yield made


async def test_requests_during_a_sweep_become_one_sweep(slow: Slow, swept: SweepQueue) -> None:
    """During a sweep, requests are gathered into a single sweep, in which the latest endpoints of a front count."""
    first, stale, latest = (sweeps(**{FRONT: pod}) for pod in ("10.1.0.4 53", "10.1.0.5 53", "10.1.0.6 53"))
    other = sweeps(**{"10.96.0.11 53": ""})
    running = asyncio.create_task(swept.sweep(first))
    await asyncio.to_thread(slow.begun.acquire)
    assert [await swept.sweep(each) for each in (stale, other, latest)] == [0, 0, 0]
    slow.leave.release(2)
    assert await running == 6
    assert slow.asked == [first, latest | other]


async def test_a_failed_sweep_is_tried_again_with_what_came_since(
    slow: Slow, swept: SweepQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as the kernel fails, all fronts stay queued, including requests meanwhile, and a warning is logged."""
    first, latest, other = sweeps(**{FRONT: ""}), sweeps(**{FRONT: "10.1.0.4 53"}), sweeps(**{"10.96.0.11 53": ""})
    slow.failures = [Unavailable("no way"), Unavailable("not yet")]
    running = asyncio.create_task(swept.sweep(first | other))
    await asyncio.to_thread(slow.begun.acquire)
    await swept.sweep(latest)
    slow.leave.release(3)
    assert await running == 3
    assert slow.asked == [first | other, latest | other, latest | other]
    assert caplog.messages == ["no way; retrying", "not yet; retrying"]


def test_each_family_is_measured(slow: Slow) -> None:
    """For each family that had fronts the observer gets the seconds and how many flows and connections went."""
    seen: list[tuple[Family, float, int, int]] = []
    slow.leave.release(2)
    swept = SweepQueue(lambda *observed: seen.append(observed))
    both = sweeps(**{FRONT: "", "fd00:96::10 53": ""})
    assert asyncio.run(swept.sweep(both)) == 3
    assert asyncio.run(swept.sweep(sweeps(**{FRONT: ""}))) == 3
    assert [(family, *deleted) for family, _, *deleted in seen] == [(IPV4, 1, 2), (IPV6, 0, 0), (IPV4, 1, 2)]
    assert all(0 < seconds < PATIENCE for _, seconds, _, _ in seen)


def test_a_scheduled_sweep_is_retried_in_the_background(
    slow: Slow, swept: SweepQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """A scheduled sweep is retried in the background, and cancelled without a word when the queue is closed."""
    first, second = sweeps(**{FRONT: ""}), sweeps(**{"10.96.0.11 53": ""})
    slow.failures = [Unavailable("no way"), Unavailable("no way")]

    async def scenario() -> None:
        swept.schedule(first)
        await asyncio.to_thread(slow.begun.acquire)
        swept.schedule(second)
        slow.leave.release()
        await asyncio.to_thread(slow.begun.acquire)
        threading.Timer(0.05, slow.leave.release).start()
        swept.close()
        await asyncio.sleep(0.1)

    asyncio.run(scenario())
    gc.collect()
    assert slow.asked == [first, first | second]
    assert caplog.messages == ["no way; retrying"]


async def test_nothing_to_sweep_asks_nothing(slow: Slow, swept: SweepQueue) -> None:
    """Without fronts the kernel is left alone."""
    assert await swept.sweep({}) == 0
    assert slow.asked == []


@pytest.mark.usefixtures("namespace")
async def test_closing_ends_the_rests_of_a_sweep(swept: SweepQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that rests goes on to its end at once when it is closed."""
    monkeypatch.setattr(conntrack, "REST", 1e6)
    rest, is_resting = swept._sweeper._rest, threading.Event()

    def note_rest(seconds: float) -> object:
        is_resting.set()
        return rest(seconds)

    monkeypatch.setattr(swept._sweeper, "_rest", note_rest)
    fill(2000)
    swept.schedule(sweeps(**{FRONT: ""}))
    assert await asyncio.to_thread(is_resting.wait, PATIENCE)
    began = time.monotonic()
    swept.close()
    assert time.monotonic() - began < PATIENCE


async def test_other_errors_end_the_sweep_and_not_the_sweeper(slow: Slow, swept: SweepQueue) -> None:
    """An error that isn't the kernel's is raised, and the next sweep works."""
    slow.failures = [ZeroDivisionError()]
    slow.leave.release(2)
    with pytest.raises(ZeroDivisionError):
        await swept.sweep(sweeps(**{FRONT: ""}))
    assert await swept.sweep(sweeps(**{FRONT: ""})) == 3


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("failure", ["interrupted", "no buffer", "silence"])
def test_an_incomplete_listing_is_repeated(swept: SweepQueue, monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    """A listing that was interrupted, got lost, or never came is repeated until it is whole."""
    track(*(Tracked(f"198.51.100.7 {number}", FRONT, "10.1.0.5 53") for number in range(1, 4)))
    real, calls = codec.messages_of, itertools.count()

    def failing(data: bytes) -> Iterator[tuple[int, bytes]]:
        if next(calls):
            yield from real(data)
        elif failure == "interrupted":
            yield from real(codec.HEADER.pack(20, codec.DONE, codec.DUMP_INTERRUPTED, 0, 0) + bytes(4))
        elif failure == "no buffer":
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        else:
            raise TimeoutError("timed out")

    monkeypatch.setattr(conntrack, "messages_of", failing)
    monkeypatch.setattr(conntrack, "FIRST_PAUSE", 0.01)
    assert asyncio.run(swept.sweep(sweeps(**{FRONT: ""}))) == 3
    assert tracked() == set()
