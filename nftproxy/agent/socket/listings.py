"""The rows of `nftproxy list`, from the agent's pipeline, Service by Service.

Each listing is a generator that takes a step for each Service or row, so that other tasks may have their turn at any
step.  It shows the state at the moment of each step, as a listing by kubectl does while objects change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nftproxy.agent.socket.answers import ConflictRow, EndpointRow, ListingRow, QuarantinedRow, ServiceRow
from nftproxy.api.selectors import Selector, selects
from nftproxy.explanation.explained_extension import words_of
from nftproxy.model.addresses import FAMILY_NAMES, Family, family_of, port_text
from nftproxy.model.annotations import PLAIN
from nftproxy.model.codes import Code
from nftproxy.model.objects import ObjectKey, Service, ServicePort, TrafficPolicy
from nftproxy.pipeline import Pipeline
from nftproxy.policy.choosing.choice import endpoints_left_out, why_no_candidate
from nftproxy.policy.choosing.verdicts import Choice, choose
from nftproxy.policy.fronts import ClaimedFront, claimed_fronts
from nftproxy.policy.unserved import all_are_dead_ends, dead_ends, none_local, without_address

NOT_REACHED = {True: "policy Local keeps all connections on the node", False: "the port has no address here"}
"""The reason why no connection draws from the cluster list, for ports with a local list (True) and without (False)."""
NOT_LOCAL = "no policy Local"
"""The reason why no connection draws from the local list."""


class ListingScope(NamedTuple):
    """The Services of a listing.  Without a namespace they are of all namespaces."""

    namespace: str = ""
    selector: Selector = ()

    def has(self, service: Service) -> bool:
        """Return whether a Service is in the scope."""
        is_in = not self.namespace or service.key.namespace == self.namespace
        return is_in and (not self.selector or selects(self.selector, dict(service.labels)))


def _services(pipeline: Pipeline, scope: ListingScope) -> Iterator[Service | None]:
    """Yield the Services in the scope by namespace and name, and None for each other Service, as it takes time too."""
    for key in sorted(pipeline.state.given):
        service = pipeline.state.given.get(key)
        yield service if service is not None and scope.has(service) else None


def services(pipeline: Pipeline, scope: ListingScope) -> Iterator[ListingRow | None]:
    """Yield a row for each Service."""
    for service in _services(pipeline, scope):
        yield _service_row(pipeline, service) if service else None


def endpoints(pipeline: Pipeline, scope: ListingScope) -> Iterator[ListingRow | None]:
    """Yield a row for each endpoint, used or not."""
    for service in _services(pipeline, scope):
        if service is None or service.key in pipeline.state.excessive:  # its endpoints are never expanded
            yield None
        else:
            yield from _endpoint_rows(pipeline, service)


def conflicts(pipeline: Pipeline, scope: ListingScope) -> Iterator[ListingRow | None]:
    """Yield a row for each address and port that a Service claims and doesn't get."""
    claims = pipeline.state.claims
    for service in _services(pipeline, scope):
        for lost in pipeline.losses.by_service.get(service.key, ()) if service else ():
            holder = claims.holder(lost.claim, lost.denial)
            key = lost.service
            why = lost.why(claims)
            yield ConflictRow(key.namespace, key.name, lost.port_name, lost.what, why, str(holder or ""))
        if service and (why := _why_unchecked(pipeline, service)):
            what = f"health-check node port {service.health_check_node_port}"
            yield ConflictRow(service.key.namespace, service.key.name, "", what, why, "")
        yield None


def quarantined(pipeline: Pipeline, scope: ListingScope) -> Iterator[ListingRow | None]:
    """Yield a row for each Service without rules, and family."""
    for service in _services(pipeline, scope):
        for family, why in _quarantines(pipeline, service.key) if service else ():
            yield QuarantinedRow(service.key.namespace, service.key.name, family, why) if service else None
        yield None


def failing(pipeline: Pipeline, scope: ListingScope) -> Iterator[ListingRow | None]:
    """Yield a row for each endpoint that doesn't answer this node, of Services that leave such endpoints out."""
    for service in _services(pipeline, scope):
        is_asked = service is not None and service.options is not PLAIN
        yield from _endpoint_rows(pipeline, service, only_failing=True) if service and is_asked else (None,)


LISTINGS = {
    "services": services,
    "endpoints": endpoints,
    "conflicts": conflicts,
    "quarantined": quarantined,
    "silent": failing,
}
"""The listings that the agent makes from memory."""


def _quarantines(pipeline: Pipeline, service: ObjectKey) -> Iterator[tuple[str, str]]:
    """Yield the families in which a Service has no rules ("" for any), with the reason."""
    if excess := pipeline.state.excessive.get(service):
        yield "", excess.reason
    for family, withheld in pipeline.withheld.items():
        if service in withheld:
            yield (
                FAMILY_NAMES[family],
                f"the kernel refuses its rules: {withheld[service] or 'the reason is not known yet'}",
            )


def _service_row(pipeline: Pipeline, service: Service) -> ServiceRow:
    quarantines = [f"{family}: {why}" if family else why for family, why in _quarantines(pipeline, service.key)]
    losses = pipeline.losses.by_service.get(service.key, ())
    lost = [f"it does not get {each.what}: {each.why(pipeline.state.claims)}" for each in losses]
    lost += filter(None, [_why_unchecked(pipeline, service)])
    judged = list(_judged_ports(pipeline, service))
    without, not_here = list(_without_endpoints(pipeline, service, judged)), list(_without_local(judged))
    others = [*_proxied(service), *_left_out(pipeline, service, judged)]
    others += [note for each in words_of(pipeline) for note in each.listed(pipeline, service)]
    unaddressed = list(without_address(pipeline.state, pipeline.settings.config, service))
    limited = [each[:MOST_NOTES] for each in (lost, without, not_here, unaddressed, others)]
    notes = (quarantines, *limited, faults(pipeline, service))
    reasons = {
        "Quarantined": quarantines,
        "Conflict": lost,
        "NoEndpoints": without,
        "NoneLocal": not_here,
        "NoAddress": unaddressed,
    }
    used, local, known = _counts(each for each in judged if each.family is judged[0].family)
    return ServiceRow(
        namespace=service.key.namespace,
        service=service.key.name,
        type=service.type.value,
        cluster_ips=service.cluster_ips,
        external_ips=tuple(dict.fromkeys((*service.load_balancer_ips, *service.proxied_ips, *service.external_ips))),
        ports=tuple(map(_port_text, service.ports)),
        created=service.created,
        state=next((state for state, why in reasons.items() if why), "Served"),
        used=used,
        local=local,
        known=known,
        internal_policy=service.internal_policy.value,
        external_policy=service.external_policy.value,
        affinity=service.affinity_timeout,
        labels=dict(service.labels),
        notes=tuple(itertools.chain.from_iterable(notes)),
    )


def _why_unchecked(pipeline: Pipeline, service: Service) -> str:
    """Return why another program answers a Service's health checks, "" if the agent does."""
    port = service.health_check_node_port
    is_taken = port in pipeline.health_checks.taken
    return f"{Code.HEALTH_CHECK_PORT_TAKEN}: the agent can't open health-check node port {port}" if is_taken else ""


MOST_NOTES = 10
"""Limit of notes of a kind in the row of a Service.  `conflicts` and `endpoints` list them all."""


class ReachedLists(NamedTuple):
    """The lists of a Service port from which connections draw, by the fronts that the Service has."""

    cluster: bool
    local: bool


class JudgedPort(NamedTuple):
    """A Service port in a family: the decision about its endpoints, and the lists from which its connections draw."""

    family: Family
    port: ServicePort
    choice: Choice
    reached: ReachedLists

    def __str__(self) -> str:
        return f"port {self.port.name or self.port.port} ({FAMILY_NAMES[self.family]})"


def _judged_ports(pipeline: Pipeline, service: Service) -> Iterator[JudgedPort]:
    """Yield each port of a Service, in each family of the Service, that of its first ClusterIP first."""
    state, config = pipeline.state, pipeline.settings.config
    if service.key in state.excessive:
        return
    for family in dict.fromkeys(map(family_of, service.cluster_ips)):
        endpoints = state.endpoints_of(service, family)
        is_withheld = service.key in pipeline.withheld.get(family, {service.key: ""})
        for port, claimed in claimed_fronts(state, config, family, service):
            fronts = [each for each in claimed if not each.denial and not is_withheld]
            yield JudgedPort(family, port, choose(endpoints, port), _reached_lists(fronts))


def _reached_lists(fronts: Sequence[ClaimedFront]) -> ReachedLists:
    """Return the lists that some connection can reach.  External policy Local has both: local sources are exempt."""
    return ReachedLists(
        cluster=any(each.is_external or each.policy is TrafficPolicy.CLUSTER for each in fronts),
        local=any(each.policy is TrafficPolicy.LOCAL for each in fronts),
    )


def _without_endpoints(pipeline: Pipeline, service: Service, judged: Iterable[JudgedPort]) -> Iterator[str]:
    """Yield a note for each port without a usable endpoint on any node."""
    for each in judged:
        if all_are_dead_ends(pipeline.state, each.choice):
            yield f"{each}: no usable endpoint: {dead_ends(pipeline.state, each.port, each.choice)}"
        if not each.choice.has_endpoints:
            why = f"none of {len(each.choice.verdicts)} is ready or serving"
            if not each.choice.verdicts:
                why = why_no_candidate(pipeline.state.slices_of(service.key), each.family, each.port)
            yield f"{each}: no usable endpoint: {why}"


def _proxied(service: Service) -> Iterator[str]:
    """Yield a note for each address that kubectl shows, too, and no rule serves."""
    yield from (f"{each} has ipMode Proxy: no rule serves it" for each in service.proxied_ips)


def _left_out(pipeline: Pipeline, service: Service, judged: Iterable[JudgedPort]) -> Iterator[str]:
    """Yield a note for each port that some of the Service's EndpointSlices don't have."""
    for each in judged:
        if why := endpoints_left_out(pipeline.state.slices_of(service.key), each.family, each.port):
            yield f"{each}: {why}"


def _without_local(judged: Iterable[JudgedPort]) -> Iterator[str]:
    """Yield a note for each port that policy Local drops here, as only other nodes have usable endpoints."""
    for each in judged:
        if each.choice.has_endpoints and not each.choice.local and each.reached.local:
            yield f"{each}: policy Local, and {none_local(each.choice)}"


def faults(pipeline: Pipeline, service: Service) -> list[str]:
    """Return the faults of a Service and of its EndpointSlices, `MOST_NOTES` at most."""
    slices = sorted(pipeline.state.slices_of(service.key), key=lambda each: each.key)
    of_slices = (f"{fault} (EndpointSlice {each.key.name})" for each in slices for fault in each.faults)
    return list(itertools.islice((*service.faults, *of_slices), MOST_NOTES))


def _port_text(port: ServicePort) -> str:
    """Return a port in the form of `kubectl get services`."""
    node_port = f":{port.node_port}" if port.node_port else ""
    return port_text(f"{port.port}{node_port}", port.protocol.value)


def _counts(judged: Iterable[JudgedPort]) -> tuple[int, int, int]:
    """Return how many pods connections can go to, how many of them by policy Local, and how many exist."""
    used, local, known = set[str](), set[str](), set[str]()
    for _, _, choice, reached in judged:
        if reached.cluster:
            used.update(each.address for each in choice.cluster)
        if reached.local:
            local.update(each.address for each in choice.local)
        known.update(each.candidate.address for each in choice.verdicts)
    return len(used | local), len(local), len(known)


def _endpoint_rows(pipeline: Pipeline, service: Service, *, only_failing: bool = False) -> Iterator[ListingRow | None]:
    names = pipeline.state.pod_names(service.key)
    for _, port, choice, reached in _judged_ports(pipeline, service):
        for verdict in choice.verdicts:
            candidate = verdict.candidate
            if only_failing and not (verdict.cluster.is_failing or verdict.local.is_failing):
                continue
            yield EndpointRow(
                namespace=service.key.namespace,
                service=service.key.name,
                port_name=port.name,
                port=port.port,
                protocol=port.protocol.name,
                address=candidate.address,
                target_port=candidate.port,
                is_local=candidate.is_local,
                is_used=reached.cluster and verdict.cluster.is_choice,
                why=verdict.cluster.value if reached.cluster else NOT_REACHED[reached.local],
                is_used_locally=reached.local and verdict.local.is_choice,
                why_locally=verdict.local.value if reached.local else NOT_LOCAL,
                pod=names.get(candidate.address, ""),
            )
        yield None
