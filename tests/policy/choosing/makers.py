"""Candidates for the tests of choosing, as node-a sees them."""

from __future__ import annotations

from collections.abc import Iterable

from nftproxy.model.addresses import Family
from nftproxy.model.objects import EndpointSlice, Node, Service
from nftproxy.policy.choosing.verdicts import Candidate, ServiceEndpoints, candidates_of
from tests.support.factories import IPV4, node, service, service_port


def endpoints_of(
    slices: Iterable[EndpointSlice], family: Family = IPV4, *, of: Service | None = None, at: Node | None = None
) -> ServiceEndpoints:
    """The inputs that decide about the endpoints of a Service with these slices."""
    return ServiceEndpoints.of(of or service(), slices, family, at or node())


def candidates(
    *slices: EndpointSlice,
    port: str = "http:80",
    family: Family = IPV4,
    of: Service | None = None,
    at: Node | None = None,
) -> list[Candidate]:
    """The candidates for a port."""
    return candidates_of(endpoints_of(slices, family, of=of, at=at), service_port(port))
