"""The annotations of client limits."""

from __future__ import annotations

from enum import Enum

from nftproxy.model.addresses import Network
from nftproxy.model.annotations import Form, Option, Rate, Word


class GuardedFronts(Enum):
    """The fronts that source ranges may hold for beside a load balancer's addresses."""

    EXTERNAL_IPS = "external-ips"
    NODE_PORTS = "node-ports"


CONNECTION_RATE: Option[Rate | None] = Option(
    "client-connection-rate",
    Form.RATE,
    None,
    "limits the new connections of each client per second; a burst is how many may come in a row, by default one "
    "second's worth",
    ("rates",),
    restricts=True,
)
CONNECTIONS: Option[int | None] = Option(
    "client-connections",
    Form.LIMIT,
    None,
    "limits the connections that each client has at a time",
    ("connections",),
    restricts=True,
)
DENIED_RANGES: Option[tuple[Network, ...]] = Option(
    "denied-source-ranges",
    Form.RANGES,
    (),
    "denies sources in these ranges at all of the Service's addresses, ClusterIPs and node ports included",
    ("denying", "denied"),
    restricts=True,
)
"""In both families."""
RANGES_FOR: Option[frozenset[GuardedFronts]] = Option(
    "source-ranges-for",
    Word(GuardedFronts, is_list=True),
    frozenset(),
    "extends `spec.loadBalancerSourceRanges` to these addresses",
    ("guarded", "nodeport-guarded"),
    restricts=True,
)
OPTIONS = (CONNECTION_RATE, CONNECTIONS, DENIED_RANGES, RANGES_FOR)
