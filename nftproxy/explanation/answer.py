"""The answer, as typed values that become JSON without loss.

An `Explanation` has a `Place` for each address, protocol and port that the question is about; a place has a `Case` for
all sources of which the same becomes.  `Expected` is what the kernel must hold for a place; who can ask the kernel
enters what it holds (kernel.py).
"""

from __future__ import annotations

from enum import Enum

import msgspec

from nftproxy.model.addresses import Address, Family, Protocol
from nftproxy.model.codes import Code


class Fate(Enum):
    """What becomes of a connection."""

    ENDPOINT = "endpoint"  # translated, and sent to one of the endpoints
    FORWARDED = "forwarded"  # accepted by the agent, which connects to one of the endpoints: node ports at localhost
    REJECTED = "rejected"  # so that the client knows at once
    DROPPED = "dropped"
    PASSED = "passed"  # let through: routed as if there were no proxy
    NODE = "node"  # let through, to the node itself


class List(Enum):
    """Which list of endpoints counts."""

    CLUSTER = "cluster"
    LOCAL = "local"


class Admits(Enum):
    """What source ranges say of a client."""

    YES = "admitted"
    NO = "not admitted"
    DEPENDS = "depends on its address"


class Endpoint(msgspec.Struct, frozen=True):
    """An endpoint of the Service port, on the list that counts or not.

    `share` is the part of all new connections that it gets, in percent.  `why` says why it is or isn't on the list.
    `pod` is its name where that is known, else "".  `is_masqueraded`: it sees another source than the client's.
    """

    address: Address
    port: int
    pod: str
    is_local: bool
    share: float
    why: str
    is_masqueraded: bool


class Admission(msgspec.Struct, frozen=True):
    """What the Service's source ranges (loadBalancerSourceRanges) say of a client; `by` is the range that decides."""

    admits: Admits
    by: str
    why: str


class Case(msgspec.Struct, frozen=True):
    """What becomes of connections from some sources.

    `algorithm` is how an endpoint is chosen from the list, as the annotation names it; "" where none is.  `list_why`
    and `source_why` say why this list counts, and why the source is masqueraded or kept.  `rejection` is how a
    connection is rejected, as nft names it.  `list` is None where no endpoint is chosen.  `is_screened` says that it is
    dropped for what annotations ask for, after an endpoint was chosen.
    """

    sources: tuple[str, ...]
    fate: Fate
    why: str
    rejection: str = ""
    algorithm: str = ""
    list: List | None = None
    list_why: str = ""
    is_masqueraded: bool = False
    source_why: str = ""
    admission: Admission | None = None
    is_screened: bool = False
    endpoints: tuple[Endpoint, ...] = ()


class Owner(msgspec.Struct, frozen=True):
    """A Service port; `port` is its name, which may be ""."""

    namespace: str
    name: str
    port: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" + (f":{self.port}" if self.port else "")


class Loser(msgspec.Struct, frozen=True):
    """A Service port that claims the place and doesn't get it; `code` is that of the Event about it."""

    owner: Owner
    why: str
    code: Code


class Remembered(msgspec.Struct, frozen=True):
    """The pod that a client was sent to, and the seconds until it is forgotten."""

    pod: Address
    seconds: float


class Affinity(msgspec.Struct, frozen=True):
    """How clients come back to the same pod.

    `timeout` is in seconds.  `how` says who remembers.  If it is the kernel, `map` is where, and `key` whom if the
    question is about one client.  `remembered` is what the kernel has; None if it has nothing, or wasn't asked, which
    `is_known` tells apart.
    """

    timeout: int
    how: str
    map: str = ""
    key: str = ""
    is_known: bool = False
    remembered: Remembered | None = None


class Expected(msgspec.Struct, frozen=True):
    """An element that the kernel must hold, or must not if `value` is None; in a set `value` is "".

    `is_held` says whether the kernel agrees, None while nobody has asked; `found` is what it has instead.
    """

    container: str
    key: str
    value: str | None
    is_held: bool | None = None
    found: str | None = None


class Place(msgspec.Struct, frozen=True):
    """One address, protocol and port.

    `front` is what it is: "ClusterIP", "external IP", "load balancer IP", "node port", "node port at localhost",
    "health-check node port", or "" where no Service is reached.  `policy` is the traffic policy and its field.
    `limits` are those that annotations set for each client, in words.
    """

    address: Address
    family: Family
    protocol: Protocol
    port: int
    front: str = ""
    owner: Owner | None = None
    policy: str = ""
    cases: tuple[Case, ...] = ()
    losers: tuple[Loser, ...] = ()
    source_ranges: tuple[str, ...] = ()
    denied_ranges: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    affinity: Affinity | None = None
    notes: tuple[str, ...] = ()
    expected: tuple[Expected, ...] = ()


class Explanation(msgspec.Struct, frozen=True):
    """The answer to one question, on one node; `notes` are about the question as a whole."""

    to: str
    source: str
    node: str
    places: tuple[Place, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        from nftproxy.explanation.text import text  # which knows these types

        return "\n".join(text(self))
