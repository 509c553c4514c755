"""Closed ports and answered pings at addresses of Services: their share of the rules."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nftproxy.extensions.external_addresses.fields import answers_pings, closes_external_addresses, is_asked_for
from nftproxy.extensions.external_addresses.pings import AnsweredPings, PingSources, answered_pings
from nftproxy.model.addresses import Address, Family, of_family
from nftproxy.model.objects import Service, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.policy.claims import NODE
from nftproxy.policy.extension import AddToPort, CompiledPort, CompiledService, Settings
from nftproxy.policy.facts import Addition, Part
from nftproxy.policy.fronts import ClaimedFront
from nftproxy.policy.limits import addresses_by_family
from nftproxy.policy.ranges import keys_at_most
from nftproxy.policy.state import ClusterState

TABLE, PORT = "extensions/external_addresses/table.nft.j2", "extensions/external_addresses/port.nft.j2"

ECHO = {Family.IPV4: "icmp type echo-request", Family.IPV6: "icmpv6 type echo-request"}
"""The match for pings."""


class ExternalAddressesTable(msgspec.Struct, frozen=True):
    """The lines of this feature in a table's skeleton.

    `external_ips` holds the set of external addresses that nothing but Services uses, with the match for packets to
    reject there ("" matches all).  `pings` holds the match for pings, and the node's address that answers them, or
    none, if Services answer pings.
    """

    external_ips: tuple[tuple[str, str], ...]
    pings: tuple[tuple[str, tuple[Address, ...]], ...]


class ExternalAddressesPort(msgspec.Struct, frozen=True):
    """The share of a port.

    `external_ips` are the external addresses that nothing but Services uses.  `pings` are rows of (address that answers
    pings, key of a range of sources).
    """

    external_ips: tuple[Address, ...]
    pings: tuple[tuple[Address, str], ...]


def answering_addresses(state: ClusterState, family: Family) -> tuple[Address, ...]:
    """The node's address that answers pings to Services of a family, or nothing."""
    own = of_family(state.node.addresses, family)
    return tuple(each for each in own if state.host_addresses is None or each in state.host_addresses)[:1]


def own_external_addresses(state: ClusterState, had: Iterable[ClaimedFront]) -> tuple[Address, ...]:
    """The external addresses of a Service port's fronts that nothing but Services uses."""
    found = dict.fromkeys(each.claim.address for each in had if each.is_external and each.claim.address != NODE)
    return tuple(filter(state.claims.is_services_alone, found))


def elements(service: Service, config: Config) -> int:
    """The most elements that this feature adds for a Service."""
    lists = 1 + (service.external_policy is TrafficPolicy.LOCAL)
    ranges = max(keys_at_most(service.source_ranges), 1)
    found = 0
    for inside, external in addresses_by_family(service).values():
        found += external if is_asked_for(config) else 0
        found += inside + external * lists * ranges if answers_pings(config) else 0
    return found


def table(state: ClusterState, settings: Settings, family: Family) -> Part | None:
    """The lines of this feature in a table's skeleton."""
    config = settings.config
    if not is_asked_for(config):
        return None
    rejected = "" if closes_external_addresses(config) else f"{ECHO[family]} "
    pings = ((ECHO[family], answering_addresses(state, family)),) if answers_pings(config) else ()
    return Part(TABLE, ExternalAddressesTable((("external-ips", rejected),), pings))


def ports(given: CompiledService) -> AddToPort:
    """Return a function that adds the external addresses and the answered pings of a port."""
    cluster_ips = of_family(given.service.cluster_ips, given.family)
    sources = PingSources.of(given)
    answered = set[AnsweredPings]()  # by the ports so far

    def add(port: CompiledPort) -> Addition | None:
        external = own_external_addresses(given.state, port.had)
        added: list[AnsweredPings] = []
        if answers_pings(given.settings.config):
            pings = answered_pings(port.had, {*cluster_ips, *external}, port.choice, sources)
            added = [each for each in pings if each not in answered]
            answered.update(added)
        return Addition(Part(PORT, ExternalAddressesPort(external, sources.rows(added))))

    return add
