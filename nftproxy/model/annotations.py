"""Annotations of nftproxy's own: how each is declared, and the typed values that they set.

An annotation is declared in a single place, the field of `ServiceOptions` or `SliceOptions` that it sets:
`nftproxy.dev/client-connections` sets the field `client_connections`.  Its `Annotation` has the form of its values and
its effect.  The parsers (api/annotation_parsers.py), the table in docs/semantics.md and the clusters of `conformance`
all follow these declarations.

An object without annotations of ours has `PLAIN`, which is the same object for all: it takes no memory, and policy
needs no None.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, NamedTuple, get_type_hints

import msgspec

from nftproxy.model.addresses import Network, Protocol
from nftproxy.model.keys import KeyEnum

PREFIX = "nftproxy.dev/"
"""The prefix of the names of nftproxy's own annotations."""


class Algorithm(KeyEnum):
    """How an endpoint is chosen for a new connection.

    Hashes are of the client's address, and `_WITH_PORT` of its address and port.
    """

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    LEAST_CONNECTIONS = "least-connections"
    SOURCE_HASH = "source-hash"
    SOURCE_HASH_WITH_PORT = "source-hash-with-port"
    CONSISTENT_HASH = "consistent-hash"
    CONSISTENT_HASH_WITH_PORT = "consistent-hash-with-port"


class Failover(Enum):
    """The failures of an endpoint after which its connections go to other endpoints."""

    SILENT = "silent"
    REFUSED = "refused"
    GONE = "gone"


class GuardedFronts(Enum):
    """The fronts that source ranges may hold for beside a load balancer's addresses."""

    EXTERNAL_IPS = "external-ips"
    NODE_PORTS = "node-ports"


NONE = "none"
"""The value of an annotation that is a list of words, if no word is on it."""

ZoneWeight = tuple[str, int]
"""A zone, and the weight of each endpoint in it."""


class Rate(NamedTuple):
    """New connections per second of a client.  After a pause, `burst` of them may come in a row."""

    per_second: int
    burst: int


class Form(Enum):
    """How a value is written, as docs/semantics.md shows it.  `Word` is the form for members of an Enum."""

    WEIGHT = '`"0"` to `"100"`'
    ZONE_WEIGHTS = '`"zone:a=3,zone:b=1"`'
    RATE = '`"20"`, or `"20,burst=40"`'
    LIMIT = '`"100"`'
    RANGES = '`"192.0.2.0/24,2001:db8::/32"`'


class Word(NamedTuple):
    """The form of a value of an Enum, or of several of them separated by commas (`is_list`), or `NONE`."""

    words: type[Enum]
    is_list: bool = False


class Annotation(NamedTuple):
    """An annotation: the form of its values, and its row in docs/semantics.md.

    `effect` is a sentence without its subject.  `sets` are the sets and maps that differ by the annotation.
    """

    form: Form | Word
    effect: str
    sets: tuple[str, ...]


class ServiceOptions(msgspec.Struct, frozen=True, gc=False):
    """The values of a Service's annotations."""

    algorithm: Annotated[
        Algorithm | None,
        Annotation(
            Word(Algorithm), "says how an endpoint is [chosen](#algorithms) for a new connection", ("services",)
        ),
    ] = None
    """None: the configuration's default, which policy/state.py fills in."""
    weights: Annotated[
        tuple[ZoneWeight, ...],
        Annotation(
            Form.ZONE_WEIGHTS,
            "[weighs](#weights) endpoints by their zones; zones that it doesn't name have weight 1",
            ("tcp-endpoints",),
        ),
    ] = ()
    """In the order of the zones' names.  Without weights all endpoints weigh the same."""
    failover: Annotated[
        frozenset[Failover] | None,
        Annotation(
            Word(Failover, is_list=True),
            "says after which [failures of an endpoint](#failover) its connections go to other endpoints",
            ("watched", "retried"),
        ),
    ] = None
    """None: the configuration's default, which policy/state.py fills in."""
    client_connection_rate: Annotated[
        Rate | None,
        Annotation(
            Form.RATE,
            "limits the new connections of each client per second; a burst is how many may come in a row, by default "
            "one second's worth",
            ("rates",),
        ),
    ] = None
    client_connections: Annotated[
        int | None, Annotation(Form.LIMIT, "limits the connections that each client has at a time", ("connections",))
    ] = None
    denied_source_ranges: Annotated[
        tuple[Network, ...],
        Annotation(
            Form.RANGES,
            "denies sources in these ranges at all of the Service's addresses, ClusterIPs and node ports included",
            ("denying", "denied"),
        ),
    ] = ()
    """In both families."""
    source_ranges_for: Annotated[
        frozenset[GuardedFronts],
        Annotation(
            Word(GuardedFronts, is_list=True),
            "extends `spec.loadBalancerSourceRanges` to these addresses",
            ("guarded", "nodeport-guarded"),
        ),
    ] = frozenset()

    def algorithm_for(self, protocol: Protocol) -> Algorithm:
        """The algorithm, which is RANDOM if neither the annotation nor the configuration has any.

        Only TCP has connections to count: of UDP and SCTP, connection tracking knows packets that came lately.
        """
        if self.algorithm is Algorithm.LEAST_CONNECTIONS and protocol is not Protocol.TCP:
            return Algorithm.RANDOM
        return self.algorithm or Algorithm.RANDOM

    def fails_over(self, *failures: Failover) -> bool:
        """Whether connections go to other endpoints after any of these failures."""
        return not (self.failover or frozenset()).isdisjoint(failures)

    @property
    def screens(self) -> bool:
        """True if an annotation restricts clients."""
        return bool(
            self.client_connection_rate
            or self.client_connections
            or self.source_ranges_for
            or self.denied_source_ranges
        )


class SliceOptions(msgspec.Struct, frozen=True, gc=False):
    """The values of an EndpointSlice's annotations."""

    weight: Annotated[
        int | None,
        Annotation(
            Form.WEIGHT, "[weighs](#weights) each endpoint of the slice; the default is 100", ("tcp-endpoints",)
        ),
    ] = None


PLAIN = ServiceOptions()
PLAIN_SLICE = SliceOptions()


def name_of(field: str) -> str:
    """Return the annotation that sets a field of the options."""
    return PREFIX + field.replace("_", "-")


def field_of(name: str) -> str:
    """Return the field of the options that an annotation sets."""
    return name.removeprefix(PREFIX).replace("-", "_")


def _declared(options: type[msgspec.Struct]) -> Mapping[str, Annotation]:
    hints = get_type_hints(options, include_extras=True)
    return {name_of(field): hint.__metadata__[0] for field, hint in hints.items()}


OF_SERVICES = _declared(ServiceOptions)
"""The annotations of Services, by name."""
OF_SLICES = _declared(SliceOptions)
"""The annotations of EndpointSlices, by name."""
