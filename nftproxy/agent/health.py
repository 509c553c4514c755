"""The proxy's own health: whether the rules follow the cluster, and how to say so to the kubelet and to load balancers.

One thing decides: how long the oldest change has waited that is not in the kernel.  If that is too long, the cause
doesn't matter, be it the kernel, the library or the agent; while nothing waits, the proxy is healthy.  So `Health`
keeps, for each family, the time since when something waits; everything else here is functions from values to answers.

Bodies, headers and status codes are kube-proxy's, field for field (pkg/proxy/healthcheck, KEP-3836), except for this:

* Until each family has been loaded once, /healthz fails, and both answers say what is waited for: kube-proxy is healthy
  while it has no rules at all, so that a rollout of one that can't work goes on to the next node.
* /livez fails only if no family's rules follow.  A restart doesn't help a family that the kernel refuses, and holds up
  the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.codes import Code
from nftproxy.model.objects import Node
from nftproxy.policy.health_checks import JSON, Answer

DELETION_TAINT = "ToBeDeletedByClusterAutoscaler"
"""The key of the taint that the cluster autoscaler sets before it removes a node."""

PATIENCE = 2
"""A change may wait for so many sync periods (kube-proxy, cmd/kube-proxy/app/server.go: 2*config.SyncPeriod)."""

_NEVER = datetime.min.replace(tzinfo=UTC)  # what Go's zero time reads as


class Moment(NamedTuple):
    """A point in time by two clocks, in seconds: `steady` never jumps, `wall` counts from the epoch."""

    steady: float
    wall: float


class FamilyStatus(NamedTuple):
    """Whether one family's rules follow, and when they last did, in seconds since the epoch (None: never yet)."""

    last_updated: float | None
    is_healthy: bool


class Status(NamedTuple):
    """The health of the proxy at one moment.

    A family that has not been heard of yet is left out; `waiting` is what must happen before all rules are loaded for
    the first time; `warnings` are what else operators should know.
    """

    now: Moment
    families: Mapping[Family, FamilyStatus]
    waiting: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether every family's rules are loaded, and follow."""
        return not self.waiting and all(family.is_healthy for family in self.families.values())

    @property
    def is_alive(self) -> bool:
        """Whether any family's rules follow; before there are any, nothing is wrong that a restart could mend."""
        return not self.families or any(family.is_healthy for family in self.families.values())

    def serves(self, families: Iterable[Family]) -> bool:
        """Whether the rules of these families are loaded, and follow."""
        found = [self.families.get(family, _UNHEARD) for family in families]
        return all(each.is_healthy and each.last_updated is not None for each in found)


_UNHEARD = FamilyStatus(None, is_healthy=True)


class _Progress(msgspec.Struct):
    """One family: since when (steady clock) the oldest change waits that is not in the kernel.

    `untaken` is the same among those that came after the last were taken: applying what was taken leaves these waiting.
    """

    last_updated: float | None = None
    waiting: float | None = None
    untaken: float | None = None


class Health:
    """Keeps account of what has come, what was taken to be applied, and what is applied."""

    def __init__(self, sync_period: float, families: Iterable[Family] = Family) -> None:
        """`sync_period` is in seconds (nftables.syncPeriod)."""
        self._patience = PATIENCE * sync_period
        self._families = {family: _Progress() for family in families}
        self._sources: tuple[str, ...] = ("all sources",)
        self._warnings: dict[Code, tuple[str, ...]] = {}

    def waits_for(self, sources: Iterable[str], at: Moment) -> None:
        """These sources have yet to deliver their first listing; nothing is loaded before, and so no change is late."""
        had_to_wait, self._sources = bool(self._sources), tuple(sources)
        if had_to_wait and not self._sources:
            for progress in self._families.values():
                progress.waiting = progress.untaken = at.steady

    def warn(self, code: Code, *warnings: str) -> None:
        """What operators should know, though the rules follow; no warning takes back earlier ones of that code."""
        self._warnings[code] = tuple(f"{code}: {warning}" for warning in warnings)

    def queued(self, at: Moment) -> None:
        """A change has come that the rules must follow."""
        for progress in self._families.values():
            if progress.waiting is None:
                progress.waiting = at.steady
            if progress.untaken is None:
                progress.untaken = at.steady

    def taken(self) -> None:
        """All that has come so far is being applied now."""
        for progress in self._families.values():
            progress.untaken = None

    def applied(self, at: Moment, families: Iterable[Family]) -> None:
        """What was taken is in the kernel, in these families."""
        for family in families:
            progress = self._families[family]
            progress.waiting = progress.untaken
            progress.last_updated = at.wall

    def status(self, now: Moment) -> Status:
        """How things are."""
        found = {}
        for family, progress in self._families.items():
            is_late = progress.waiting is not None and now.steady - progress.waiting >= self._patience
            is_healthy = not is_late or bool(self._sources)
            if progress.last_updated is not None or not is_healthy:
                found[family] = FamilyStatus(progress.last_updated, is_healthy)
        warnings = tuple(itertools.chain.from_iterable(self._warnings.values()))
        return Status(now, found, tuple(self._waiting()), warnings)

    def waiting(self, now: Moment) -> dict[Family, float]:
        """For how many seconds the oldest change of each family waits that is not in the kernel, if any does."""
        waiting = {family: progress.waiting for family, progress in self._families.items()}
        return {family: now.steady - since for family, since in waiting.items() if since is not None}

    def _waiting(self) -> Iterator[str]:
        yield from (f"the first listing of {source}" for source in self._sources)
        for family, progress in self._families.items():
            if progress.last_updated is None:
                yield f"the first load of {FAMILY_NAMES[family]}"


# /healthz and /livez


def is_eligible(node: Node) -> bool:
    """Whether load balancers may send new connections to the node: not if it is about to go (KEP-3836)."""
    return not node.is_deleted and DELETION_TAINT not in node.taints


class _FamilyBody(msgspec.Struct, rename="camel"):
    last_updated: datetime
    healthy: bool


class _Body(msgspec.Struct, rename="camel", kw_only=True):
    last_updated: datetime
    current_time: datetime
    node_eligible: bool | msgspec.UnsetType
    healthy: bool
    status: dict[str, _FamilyBody] | msgspec.UnsetType
    waiting_for: tuple[str, ...] | msgspec.UnsetType
    warnings: tuple[str, ...] | msgspec.UnsetType


def livez(status: Status) -> Answer:
    """The answer to a liveness probe: about this process alone, whatever becomes of the node."""
    return _health_answer(status, msgspec.UNSET, is_good=status.is_alive)


def healthz(status: Status, *, node_eligible: bool) -> Answer:
    """The answer to a load balancer that asks for the node; `healthy` in its body is about the proxy only."""
    return _health_answer(status, node_eligible, is_good=status.is_healthy and node_eligible)


def _health_answer(status: Status, node_eligible: bool | msgspec.UnsetType, *, is_good: bool) -> Answer:
    """In a good answer lastUpdated is now: it once said when a loop had last run, and probes came to rely on that."""
    families = {
        FAMILY_NAMES[family]: _FamilyBody(_time(each.last_updated), each.is_healthy)
        for family, each in status.families.items()
    }
    now = _time(status.now.wall)
    latest = max((each.last_updated for each in families.values()), default=_NEVER)
    body = _Body(
        last_updated=now if is_good else latest,
        current_time=now,
        node_eligible=node_eligible,
        healthy=status.is_healthy,
        status=families or msgspec.UNSET,
        waiting_for=status.waiting or msgspec.UNSET,
        warnings=status.warnings or msgspec.UNSET,
    )
    return Answer(200 if is_good else 503, JSON, msgspec.json.encode(body))


def _time(seconds: float | None) -> datetime:
    return _NEVER if seconds is None else datetime.fromtimestamp(seconds, UTC)
