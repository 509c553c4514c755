"""Whether the rules follow the cluster, and how to say so to the kubelet, to load balancers, to whoever asks.

A proxy is judged by one thing: how long the oldest change has waited that is not in the kernel.  If that is too long
the cause doesn't matter, be it the kernel, the library or ourselves; and while nothing waits, silence is health.  So
`Health` keeps, for each family, since when something waits, and all else here are functions from values to answers.

Bodies, headers and status codes are kube-proxy's, field for field (pkg/proxy/healthcheck, KEP-3836).  In one thing this
is stricter: there, a proxy that has never written any rules is healthy for as long as it keeps failing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import FAMILY_NAMES, Address, Family, of_family
from nftproxy.model.objects import Node, ObjectKey, Service, ServiceType, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.policy.endpoints import choose, gather
from nftproxy.policy.fronts import health_check_port, nodeport_addresses, serves_every_address
from nftproxy.policy.state import ClusterState

DELETION_TAINT = "ToBeDeletedByClusterAutoscaler"
"""The key of the taint that the cluster autoscaler sets before it removes a node."""

PATIENCE = 2
"""A change may wait for so many sync periods (kube-proxy, cmd/kube-proxy/app/server.go: 2*config.SyncPeriod)."""

ANY = {Family.IPV4: Address("0.0.0.0"), Family.IPV6: Address("::")}
"""The address that stands for all of a family, to listen on."""

_NEVER = datetime.min.replace(tzinfo=UTC)  # what Go's zero time reads as
_JSON = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}


class Moment(NamedTuple):
    """A point in time by two clocks, in seconds: `steady` never jumps, `wall` counts from the epoch."""

    steady: float
    wall: float


class Answer(NamedTuple):
    """An HTTP response: status code, headers, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class FamilyStatus(NamedTuple):
    """Whether one family's rules follow, and when they last did, in seconds since the epoch (None: never yet)."""

    last_updated: float | None
    is_healthy: bool


class Status(NamedTuple):
    """The health of the proxy at one moment; a family that has not been heard of yet is left out."""

    now: Moment
    families: Mapping[Family, FamilyStatus]

    @property
    def is_healthy(self) -> bool:
        """Whether every family's rules follow."""
        return all(family.is_healthy for family in self.families.values())


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

    def applied(self, at: Moment, *families: Family) -> None:
        """What was taken is in the kernel, in these families (none given: in all)."""
        for family in families or self._families:
            progress = self._families[family]
            progress.waiting = progress.untaken
            progress.last_updated = at.wall

    def status(self, now: Moment) -> Status:
        """How things are."""
        found = {}
        for family, progress in self._families.items():
            is_healthy = progress.waiting is None or now.steady - progress.waiting < self._patience
            if progress.last_updated is not None or not is_healthy:
                found[family] = FamilyStatus(progress.last_updated, is_healthy)
        return Status(now, found)


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


def livez(status: Status) -> Answer:
    """The answer to a liveness probe: about this process alone, whatever becomes of the node."""
    return _health_answer(status, msgspec.UNSET, is_good=status.is_healthy)


def healthz(status: Status, *, node_eligible: bool) -> Answer:
    """The answer to a load balancer that asks for the node; `healthy` in its body is about the proxy only."""
    return _health_answer(status, node_eligible, is_good=status.is_healthy and node_eligible)


def _health_answer(status: Status, node_eligible: bool | msgspec.UnsetType, *, is_good: bool) -> Answer:
    """In a good answer lastUpdated is now: it once told when a loop had last run, and probes came to rely on that."""
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
    )
    return Answer(200 if is_good else 503, _JSON, msgspec.json.encode(body))


def _time(seconds: float | None) -> datetime:
    return _NEVER if seconds is None else datetime.fromtimestamp(seconds, UTC)


# Health-check node ports


class HealthCheck(NamedTuple):
    """What a health-check node port tells: how many local ready endpoints a Service has."""

    service: ObjectKey
    local_endpoints: int


_CHECK_BODY = """{
\t"service": {
\t\t"namespace": %s,
\t\t"name": %s
\t},
\t"localEndpoints": %d,
\t"serviceProxyHealthy": %s
}"""


def health_check(check: HealthCheck, *, is_healthy: bool) -> Answer:
    """The answer of a health-check node port; `is_healthy` is the proxy's health, of all families."""
    quoted = [msgspec.json.encode(text).decode() for text in (check.service.namespace, check.service.name)]
    body = _CHECK_BODY % (*quoted, check.local_endpoints, "true" if is_healthy else "false")
    headers = {**_JSON, "X-Load-Balancing-Endpoint-Weight": str(check.local_endpoints)}
    return Answer(200 if check.local_endpoints and is_healthy else 503, headers, body.encode())


class HealthChecks:
    """The ports on which this node must answer (healthCheckNodePort), each for the Service that owns it.

    `by_port` is replaced whole when anything in it changes, so that whoever keeps it sees what was at that time.
    """

    def __init__(self) -> None:
        self.by_port: Mapping[int, HealthCheck] = {}
        self._ports: dict[ObjectKey, int] = {}

    def update(self, state: ClusterState, services: Iterable[ObjectKey], without_rules: Collection[ObjectKey]) -> None:
        """Follow the state in what was touched of it; where a Service has no rules, its endpoints don't count."""
        services = tuple(services)
        old = {port: self.by_port[port] for port in filter(None, (self._ports.pop(key, 0) for key in services))}
        new = dict(_checks(state, services, without_rules))
        self._ports |= {check.service: port for port, check in new.items()}
        if old != new:
            kept = {port: check for port, check in self.by_port.items() if port not in old}
            self.by_port = kept | new


def _checks(
    state: ClusterState, services: Iterable[ObjectKey], without_rules: Collection[ObjectKey]
) -> Iterator[tuple[int, HealthCheck]]:
    for service in filter(None, map(state.services.get, services)):
        check = health_check_port(state, service)
        if check and not check.lost_to:
            count = 0 if service.key in without_rules else _local_endpoints(state, service)
            yield check.port, HealthCheck(service.key, count)


def _local_endpoints(state: ClusterState, service: Service) -> int:
    """How many pods on this node are ready, at however many ports; one that serves while it terminates is not.

    A pod of a dual-stack Service has an address of each family and is one pod, so the larger count is the number.
    """
    return max(_local_ready(state, service, family) for family in Family)


def _local_ready(state: ClusterState, service: Service, family: Family) -> int:
    slices = state.slices_of(service.key)
    ready = {
        candidate.address
        for port in service.ports
        for candidate in gather(slices, port, family, state.node.name)
        if candidate.is_local and candidate.is_ready
    }
    return len(ready)


def health_check_addresses(state: ClusterState, config: Config) -> tuple[Address, ...]:
    """Where health-check node ports are served: where node ports are, or a family's `ANY` if that is everywhere."""
    return tuple(
        address
        for family in Family
        for address in (
            (ANY[family],) if serves_every_address(config, family) else nodeport_addresses(state, config, family)
        )
    )


def without_local_endpoints(state: ClusterState, family: Family) -> dict[str, int]:
    """How many Service ports have endpoints, but none on this node where a policy Local asks for one here.

    By policy, "internal" and "external", as kubeproxy_sync_proxy_rules_no_local_endpoints_total has them.
    """
    counts = {"internal": 0, "external": 0}
    for service in state.services.values():
        policies = _local_policies(service)
        for port in service.ports if policies and of_family(service.cluster_ips, family) else ():
            choice = choose(gather(state.slices_of(service.key), port, family, state.node.name), state.node)
            for policy in policies if choice.has_endpoints and not choice.local else ():
                counts[policy] += 1
    return counts


def _local_policies(service: Service) -> list[str]:
    is_external = service.type is not ServiceType.CLUSTER_IP or bool(service.external_ips)
    internal = ["internal"] if service.internal_policy is TrafficPolicy.LOCAL else []
    return internal + (["external"] if is_external and service.external_policy is TrafficPolicy.LOCAL else [])
