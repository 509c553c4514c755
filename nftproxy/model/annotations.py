"""What annotations of nftproxy's own ask for, as typed values: `Service.options` and `EndpointSlice.options`.

Nothing asked is a value too, `PLAIN`, the same one for all objects: it takes no memory, and policy needs no None.
api/annotations.py says how each is written, and what is known.
"""

from __future__ import annotations

from enum import Enum

import msgspec

PREFIX = "nftproxy.dev/"
"""What names of nftproxy's own annotations begin with; all others belong to others."""


class Algorithm(Enum):
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


class ServiceOptions(msgspec.Struct, frozen=True, gc=False):
    """What the annotations of a Service ask for.

    `weights` are in the order of the zones' names; empty, all endpoints weigh the same.
    """

    algorithm: Algorithm = Algorithm.RANDOM
    weights: tuple[ZoneWeight, ...] = ()
    silent_endpoints: SilentEndpoints = SilentEndpoints.KEEP


class SliceOptions(msgspec.Struct, frozen=True, gc=False):
    """What the annotations of an EndpointSlice ask for; `weight` is that of each of its endpoints, None if not said."""

    weight: int | None = None


PLAIN = ServiceOptions()
PLAIN_SLICE = SliceOptions()
