"""The source of masqueraded connections (`nftproxy.masqueradeAddress`): its share of the rules."""

from __future__ import annotations

import msgspec

from nftproxy.extensions.masquerade_address.sources import node_source
from nftproxy.model.addresses import Family
from nftproxy.policy.extension import Settings
from nftproxy.policy.facts import Part
from nftproxy.policy.state import ClusterState

TABLE = "extensions/masquerade_address/table.nft.j2"


class MasqueradeAddressTable(msgspec.Struct, frozen=True):
    """The lines of this feature in a table's skeleton: the address or range, as nft has it."""

    node_source: str


def table(state: ClusterState, settings: Settings, family: Family) -> Part | None:
    """The lines of this feature in a table's skeleton, None where the kernel chooses the source."""
    source = node_source(state, settings.config, family)
    return Part(TABLE, MasqueradeAddressTable(str(source.addresses))) if source.addresses else None
