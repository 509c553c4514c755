"""The fast path of established connections (`nftproxy.fastPath`): a table of its own."""

from __future__ import annotations

import msgspec

from nftproxy.extensions.fast_path.fields import CONNECTIONS, INTERFACES, FastPathScope
from nftproxy.model.addresses import TABLE
from nftproxy.model.settings import Config
from nftproxy.policy.facts import Part

FAST_PATH_TABLE = f"{TABLE}-fast-path"
"""The name of the table, of nft's family inet, which has nothing but the fast path."""
TEMPLATE = "extensions/fast_path/fast-path.nft.j2"

PACKETS = 16
"""How many packets of a connection pass on average before it enters the fast path.  After its handshake a short
connection has some five, so two thirds of these never enter.  `ct packets` would need accounting, which costs each
packet of all connections."""


class FastPathFacts(msgspec.Struct, frozen=True):
    """The table of the fast path.

    `match` has the connections.  `packets` is how many of a connection's packets pass on average before it is added.
    `comment` is the table's comment.
    """

    table: str
    match: str
    packets: int
    comment: str = ""


def whole_table(config: Config) -> Part | None:
    """The table of the fast path, None if it is off."""
    if not config[INTERFACES]:
        return None
    is_restricted = config[CONNECTIONS] is FastPathScope.SERVICES
    match = "ct status dnat ct status assured" if is_restricted else "ct status assured"
    return Part(TEMPLATE, FastPathFacts(f"inet {FAST_PATH_TABLE}", match, PACKETS))
