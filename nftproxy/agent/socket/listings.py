"""The rows of `nftproxy list`, from the agent's pipeline, Service by Service.

Each listing is a generator that takes a step for each Service or row, so that other tasks may have their turn at any
step.  It shows the state at the moment of each step, as a listing by kubectl does while objects change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nftproxy.agent.socket.answers import ConflictRow, EndpointRow, ListingRow, QuarantinedRow, ServiceRow
from nftproxy.api.selectors import Selector, selects
from nftproxy.model.addresses import FAMILY_NAMES, family_of
from nftproxy.model.objects import ObjectKey, Service, ServicePort
from nftproxy.pipeline import Pipeline
from nftproxy.policy.choosing.choice import choose
from nftproxy.policy.choosing.verdicts import Choice


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
        for lost in pipeline.losses.get(service.key, ()) if service else ():
            holder = claims.holder(lost.claim, lost.denial)
            key = lost.service
            why = lost.why(claims)
            yield ConflictRow(key.namespace, key.name, lost.port_name, lost.what, why, str(holder or ""))
        yield None


def quarantined(pipeline: Pipeline, scope: ListingScope) -> Iterator[ListingRow | None]:
    """Yield a row for each Service without rules, and family."""
    for service in _services(pipeline, scope):
        for family, why in _quarantines(pipeline, service.key) if service else ():
            yield QuarantinedRow(service.key.namespace, service.key.name, family, why) if service else None
        yield None


LISTINGS = {"services": services, "endpoints": endpoints, "conflicts": conflicts, "quarantined": quarantined}
"""The listings that the agent makes from memory."""


def _quarantines(pipeline: Pipeline, service: ObjectKey) -> Iterator[tuple[str, str]]:
    """Yield the families in which a Service has no rules ("" for any), with the reason."""
    if why := pipeline.state.excessive.get(service):
        yield "", why
    for family, withheld in pipeline.withheld.items():
        if service in withheld:
            yield (
                FAMILY_NAMES[family],
                f"the kernel refuses its rules: {withheld[service] or 'the reason is not known yet'}",
            )


def _service_row(pipeline: Pipeline, service: Service) -> ServiceRow:
    quarantines = [f"{family}: {why}" if family else why for family, why in _quarantines(pipeline, service.key)]
    losses = pipeline.losses.get(service.key, ())
    lost = [f"it does not get {each.what}: {each.why(pipeline.state.claims)}" for each in losses]
    used, local, known = _counts(pipeline, service)
    return ServiceRow(
        namespace=service.key.namespace,
        service=service.key.name,
        type=service.type.value,
        cluster_ips=service.cluster_ips,
        external_ips=tuple(dict.fromkeys((*service.load_balancer_ips, *service.external_ips))),
        ports=tuple(map(_port_text, service.ports)),
        created=service.created,
        state="Quarantined" if quarantines else "Conflict" if lost else "Served",
        used=used,
        local=local,
        known=known,
        internal_policy=service.internal_policy.value,
        external_policy=service.external_policy.value,
        affinity=service.affinity_timeout,
        labels=dict(service.labels),
        notes=(*quarantines, *lost[:MOST_NOTES]),
    )


MOST_NOTES = 10
"""Limit of conflicts in the row of a Service.  `conflicts` lists them all."""


def _port_text(port: ServicePort) -> str:
    """Return a port in the form of `kubectl get services`."""
    node_port = f":{port.node_port}" if port.node_port else ""
    return f"{port.port}{node_port}/{port.protocol.name}"


def _counts(pipeline: Pipeline, service: Service) -> tuple[int, int, int]:
    """Return how many pods serve all clients, how many serve connections that stay on the node, and how many exist."""
    used, local, known = set[str](), set[str](), set[str]()
    for _, choice in _choices(pipeline, service, only_first=True):
        used.update(each.address for each in choice.cluster)
        local.update(each.address for each in choice.local)
        known.update(each.candidate.address for each in choice.verdicts)
    return len(used), len(local), len(known)


def _choices(pipeline: Pipeline, service: Service, *, only_first: bool = False) -> Iterator[tuple[ServicePort, Choice]]:
    """Yield the choice for each port, in all families of the Service or only in that of its first ClusterIP."""
    state = pipeline.state
    if service.key in state.excessive:
        return
    addresses = service.cluster_ips[:1] if only_first else service.cluster_ips
    for family in dict.fromkeys(map(family_of, addresses)):
        endpoints = state.endpoints_of(service, family)
        for port in service.ports:
            yield port, choose(endpoints, port)


def _endpoint_rows(pipeline: Pipeline, service: Service) -> Iterator[ListingRow | None]:
    for port, choice in _choices(pipeline, service):
        for verdict in choice.verdicts:
            candidate = verdict.candidate
            yield EndpointRow(
                namespace=service.key.namespace,
                service=service.key.name,
                port_name=port.name,
                port=port.port,
                protocol=port.protocol.name,
                address=candidate.address,
                target_port=candidate.port,
                is_local=candidate.is_local,
                is_used=verdict.cluster.is_choice,
                why=verdict.cluster.value,
                is_used_locally=verdict.local.is_choice,
                why_locally=verdict.local.value,
            )
        yield None
