"""Health-check node ports: the ports on which this node answers for Services, and the answers (KEP-1669).

Bodies, headers and status codes are kube-proxy's, field for field (pkg/proxy/healthcheck).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import ANY, Address, Family, family_of, of_family
from nftproxy.model.objects import ObjectKey, Service, ServicePort, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.policy.choosing.verdicts import ServiceEndpoints, candidates_of, choose
from nftproxy.policy.fronts import health_check_port, nodeport_addresses, serves_every_address
from nftproxy.policy.state import ClusterState

JSON = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}


class Answer(NamedTuple):
    """An HTTP response: status code, headers, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HealthCheck(NamedTuple):
    """The content of a health-check node port's answers: the number of local ready endpoints of a Service.

    `local_endpoints` has the number for each of the Service's families that this node serves.  The answer at an address
    is that of its family, since a client in a family without a local endpoint would be dropped.
    """

    service: ObjectKey
    local_endpoints: Mapping[Family, int]


_CHECK_BODY = """{
\t"service": {
\t\t"namespace": %s,
\t\t"name": %s
\t},
\t"localEndpoints": %d,
\t"serviceProxyHealthy": %s
}"""


def health_check(check: HealthCheck, family: Family, *, is_healthy: bool) -> Answer:
    """The answer of a health-check node port at an address of a family, in which `is_healthy` is the proxy's health."""
    count = check.local_endpoints[family]
    quoted = [msgspec.json.encode(text).decode() for text in (check.service.namespace, check.service.name)]
    body = _CHECK_BODY % (*quoted, count, "true" if is_healthy else "false")
    headers = {**JSON, "X-Load-Balancing-Endpoint-Weight": str(count)}
    return Answer(200 if count and is_healthy else 503, headers, body.encode())


class HealthChecks:
    """The ports on which this node must answer (healthCheckNodePort), each for the Service that owns it.

    `by_port` is replaced whole when anything in it changes, so that each value is a snapshot.  `taken` has the ports
    that the agent can't open, mostly as another program has them.
    """

    def __init__(self) -> None:
        self.by_port: Mapping[int, HealthCheck] = {}
        self.taken: frozenset[int] = frozenset()
        self._ports: dict[ObjectKey, int] = {}

    def note_taken(self, ports: frozenset[int]) -> None:
        """Note the ports that the agent can't open."""
        self.taken = ports

    def refresh(
        self,
        state: ClusterState,
        services: Iterable[ObjectKey],
        without_rules: Mapping[Family, Collection[ObjectKey]],
    ) -> None:
        """Update the checks of some Services from the state.

        `without_rules` has an entry for each family served: the Services that have no rules there, whose endpoints of
        that family don't count.
        """
        services = tuple(services)
        old = {port: self.by_port[port] for port in filter(None, (self._ports.pop(key, 0) for key in services))}
        new = dict(_checks(state, services, without_rules))
        self._ports |= {check.service: port for port, check in new.items()}
        if old != new:
            kept = {port: check for port, check in self.by_port.items() if port not in old}
            self.by_port = kept | new


def _checks(
    state: ClusterState, services: Iterable[ObjectKey], without_rules: Mapping[Family, Collection[ObjectKey]]
) -> Iterator[tuple[int, HealthCheck]]:
    for service in filter(None, map(state.services.get, services)):
        check = health_check_port(state, service)
        if check and not check.denial:
            families = [family for family in map(family_of, service.cluster_ips) if family in without_rules]
            counts = {
                family: 0 if service.key in without_rules[family] else _local_ready(state, service, family)
                for family in families
            }
            yield check.claim.port, HealthCheck(service.key, counts)


def _local_ready(state: ClusterState, service: Service, family: Family) -> int:
    """The number of ready pods on this node.  A pod with several ports counts once.

    Endpoints that serve while they terminate don't count, nor do drained endpoints (weight 0).
    """
    endpoints = state.endpoints_of(service, family)
    ready = {
        candidate.address
        for port in service.ports
        for candidate in candidates_of(endpoints, port)
        if candidate.is_local and candidate.is_ready and candidate.weight
    }
    return len(ready)


def health_check_addresses(state: ClusterState, config: Config) -> tuple[Address, ...]:
    """The addresses that serve health-check node ports: those of node ports, or `ANY` if every address serves these."""
    return tuple(
        address
        for family in Family
        for address in (
            (ANY[family],) if serves_every_address(config, family) else nodeport_addresses(state, config, family)
        )
    )


class LocalDemand(NamedTuple):
    """A Service with policy Local ("internal", "external", or both), its ports, and its endpoints of a family."""

    policies: Sequence[str]
    ports: Sequence[ServicePort]
    endpoints: ServiceEndpoints


def local_demand(state: ClusterState, service: Service, family: Family) -> LocalDemand | None:
    """Return what a Service with policy Local asks for in a family, None for other Services."""
    policies = _local_policies(service) if of_family(service.cluster_ips, family) else ()
    return LocalDemand(policies, service.ports, state.endpoints_of(service, family)) if policies else None


def without_local_endpoints(demands: Iterable[LocalDemand]) -> dict[str, int]:
    """The number of Service ports with policy Local that have endpoints, but no local endpoint on this node.

    Counted by policy, "internal" and "external", as kubeproxy_sync_proxy_rules_no_local_endpoints_total has them.
    This takes some 4 ms for 1,000 endpoints of a port.
    """
    counts = {"internal": 0, "external": 0}
    for demand in demands:
        for port in demand.ports:
            choice = choose(demand.endpoints, port)
            for policy in demand.policies if choice.has_endpoints and not choice.local else ():
                counts[policy] += 1
    return counts


def _local_policies(service: Service) -> list[str]:
    internal = ["internal"] if service.internal_policy is TrafficPolicy.LOCAL else []
    return internal + (["external"] if service.is_external and service.external_policy is TrafficPolicy.LOCAL else [])
