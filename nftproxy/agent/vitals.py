"""What the agent reports of its work, with the time: to its health and to its metrics."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from nftproxy.agent.health import Health, Moment, Status
from nftproxy.agent.metrics import Metrics
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.events import Event, Put
from nftproxy.model.objects import EndpointSlice
from nftproxy.rules.transaction import Transaction

log = logging.getLogger(__name__)

MOST_TRIGGERS = 10_000
"""Changes whose latency is measured once they are in the kernel; of more that wait, the latest."""


def _triggers(events: Iterable[Event]) -> list[tuple[Family, float]]:
    """When the changes happened that changed EndpointSlices report; a listing reports nothing new."""
    slices = (event.object for event in events if isinstance(event, Put) and isinstance(event.object, EndpointSlice))
    return [(each.family, each.triggered) for each in slices if each.triggered]


def read_clocks() -> Moment:
    """Now."""
    return Moment(time.monotonic(), time.time())


class Vitals:
    """What the agent reports about its work, with the time, to its health and its metrics."""

    def __init__(self, health: Health, metrics: Metrics, clocks: Callable[[], Moment] = read_clocks) -> None:
        self.health = health
        self.metrics = metrics
        self._clocks = clocks
        self._began = clocks()
        self._queued_triggers = deque[tuple[Family, float]](maxlen=MOST_TRIGGERS)
        self._taken_triggers = deque[tuple[Family, float]](maxlen=MOST_TRIGGERS)

    def status(self) -> Status:
        """The proxy's health now."""
        return self.health.status(self._clocks())

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
        self.health.taken()
        self.metrics.taken()
        self._taken_triggers += self._queued_triggers
        self._queued_triggers.clear()

    def applied(self, transaction: Transaction, families: Collection[Family], *, full: bool) -> None:
        """The kernel holds what the events taken ask for in these families, by this transaction."""
        now = self._clocks()
        self.health.applied(now, families)
        for family, triggered in self._taken_triggers:
            if family in families:
                self.metrics.programmed(family, triggered, now.wall)
        waiting = [each for each in self._taken_triggers if each[0] not in families]
        self._taken_triggers = deque(waiting, MOST_TRIGGERS)
        seconds, size = now.steady - self._began.steady, len(transaction.text)
        self.metrics.synced(families, seconds, now.wall, full=full, size=size)
        log.debug(
            "applied %(bytes)d bytes to %(families)s in %(seconds).4f s",
            {
                "bytes": size,
                "seconds": seconds,
                "families": [FAMILY_NAMES[family] for family in families],
                "full": full,
            },
        )

    def failed(self, families: Collection[Family], *, full: bool) -> None:
        """A transaction of these families was not applied."""
        self.metrics.sync_failed(families, self._clocks().steady - self._began.steady, full=full)

    def checked(self, families: Collection[Family]) -> None:
        """The periodic check found nothing amiss in these families."""
        self.metrics.checked(families, self._clocks().wall)
