"""The proxy's own health: whether the rules follow the cluster, and the answers to the kubelet and load balancers.

`HealthStatus` is the one value from which all verdicts about a node come: /healthz, /livez, `nftproxy status`,
health-check node ports and metrics.

Health is the age of the oldest change that is not in the kernel.  If that age is too high, the cause doesn't matter, be
it the kernel, the library or the agent.  While no change waits, the proxy is healthy.  So `Health` keeps, for each
family, the time since a change has waited.  The rest of this module turns values into answers.

Bodies, headers and status codes are kube-proxy's, field for field (pkg/proxy/healthcheck, KEP-3836), except for this:

* Until each family has been loaded once, /healthz fails, and both answers name the missing steps.  kube-proxy is
  healthy while it has no rules at all, so that the rollout of a broken version goes on to the next node.
* /livez fails only if changes reach the kernel in no family.  A restart doesn't help a family that the kernel refuses,
  and delays the other family.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.codes import AnyCode
from nftproxy.model.objects import Node
from nftproxy.policy.health_checks import JSON, Answer

DELETION_TAINT = "ToBeDeletedByClusterAutoscaler"
"""The key of the taint that the cluster autoscaler sets before it removes a node."""

PATIENCE = 2
"""Sync periods that a change may wait (kube-proxy, cmd/kube-proxy/app/server.go: 2*config.SyncPeriod)."""

_NEVER = datetime.min.replace(tzinfo=UTC)  # Go's zero time


class Moment(NamedTuple):
    """A point in time in seconds: `steady` is monotonic, `wall` counts from the epoch."""

    steady: float
    wall: float

    def wall_time(self, steady: float) -> float:
        """Convert a time of the steady clock to the wall clock, as the latter is set now."""
        return self.wall - (self.steady - steady)


class FamilyStatus(NamedTuple):
    """The health of a family: `is_healthy` as long as the kernel gets its changes in time.

    `last_updated` is the last time at which its rules were up to date, in seconds since the epoch, None if never.
    `waiting` is how many seconds the oldest change that isn't in the kernel has waited.
    """

    last_updated: float | None
    is_healthy: bool
    waiting: float = 0.0


class HealthStatus(NamedTuple):
    """The health of the proxy and of its node at a moment.

    A family without any load so far is left out.  `waiting` names the steps before the first load of all rules, and
    `warnings` are for operators.  `why_ineligible` says why load balancers may not send new connections to the node, ""
    if they may.
    """

    now: Moment
    families: Mapping[Family, FamilyStatus]
    waiting: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    why_ineligible: str = ""

    @property
    def is_ready(self) -> bool:
        """True if load balancers may send new connections to the node: /healthz answers 200."""
        return self.is_healthy and not self.why_ineligible

    @property
    def why_not(self) -> tuple[str, ...]:
        """The reasons why /healthz doesn't answer 200."""
        steps = (f"waiting for {what}" for what in self.waiting)
        late = (
            f"{FAMILY_NAMES[family]}: a change waits for {each.waiting:.0f} s to reach the kernel"
            for family, each in self.families.items()
            if not each.is_healthy
        )
        return (*steps, *late, *filter(None, [self.why_ineligible]))

    @property
    def is_healthy(self) -> bool:
        """True if every family's rules are loaded, and changes reach the kernel in time."""
        return not self.waiting and all(family.is_healthy for family in self.families.values())

    @property
    def is_alive(self) -> bool:
        """True before the first load, and while changes reach the kernel in time in at least one family.

        A restart wouldn't speed up the first load.
        """
        return not self.families or any(family.is_healthy for family in self.families.values())

    def serves(self, families: Iterable[Family]) -> bool:
        """True if the rules of these families are loaded, and changes reach the kernel in time."""
        found = [self.families.get(family, _UNHEARD) for family in families]
        return all(each.is_healthy and each.last_updated is not None for each in found)


_UNHEARD = FamilyStatus(None, is_healthy=True)


class _Progress(msgspec.Struct):
    """A family's `waiting`: the steady time since which the oldest change that is not in the kernel has waited.

    `untaken` is the same among changes that came after the last `taken`: they still wait after the next `applied`.
    """

    last_updated: float | None = None
    waiting: float | None = None
    untaken: float | None = None


class Health:
    """Keeps account of changes that have come, were taken to be applied, and are applied."""

    def __init__(self, sync_period: float, families: Iterable[Family] = Family) -> None:
        """`sync_period` is in seconds (nftables.syncPeriod)."""
        self.patience = PATIENCE * sync_period
        self.families = {family: _Progress() for family in families}
        self._other_agent = ""
        self._sources: tuple[str, ...] = ("all sources",)
        self._warnings: dict[AnyCode, tuple[str, ...]] = {}

    def waits_for(self, sources: Iterable[str], at: Moment) -> None:
        """Note the sources whose first listing is missing.  Until all have come no change counts as late."""
        had_to_wait, self._sources = bool(self._sources), tuple(sources)
        if had_to_wait and not self._sources:
            for progress in self.families.values():
                progress.waiting = progress.untaken = at.steady

    def waits_for_agent(self, agent: str) -> None:
        """Note the other agent that must end before this agent starts to work, "" once it has ended."""
        self._other_agent = agent

    def set_warnings(self, code: AnyCode, warnings: Iterable[str]) -> None:
        """Replace the warnings of a code.  Health shows warnings to operators, but they don't make it bad."""
        self._warnings[code] = tuple(f"{code}: {warning}" for warning in warnings)

    def queued(self, at: Moment) -> None:
        """Note that a change has come."""
        for progress in self.families.values():
            if progress.waiting is None:
                progress.waiting = at.steady
            if progress.untaken is None:
                progress.untaken = at.steady

    def taken(self) -> None:
        """Note that all changes so far are being applied."""
        for progress in self.families.values():
            progress.untaken = None

    def applied(self, at: Moment, families: Iterable[Family]) -> None:
        """Note that the kernel holds the taken changes in these families."""
        for family in families:
            progress = self.families[family]
            progress.waiting = progress.untaken
            progress.last_updated = at.wall

    def status(self, now: Moment) -> HealthStatus:
        """Return the health at a moment."""
        found = {}
        for family, progress in self.families.items():
            is_late = progress.waiting is not None and now.steady - progress.waiting >= self.patience
            is_healthy = not is_late or bool(self._sources)
            waited = 0.0 if progress.waiting is None else now.steady - progress.waiting
            if progress.last_updated is not None or not is_healthy:
                found[family] = FamilyStatus(progress.last_updated, is_healthy, waited)
        warnings = tuple(itertools.chain.from_iterable(self._warnings.values()))
        return HealthStatus(now, found, tuple(self._waiting()), warnings)

    def waiting(self, now: Moment) -> dict[Family, float]:
        """Return the seconds that the oldest change of each family has waited, for families with such a change."""
        waiting = {family: progress.waiting for family, progress in self.families.items()}
        return {family: now.steady - since for family, since in waiting.items() if since is not None}

    def _waiting(self) -> Iterator[str]:
        if self._other_agent:
            yield f"the end of {self._other_agent}"
        yield from (f"the first listing of {source}" for source in self._sources)
        for family, progress in self.families.items():
            if progress.last_updated is None:
                yield f"the first load of {FAMILY_NAMES[family]}"


# /healthz and /livez


def why_ineligible(node: Node) -> str:
    """Return why load balancers may send the node no new connections, "" if they may: it is being removed."""
    if node.is_deleted:
        return f"the Node {node.name} is being or has been deleted, so load balancers may send it no new connections"
    if DELETION_TAINT in node.taints:
        taint = f"the Node {node.name} has the taint {DELETION_TAINT}"
        return f"{taint}: it is about to be removed, so load balancers may send it no new connections"
    return ""


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
    why_not: tuple[str, ...] | msgspec.UnsetType
    warnings: tuple[str, ...] | msgspec.UnsetType


def livez(status: HealthStatus) -> Answer:
    """Return the answer to a liveness probe, which is about this process alone, not about the node."""
    return _health_answer(status, msgspec.UNSET, is_good=status.is_alive)


def healthz(status: HealthStatus) -> Answer:
    """Return the answer to a load balancer's probe of the node.  `healthy` in its body is about the proxy only."""
    return _health_answer(status, not status.why_ineligible, is_good=status.is_ready)


def _health_answer(status: HealthStatus, node_eligible: bool | msgspec.UnsetType, *, is_good: bool) -> Answer:
    """Build an answer.  A good answer's lastUpdated is now: probes rely on its old meaning, the last run of a loop."""
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
        why_not=msgspec.UNSET if is_good else status.why_not or msgspec.UNSET,
        warnings=status.warnings or msgspec.UNSET,
    )
    return Answer(200 if is_good else 503, JSON, msgspec.json.encode(body))


def _time(seconds: float | None) -> datetime:
    return _NEVER if seconds is None else datetime.fromtimestamp(seconds, UTC)
