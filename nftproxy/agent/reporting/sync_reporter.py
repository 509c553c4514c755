"""Reports the work of the sync loop, with the time, to health and metrics, and logs slow transactions."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nftproxy.agent.reporting import freshness
from nftproxy.agent.reporting.health import Health, HealthStatus, Moment, why_ineligible
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.logs import warn
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.codes import Code
from nftproxy.model.events import Event, Listed, Put
from nftproxy.model.last_transactions import LastRefusal, LastTransaction
from nftproxy.model.objects import EndpointSlice, Node, ObjectKey, Service
from nftproxy.model.stages import Stage
from nftproxy.rules.transaction import Transaction
from nftproxy.sources.api_client import ResourceActivity

log = logging.getLogger(__name__)

MOST_TRIGGERS = 10_000
"""Limit of waiting changes whose latency is measured once they are in the kernel.  The oldest are dropped."""

SLOW = 1.0
"""Seconds from which the commit of a transaction is logged.  A change takes some milliseconds, and loading 10,000
Services about a second."""
SLOW_EVERY = 60.0
"""Least seconds between two such log lines.  The next line counts the omitted transactions."""

LATE = 30.0
"""Seconds that a change may wait for its turn before that is a warning: as long as a change of a default
configuration may take in the worst case (syncPeriod)."""

_CHANGES: dict[type, str] = {Service: "service", EndpointSlice: "endpoint"}


def _triggers(events: Iterable[Event]) -> list[tuple[Family, float]]:
    """Return the trigger times in changed EndpointSlices.  Slices in listings are skipped, as their times are old."""
    slices = (event.object for event in events if isinstance(event, Put) and isinstance(event.object, EndpointSlice))
    return [(each.family, each.triggered) for each in slices if each.triggered]


def _kind_and_count(event: Event) -> tuple[type, int]:
    """Return the kind of an event's objects, and their number."""
    if isinstance(event, Put):
        return type(event.object), 1
    return event.kind, len(event.objects) if isinstance(event, Listed) else 1


def _names(families: Iterable[Family]) -> tuple[str, ...]:
    return tuple(FAMILY_NAMES[family] for family in families)


class Clocks(NamedTuple):
    """A steady clock, and a clock of seconds since the epoch."""

    steady: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __call__(self) -> Moment:
        """Return the present moment."""
        return Moment(self.steady(), self.wall())


CLOCKS = Clocks()
"""This machine's."""


class SyncReporter:
    """Reports the work of the sync loop, with the time, to health and metrics (kube-proxy's, by their definitions).

    Attributes:
        last_applied: the last transaction that the kernel accepted.
        last_failed: the last transaction that wasn't applied, with a reason of any length.
        knows_cluster: whether the pipeline has every source's first listing, before which it has nothing to say.
    """

    def __init__(
        self,
        health: Health,
        metrics: Metrics,
        *,
        started: float = 0.0,
        clocks: Clocks = CLOCKS,
        activities: Callable[[], Iterable[ResourceActivity]] = tuple,
        find_node: Callable[[], Node] = lambda: Node(""),
    ) -> None:
        """`started` is when this process began, in seconds since the epoch.

        `activities` returns the present activity of each resource of the API, and `find_node` the present Node.
        """
        self.health = health
        self.metrics = metrics
        self.last_applied: LastTransaction | None = None
        self.last_failed: LastRefusal | None = None
        self.knows_cluster = False
        self._started = started
        self._clocks = clocks
        self._steady = clocks.steady
        self.activities = activities
        self._find_node = find_node
        self._began = clocks()
        self._made = self._lapped = self._began.steady
        self._spent: defaultdict[Stage, float] = defaultdict(float)
        self._slow = SlowLog()
        self._postponed = NONE_POSTPONED
        self._queued: dict[type, int] = dict.fromkeys(_CHANGES, 0)
        self._taken = self._applied = dict(self._queued)
        """Changes by kind, since the start, that have come, were taken to be applied, and are applied."""
        self._last_queued: float | None = None
        self._last_right: dict[Family, float] = {}
        self._queued_triggers = deque[tuple[Family, float]](maxlen=MOST_TRIGGERS)
        self._taken_triggers = deque[tuple[Family, float]](maxlen=MOST_TRIGGERS)

    def status(self) -> HealthStatus:
        """Return the present health of the proxy and of its node."""
        status = self.health.status(self._clocks())
        stale = freshness.warnings(self.activities(), status.now.steady)
        unusable = freshness.unusable(self.activities(), status.now.steady, self.health.patience)
        return status._replace(
            waiting=(*status.waiting, *(f"a listing of {each} that can be used" for each in unusable)),
            warnings=(*status.warnings, *self._postponed.warnings(status.now.steady), *stale),
            why_ineligible=why_ineligible(self._find_node()),
        )

    def as_of(self, family: Family, now: Moment) -> float | None:
        """Return the time of the cluster that the rules of a family show, in seconds since the epoch.

        It is the oldest of the API's last words about each resource, and of the changes that aren't in the kernel yet.
        None means that the rules were never loaded.  All times of an answer are by the same `now`.
        """
        updated = self.health.families[family].last_updated
        if updated is None:
            return None
        oldest = freshness.oldest_word(self.activities())
        waiting = self.health.waiting(now).get(family)
        postponed = self._postponed.seconds(now.steady) if self._postponed.oldest else None
        late = [now.wall - each for each in (waiting, postponed) if each is not None]
        return min([updated if oldest is None else now.wall_time(oldest), *late])

    def caveat(self, now: Moment | None = None) -> str:
        """Return the line that each answer about the cluster needs, or "".

        `now` is the moment of an answer that tells more than that, so that its parts agree.  None is the present.
        """
        return freshness.caveat(self.activities(), (now or self._clocks()).steady)

    def has_loaded(self, family: Family) -> bool:
        """Return whether the rules of a family have ever been loaded."""
        return self.health.families[family].last_updated is not None

    def waiting(self, now: Moment | None = None) -> dict[Family, float]:
        """Return the seconds that the oldest change of each family has waited, for families with such a change.

        `now` is as in `caveat`.
        """
        return self.health.waiting(now or self._clocks())

    def postponed(self, services: Mapping[ObjectKey, float], now: float) -> None:
        """Note the Services whose changes wait for their turn, and when each began to wait, by the loop's clock."""
        if not services:
            self._postponed = NONE_POSTPONED
            return
        oldest = min(services, key=services.__getitem__)
        self._postponed = Postponed(len(services), oldest, self._steady() - now + services[oldest])

    def waits_for(self, sources: Sequence[str]) -> None:
        """Note the sources whose first listing is missing, before which nothing is loaded."""
        self.health.waits_for(sources, self._clocks())

    def ingested(self) -> None:
        """Note that the pipeline has ingested the first listings."""
        self.knows_cluster = True

    def scrape(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        status = self.status()
        self._set_changes()
        self.metrics.set_only("nftproxy_waiting", *status.waiting)
        self.metrics.set("nftproxy_healthy", status.is_ready, "healthz")
        self.metrics.set("nftproxy_healthy", status.is_alive, "livez")
        self.metrics.set_each("nftproxy_faults", Counter(each.partition(":")[0] for each in status.warnings))
        waiting = (*self.waiting(status.now).values(), self._postponed.seconds(status.now.steady))
        self.metrics.set("nftproxy_oldest_change_age_seconds", max(waiting))
        self.metrics.set("nftproxy_services_postponed", self._postponed.services)
        ages = freshness.ages(self.activities(), status.now.steady, self._made)
        self.metrics.set_each("nftproxy_last_word_age_seconds", dict(ages))
        unusable = freshness.unusable_seconds(self.activities(), status.now.steady)
        self.metrics.set_each("nftproxy_unusable_listing_seconds", dict(unusable))
        return self.metrics.exposition()

    def _set_changes(self) -> None:
        """Set the metrics that each change would otherwise set."""
        for kind, name in _CHANGES.items():
            pending = self._queued[kind] - self._applied[kind]
            self.metrics.set(f"kubeproxy_sync_proxy_rules_{name}_changes_total", self._queued[kind])
            self.metrics.set(f"kubeproxy_sync_proxy_rules_{name}_changes_pending", pending)
        if (at := self._last_queued) is not None:
            for family in self.health.families:
                self.metrics.set("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", at, family)
        for family, at in self._last_right.items():
            self.metrics.set("kubeproxy_sync_proxy_rules_last_timestamp_seconds", at, family)

    def queued(self, events: Sequence[Event]) -> None:
        """Note events that have come.  Each object of a listing counts, as in kube-proxy."""
        now = self._clocks()
        self.health.queued(now)
        self._last_queued = now.wall
        for kind, count in map(_kind_and_count, events):
            if kind in _CHANGES:
                self._queued[kind] += count
        self._queued_triggers += _triggers(events)
        log.debug("received %(events)d events", {"events": len(events)})

    def damaged(self, family: Family) -> None:
        """Note a damaged table: a change waits until the table is repaired."""
        self.metrics.count("nftproxy_repairs_total", family)
        self.queued(())

    def taken(self) -> None:
        """Note that all events so far are being applied."""
        self._began = self._clocks()
        self._lapped = self._began.steady
        self._spent.clear()
        self.health.taken()
        self._taken = dict(self._queued)
        self._taken_triggers += self._queued_triggers
        self._queued_triggers.clear()

    def lap(self, stage: Stage | None = None) -> None:
        """Add the time since the last lap to a stage, or to no stage."""
        now = self._steady()
        if stage:
            self._spent[stage] += now - self._lapped
        self._lapped = now

    @contextlib.contextmanager
    def interrupted(self) -> Iterator[None]:
        """Exclude the time of this context from the present stage: other tasks have their turns."""
        began = self._steady()
        yield
        self._lapped += self._steady() - began

    @contextlib.contextmanager
    def committing(self, transaction: Transaction, families: Iterable[Family]) -> Iterator[None]:
        """Measure a commit, also if it fails.  A commit that takes `SLOW` seconds is logged with its size."""
        self.lap()
        began = self._lapped
        try:
            yield
        finally:
            self.lap(Stage.COMMIT)
            if self._lapped - began >= SLOW:
                self._slow.log(transaction, families, self._lapped - began, self._lapped)

    def applied(self, size: int, families: Collection[Family], *, full: bool) -> None:
        """Note that a transaction of `size` characters was applied in these families, with all events taken so far."""
        now = self._clocks()
        seconds = now.steady - self._began.steady
        self._applied = self._taken
        self.health.applied(now, families)
        self._observe_sync(families, seconds, full=full)
        self._observe_triggers(families, now)
        self.checked(families)
        kind = "full" if full else "change"
        for stage, each in self._spent.items():
            self.metrics.observe("nftproxy_sync_stage_duration_seconds", each, kind, stage)
        self._spent.clear()
        names = _names(families)
        if size:
            self.metrics.count("nftproxy_transactions_total", kind)
            self.metrics.observe("nftproxy_transaction_bytes", size, kind)
            self.last_applied = LastTransaction(now.wall, seconds, size, full, names)
        what = {"bytes": size, "seconds": seconds, "families": list(names), "full": full}
        log.debug("applied %(bytes)d bytes to %(families)s in %(seconds).4f s", what)

    def applied_between(self, events: Iterable[Event], size: int, families: Collection[Family]) -> None:
        """Note that the kernel holds events that came after the taken events, by a transaction of `size` characters."""
        now = self._clocks()
        for each in _triggers(events):
            with contextlib.suppress(ValueError):  # dropped, as too many wait
                self._queued_triggers.remove(each)
            self._observe_trigger(each, families, now)
        if size:
            self.metrics.count("nftproxy_transactions_total", "change")
            self.metrics.observe("nftproxy_transaction_bytes", size, "change")
        self.lap()

    def failed(self, families: Collection[Family], reason: str, *, full: bool) -> None:
        """Note that a transaction of these families was not applied."""
        self.refused(families, reason)
        self._observe_sync(families, self._clocks().steady - self._began.steady, full=full)
        for family in families:
            self.metrics.count("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", family)

    def refused(self, families: Collection[Family], reason: str) -> None:
        """Note that the kernel refused some rules of these families.  The rest of the rules isn't affected."""
        self.last_failed = LastRefusal(self._clocks().wall, _names(families), reason)

    def checked(self, families: Collection[Family]) -> None:
        """Note that these families' tables are right, after a transaction or the periodic check."""
        self._last_right |= dict.fromkeys(families, self._clocks.wall())

    def _observe_sync(self, families: Iterable[Family], seconds: float, *, full: bool) -> None:
        for family in families:
            self.metrics.observe("kubeproxy_sync_proxy_rules_duration_seconds", seconds, family)
            kind = "full" if full else "partial"
            self.metrics.observe(f"kubeproxy_sync_{kind}_proxy_rules_duration_seconds", seconds, family)

    def _observe_triggers(self, families: Collection[Family], now: Moment) -> None:
        """Observe the latency of the taken changes.  Changes from before the start would measure the start."""
        for each in self._taken_triggers:
            self._observe_trigger(each, families, now)
        waiting = [each for each in self._taken_triggers if each[0] not in families]
        self._taken_triggers = deque(waiting, MOST_TRIGGERS)

    def _observe_trigger(self, trigger: tuple[Family, float], families: Collection[Family], now: Moment) -> None:
        family, triggered = trigger
        if family in families and triggered > self._started:
            self.metrics.observe("kubeproxy_network_programming_duration_seconds", now.wall - triggered, family)


class Postponed(NamedTuple):
    """The Services whose changes wait for their turn: their number, and the Service that waits longest."""

    services: int
    oldest: ObjectKey | None = None
    since: float = 0.0

    def seconds(self, now: float) -> float:
        """Return how long the oldest change has waited, 0 if none waits."""
        return now - self.since if self.oldest else 0.0

    def warnings(self, now: float) -> Iterator[str]:
        """Yield a warning if a change has waited for `LATE`."""
        if (seconds := self.seconds(now)) >= LATE:
            text = (
                f"changes of {self.services} Services wait for their turn, those of {self.oldest} for {seconds:.0f} s"
            )
            yield f"{Code.CHANGES_POSTPONED}: {text}"


NONE_POSTPONED = Postponed(0)


class SlowLog:
    """Logs slow transactions, with at most a line in `SLOW_EVERY` seconds."""

    def __init__(self) -> None:
        self._next = float("-inf")
        self._left_out = 0

    def log(self, transaction: Transaction, families: Iterable[Family], seconds: float, now: float) -> None:
        """Log a slow transaction of these families.  If a line was logged lately, count it for the next line instead.

        `seconds` is the time that the transaction took, and `now` its end.
        """
        if now < self._next:
            self._left_out += 1
            return
        size = transaction.size()
        warn(
            Code.SLOW_TRANSACTION,
            "slow: the kernel took %(seconds).1f s for a transaction of %(families)s: %(statements)d statements, "
            "%(elements)d of them elements, %(bytes)d bytes%(more)s",
            seconds=seconds,
            families=" and ".join(FAMILY_NAMES[family] for family in families),
            statements=size.statements,
            elements=size.elements,
            bytes=size.characters,
            more=f"; {self._left_out} more since the last such line" if self._left_out else "",
        )
        self._next, self._left_out = now + SLOW_EVERY, 0
