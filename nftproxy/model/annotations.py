"""What annotations of nftproxy's own ask for, as typed values: `Service.options` and `EndpointSlice.options`.

Nothing asked is a value too, `PLAIN`, the same one for all objects: it takes no memory, and policy needs no None.
api/annotations.py says how each is written, and what is known.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import Network
from nftproxy.model.keys import KeyEnum

PREFIX = "nftproxy.dev/"
"""What names of nftproxy's own annotations begin with; all others belong to others."""


class Algorithm(KeyEnum):
    """How a new connection gets one of a Service's endpoints (annotation `algorithm`).

    Hashes are of the client's address, and `_WITH_PORT` of its address and port.
    """

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    SOURCE_HASH = "source-hash"
    SOURCE_HASH_WITH_PORT = "source-hash-with-port"
    CONSISTENT_HASH = "consistent-hash"
    CONSISTENT_HASH_WITH_PORT = "consistent-hash-with-port"


class SilentEndpoints(Enum):
    """What becomes of endpoints that don't answer (annotation `silent-endpoints`)."""

    KEEP = "keep"
    LEAVE_OUT = "leave-out"


ZoneWeight = tuple[str, int]
"""A zone, and the weight of each endpoint in it."""


class Rate(NamedTuple):
    """New connections per second of one client; `burst` of them in a row after a pause."""

    per_second: int
    burst: int


class GuardedFronts(Enum):
    """What source ranges hold for beside a load balancer's addresses (annotation `source-ranges-for`)."""

    EXTERNAL_IPS = "external-ips"
    NODE_PORTS = "node-ports"


class ServiceOptions(msgspec.Struct, frozen=True, gc=False):
    """What the annotations of a Service ask for.

    `weights` are in the order of the zones' names; empty, all endpoints weigh the same.  `client_rate` and
    `client_connections` are limits for each client, None without.  `denied_ranges` are in both families.
    """

    algorithm: Algorithm = Algorithm.RANDOM
    weights: tuple[ZoneWeight, ...] = ()
    silent_endpoints: SilentEndpoints = SilentEndpoints.KEEP
    client_rate: Rate | None = None
    client_connections: int | None = None
    source_ranges_for: frozenset[GuardedFronts] = frozenset()
    denied_ranges: tuple[Network, ...] = ()

    @property
    def screens(self) -> bool:
        """Whether any of them says what clients may not do."""
        return bool(self.client_rate or self.client_connections or self.source_ranges_for or self.denied_ranges)


class SliceOptions(msgspec.Struct, frozen=True, gc=False):
    """What the annotations of an EndpointSlice ask for; `weight` is that of each of its endpoints, None if not said."""

    weight: int | None = None


PLAIN = ServiceOptions()
PLAIN_SLICE = SliceOptions()
