"""The clients that a Service excludes: by spec.loadBalancerSourceRanges, and by extensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nftproxy.model.addresses import Address, Family, of_family
from nftproxy.model.objects import Service
from nftproxy.policy.claims import Denial
from nftproxy.policy.extension import Extension, Restriction, Settings
from nftproxy.policy.fronts import (
    ClaimedFront,
    LostClaim,
    claimed_fronts,
    has_own_list,
    health_check_port,
    restricting_ranges,
)
from nftproxy.policy.state import ClusterState


def restriction(extensions: Sequence[Extension], service: Service, family: Family) -> Restriction:
    """The clients that extensions exclude from a Service, and the addresses to which they extend source ranges."""
    found = [each.restriction(service, family) for each in extensions]
    guarded = tuple(address for each in found for address in each.guarded)
    return Restriction(guarded, any(each.denies for each in found))


def guarded_addresses(service: Service, family: Family, added: Restriction) -> tuple[Address, ...]:
    """The addresses of a Service to which source ranges apply: load balancer IPs, and those of extensions.

    `NODE` stands for the Service's node ports.
    """
    if not restricting_ranges(service, family):
        return ()
    return of_family(service.load_balancer_ips, family) + added.guarded


def _is_closed(
    state: ClusterState, settings: Settings, service: Service, family: Family
) -> Callable[[ClaimedFront], bool]:
    """A predicate for the Service's fronts that admit nobody, as two Services share a list of ranges."""
    added = restriction(settings.extensions_of(service), service, family)
    closed = guarded_addresses(service, family, added)
    if not (added.denies or closed) or has_own_list(state, service, family):
        return lambda _reach: False
    return lambda claimed: added.denies or (claimed.is_external and claimed.claim.address in closed)


def lost_claims(state: ClusterState, settings: Settings, family: Family, service: Service) -> list[LostClaim]:
    """The claims of a Service in a family that it does not get."""
    if state.claims.gets_all(service) or not of_family(service.cluster_ips, family):
        return []
    is_closed = _is_closed(state, settings, service, family)
    lost = [
        LostClaim(service.key, port.name, claimed.claim, str(claimed.claim), claimed.denial or Denial.CLOSED)
        for port, fronts in claimed_fronts(state, settings.config, family, service)
        for claimed in fronts
        if claimed.denial or is_closed(claimed)
    ]
    check = health_check_port(state, service)
    if check and check.denial:
        what = f"health-check node port {check.claim.port}"
        lost.append(LostClaim(service.key, "", check.claim, what, check.denial))
    return lost
