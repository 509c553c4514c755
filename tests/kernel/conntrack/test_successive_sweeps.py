"""Sweeps that follow each other: what is asked for meanwhile comes next, and what has failed is tried again."""

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

from nftproxy.kernel import conntrack, netlink
from nftproxy.kernel.conntrack import Conntrack, Sweeper
from nftproxy.model.addresses import Family
from nftproxy.model.errors import Unavailable
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

    def _sweep(self, sweeps: Sweeps) -> Counter[Family]:
        self.asked.append(sweeps)
        self.begun.release()
        assert self.leave.acquire(timeout=PATIENCE)
        if self.failures:
            raise self.failures.pop(0)
        return Counter({IPV4: 1})


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Sweeps that take as long as the test wants."""
    return Slow(monkeypatch)


def test_what_is_asked_for_during_a_sweep_follows_it_once(slow: Slow) -> None:
    """While one sweep runs, others are gathered into one, in which the latest endpoints of a front count."""
    first, stale, latest = (sweeps(**{FRONT: pod}) for pod in ("10.1.0.4 53", "10.1.0.5 53", "10.1.0.6 53"))
    other = sweeps(**{"10.96.0.11 53": ""})

    async def scenario() -> None:
        swept = Conntrack()
        running = asyncio.create_task(swept.sweep(first))
        await asyncio.to_thread(slow.begun.acquire)
        assert [await swept.sweep(each) for each in (stale, other, latest)] == [0, 0, 0]
        slow.leave.release(2)
        assert await running == 2
        assert slow.asked == [first, latest | other]
        swept.close()

    asyncio.run(scenario())


def test_a_failed_sweep_is_tried_again_with_what_came_since(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    """As long as the kernel fails, the fronts stay to be swept, those asked for meanwhile among them; it is logged."""
    first, latest, other = sweeps(**{FRONT: ""}), sweeps(**{FRONT: "10.1.0.4 53"}), sweeps(**{"10.96.0.11 53": ""})
    slow.failures = [Unavailable("no way"), Unavailable("not yet")]

    async def scenario() -> int:
        swept = Conntrack()
        running = asyncio.create_task(swept.sweep(first | other))
        await asyncio.to_thread(slow.begun.acquire)
        await swept.sweep(latest)
        slow.leave.release(3)
        return await running

    assert asyncio.run(scenario()) == 1
    assert slow.asked == [first | other, latest | other, latest | other]
    assert [record.getMessage() for record in caplog.records] == ["no way; retrying", "not yet; retrying"]


def test_each_family_is_measured(slow: Slow) -> None:
    """For each family that had fronts the observer gets the seconds and how many entries went."""
    seen: list[tuple[Family, float, int]] = []
    slow.leave.release(2)
    swept = Conntrack(lambda *observed: seen.append(observed))
    both = sweeps(**{FRONT: "", "fd00:96::10 53": ""})
    assert asyncio.run(swept.sweep(both)) == 1
    assert asyncio.run(swept.sweep(sweeps(**{FRONT: ""}))) == 1
    assert [(family, deleted) for family, _, deleted in seen] == [(IPV4, 1), (IPV6, 0), (IPV4, 1)]
    assert all(0 < seconds < 5 for _, seconds, _ in seen)


def test_a_sweep_needs_nobody_to_wait(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    """What is begun is tried again and again though nobody waits, and given up without a word when this is closed."""
    first, second = sweeps(**{FRONT: ""}), sweeps(**{"10.96.0.11 53": ""})
    slow.failures = [Unavailable("no way"), Unavailable("no way")]

    async def scenario() -> None:
        swept = Conntrack()
        swept.begin(first)
        await asyncio.to_thread(slow.begun.acquire)
        swept.begin(second)
        slow.leave.release()
        await asyncio.to_thread(slow.begun.acquire)
        threading.Timer(0.05, slow.leave.release).start()
        swept.close()
        await asyncio.sleep(0.1)

    asyncio.run(scenario())
    gc.collect()
    assert slow.asked == [first, first | second]
    assert caplog.messages == ["no way; retrying"]


def test_nothing_to_sweep_asks_nothing(slow: Slow) -> None:
    """Without fronts the kernel is left alone."""
    assert asyncio.run(Conntrack().sweep({})) == 0
    assert slow.asked == []


@pytest.mark.usefixtures("namespace")
def test_who_closes_does_not_wait_for_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that rests goes on to its end at once when it is closed."""
    monkeypatch.setattr(conntrack, "REST", 1e6)
    fill(2000)

    async def scenario() -> float:
        swept = Conntrack()
        swept.begin(sweeps(**{FRONT: ""}))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        swept.close()
        return time.monotonic() - began

    assert asyncio.run(scenario()) < 5


def test_other_errors_end_the_sweep_and_not_the_sweeper(slow: Slow) -> None:
    """An error that isn't the kernel's is raised, and the next sweep works."""
    slow.failures = [ZeroDivisionError()]
    slow.leave.release(2)

    async def scenario() -> int:
        swept = Conntrack()
        with pytest.raises(ZeroDivisionError):
            await swept.sweep(sweeps(**{FRONT: ""}))
        return await swept.sweep(sweeps(**{FRONT: ""}))

    assert asyncio.run(scenario()) == 1


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("failure", ["interrupted", "no buffer", "silence"])
def test_what_the_kernel_could_not_tell_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    """A listing that was interrupted, got lost, or never came is repeated until one is whole."""
    track(*(Tracked(f"198.51.100.7 {number}", FRONT, "10.1.0.5 53") for number in range(1, 4)))
    real, calls = netlink.messages_of, itertools.count()

    def failing(data: bytes) -> Iterator[tuple[int, bytes]]:
        if next(calls):
            yield from real(data)
        elif failure == "interrupted":
            yield from real(netlink.HEADER.pack(20, netlink.DONE, netlink.DUMP_INTERRUPTED, 0, 0) + bytes(4))
        elif failure == "no buffer":
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        else:
            raise TimeoutError("timed out")

    monkeypatch.setattr(conntrack, "messages_of", failing)
    monkeypatch.setattr(conntrack, "FIRST_PAUSE", 0.01)
    with closing(Conntrack()) as swept:
        assert asyncio.run(swept.sweep(sweeps(**{FRONT: ""}))) == 3
    assert tracked() == set()
