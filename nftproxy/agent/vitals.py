"""What the agent reports of its work, with the time: to its health and to its metrics."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from nftproxy.agent.health import Health, Moment, Status
from nftproxy.agent.metrics import Metrics
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.codes import Code
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import EndpointSlice
from nftproxy.model.stages import Stage
from nftproxy.rules.transaction import Transaction

log = logging.getLogger(__name__)

MOST_TRIGGERS = 10_000
"""Changes whose latency is measured once they are in the kernel; of more that wait, the latest."""

SLOW = 1.0
"""Seconds from which on the commit of a transaction is logged: a change takes some milliseconds, loading 10,000
Services about a second."""
SLOW_EVERY = 60.0
"""Seconds at the least between two such lines; the next one counts those left out."""


def _triggers(events: Iterable[Event]) -> list[tuple[Family, float]]:
    """When the changes happened that changed EndpointSlices report; a listing reports nothing new."""
    slices = (event.object for event in events if isinstance(event, Put) and isinstance(event.object, EndpointSlice))
    return [(each.family, each.triggered) for each in slices if each.triggered]


def read_clocks() -> Moment:
    """Now."""
    return Moment(time.monotonic(), time.time())


class Applied(NamedTuple):
    """A transaction that the kernel took: when, in how many seconds from taking its events, how long, and where."""

    at: float
    seconds: float
    size: int
    is_full: bool
    families: tuple[Family, ...]


class Failed(NamedTuple):
    """A transaction that was not applied: when, where, and why."""

    at: float
    families: tuple[Family, ...]
    reason: str


class Vitals:
    """What the agent reports about its work, with the time, to its health and its metrics."""

    def __init__(self, health: Health, metrics: Metrics, clocks: Callable[[], Moment] = read_clocks) -> None:
        self.health = health
        self.metrics = metrics
        self._clocks = clocks
        self._began = clocks()
        self._lapped = self._began.steady
        self._spent: defaultdict[Stage, float] = defaultdict(float)
        self._slow = SlowLog()
        self.last_applied: Applied | None = None
        self.last_failed: Failed | None = None
        self._queued_triggers = deque[tuple[Family, float]](maxlen=MOST_TRIGGERS)
        self._taken_triggers = deque[tuple[Family, float]](maxlen=MOST_TRIGGERS)

    def status(self) -> Status:
        """The proxy's health now."""
        return self.health.status(self._clocks())

    def waiting(self) -> dict[Family, float]:
        """For how many seconds the oldest change of each family waits to be in the kernel, if any does."""
        return self.health.waiting(self._clocks())

    def waits_for(self, sources: Sequence[str]) -> None:
        """These sources have yet to deliver their first listing, before which nothing is loaded."""
        self.health.waits_for(sources, self._clocks())

    def scrape(self) -> bytes:
        """All metrics, as they are now."""
        self.metrics.waits_for(self.status().waiting)
        return self.metrics.text()

    def queued(self, events: Sequence[Event]) -> None:
        """These events have come."""
        now = self._clocks()
        self.health.queued(now)
        self.metrics.queued(events, now.wall)
        self._queued_triggers += _triggers(events)
        log.debug("%(events)d events came", {"events": len(events)})

    def damaged(self, family: Family) -> None:
        """A table is not as it was left: a change waits until that is mended."""
        self.metrics.repaired(family)
        self.queued(())

    def taken(self) -> None:
        """All events that have come are being applied now."""
        self._began = self._clocks()
        self._lapped = self._began.steady
        self._spent.clear()
        self.health.taken()
        self.metrics.taken()
        self._taken_triggers += self._queued_triggers
        self._queued_triggers.clear()

    def lap(self, stage: Stage | None = None) -> None:
        """The time since the last lap was spent on this stage, or on none of them."""
        now = self._clocks().steady
        if stage:
            self._spent[stage] += now - self._lapped
        self._lapped = now

    @contextlib.contextmanager
    def interrupted(self) -> Iterator[None]:
        """Around time in the midst of a stage that doesn't count: others have their turns."""
        began = self._clocks().steady
        yield
        self._lapped += self._clocks().steady - began

    @contextlib.contextmanager
    def committing(self, transaction: Transaction, families: Iterable[Family]) -> Iterator[None]:
        """Around a commit, whatever becomes of it; one that takes `SLOW` seconds is logged with its size."""
        self.lap()
        began = self._lapped
        try:
            yield
        finally:
            self.lap(Stage.COMMIT)
            if self._lapped - began >= SLOW:
                self._slow.note(transaction, families, self._lapped - began, self._lapped)

    def applied(self, size: int, families: Collection[Family], *, full: bool) -> None:
        """The kernel holds what the events taken ask for in these families, by a text of so many characters."""
        now = self._clocks()
        self.health.applied(now, families)
        for family, triggered in self._taken_triggers:
            if family in families:
                self.metrics.programmed(family, triggered, now.wall)
        waiting = [each for each in self._taken_triggers if each[0] not in families]
        self._taken_triggers = deque(waiting, MOST_TRIGGERS)
        seconds = now.steady - self._began.steady
        self.metrics.synced(families, seconds, now.wall, full=full, size=size)
        self.metrics.spent(self._spent, full=full)
        self._spent.clear()
        if size:
            self.last_applied = Applied(now.wall, seconds, size, full, tuple(families))
        log.debug(
            "applied %(bytes)d bytes to %(families)s in %(seconds).4f s",
            {
                "bytes": size,
                "seconds": seconds,
                "families": [FAMILY_NAMES[family] for family in families],
                "full": full,
            },
        )

    def failed(self, families: Collection[Family], reason: str, *, full: bool) -> None:
        """A transaction of these families was not applied."""
        self.refused(families, reason)
        self.metrics.sync_failed(families, self._clocks().steady - self._began.steady, full=full)

    def refused(self, families: Collection[Family], reason: str) -> None:
        """The kernel refuses some rules of these families, which isn't held against all others."""
        self.last_failed = Failed(self._clocks().wall, tuple(families), reason)

    def checked(self, families: Collection[Family]) -> None:
        """The periodic check found nothing amiss in these families."""
        self.metrics.checked(families, self._clocks().wall)


class SlowLog:
    """Logs transactions that took long, one line each, and at most one line in `SLOW_EVERY` seconds."""

    def __init__(self) -> None:
        self._next = float("-inf")
        self._left_out = 0

    def note(self, transaction: Transaction, families: Iterable[Family], seconds: float, now: float) -> None:
        """A transaction of these families took so many seconds, until `now`."""
        if now < self._next:
            self._left_out += 1
            return
        size = transaction.size()
        log.warning(
            "slow: the kernel took %(seconds).1f s for a transaction of %(families)s: %(statements)d statements, "
            "%(elements)d of them elements, %(bytes)d bytes%(more)s",
            {
                "seconds": seconds,
                "families": " and ".join(FAMILY_NAMES[family] for family in families),
                "statements": size.statements,
                "elements": size.elements,
                "bytes": size.characters,
                "more": f"; {self._left_out} more since the last such line" if self._left_out else "",
            },
            extra={"code": Code.SLOW_TRANSACTION},
        )
        self._next, self._left_out = now + SLOW_EVERY, 0
