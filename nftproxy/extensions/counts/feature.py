"""Counts of the connections of each Service (`nftproxy.serviceCounts`): its share of the rules."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from nftproxy.extensions.counts.codes import CountsCode
from nftproxy.extensions.counts.counted_fronts import CONNECTIONS, CountedFronts
from nftproxy.extensions.counts.fields import SERVICE_COUNTS
from nftproxy.model.addresses import Family
from nftproxy.model.objects import Service, TrafficPolicy
from nftproxy.model.settings import Config
from nftproxy.model.unserved_reasons import RESTRICTED, UnservedReason
from nftproxy.policy.extension import AddToPort, CompiledPort, CompiledService, Extension, Settings
from nftproxy.policy.facts import Addition, Endings, Front, Part
from nftproxy.policy.state import ClusterState

TABLE, PORT = "extensions/counts/table.nft.j2", "extensions/counts/port.nft.j2"

COUNTED = Endings(**{field: f"goto count-{field.replace('_', '-')}" for field in Endings.__struct_fields__})
"""Each ending has a chain that counts."""


class CountedTable(msgspec.Struct, frozen=True):
    """The names of the counts for each Service ("connections", "race")."""

    counted: tuple[str, ...]


class CountedPort(msgspec.Struct, frozen=True):
    """The fronts of a port that only endpoints of other nodes could serve: their packets are dropped in any case."""

    none_local: tuple[Front, ...]


def _is_counting(config: Config) -> bool:
    return config[SERVICE_COUNTS]


def _table(_state: ClusterState, settings: Settings, _family: Family) -> Part | None:
    if not _is_counting(settings.config):
        return None
    reasons = (reason.value for reason in UnservedReason if reason not in RESTRICTED)
    return Part(TABLE, CountedTable((CONNECTIONS, *reasons)))


def _uses(service: Service) -> Collection[str]:
    """A Service that restricts its clients is counted in any case."""
    return ("counted",) if service.options.restricts else ()


def _ports(given: CompiledService) -> AddToPort:
    return _added if _is_counting(given.settings.config) else lambda _: None


def _added(port: CompiledPort) -> Addition | None:
    if not port.choice.has_endpoints or port.choice.local:
        return None
    fronts = tuple(
        each.front for each in port.had if each.policy is TrafficPolicy.LOCAL and each.claim not in port.untranslated
    )
    return Addition(Part(PORT, CountedPort(fronts))) if fronts else None


COUNTS = Extension(
    name="counts",
    codes=tuple(CountsCode),
    templates=(TABLE, PORT),
    uses=_uses,
    is_everywhere=_is_counting,
    endings=lambda config: COUNTED if _is_counting(config) else None,
    table=_table,
    ports=_ports,
    view=lambda settings, _: CountedFronts(settings.config),
)
