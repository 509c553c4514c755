"""The answer to a question: typed values that become JSON without loss, and text.

An `Explanation` has an `ExplainedPlace` for each address, protocol and port that the question is about.  A place has a
`Case` for all sources whose connections end in the same way, and an `Expected` for each element that the kernel must
hold or must not.  `str` of an explanation is the text for people, and picture.py draws it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import Enum

import msgspec

from nftproxy.explanation.question import SourceKind
from nftproxy.model.addresses import Address, Family, Protocol, host_port, port_text
from nftproxy.model.codes import Code
from nftproxy.model.texts import printable

MOST_ENDPOINTS = 40
"""Endpoints of a list that the text shows.  JSON has all."""


class Fate(Enum):
    """The outcome of a connection."""

    ENDPOINT = "endpoint"  # translated, and sent to one of the endpoints
    FORWARDED = "forwarded"  # accepted by the agent, which connects to one of the endpoints: node ports at localhost
    REJECTED = "rejected"  # so that the client knows at once
    DROPPED = "dropped"
    PASSED = "passed"  # let through: routed as if there were no proxy
    NODE = "node"  # let through, to the node itself


_FATES = {
    Fate.ENDPOINT: "translated",
    Fate.FORWARDED: "forwarded by the agent",
    Fate.REJECTED: "rejected",
    Fate.DROPPED: "dropped",
    Fate.PASSED: "let through",
    Fate.NODE: "delivered to the node",
}


def outcome(fate: Fate, rejection: str) -> str:
    """The outcome of a connection in words: "rejected (tcp reset)"."""
    return f"{_FATES[fate]} ({rejection})" if rejection else _FATES[fate]


class List(Enum):
    """The list of endpoints from which a connection is drawn."""

    CLUSTER = "cluster"
    LOCAL = "local"


class Admits(Enum):
    """The verdict of source ranges on a client."""

    YES = "admitted"
    NO = "not admitted"
    DEPENDS = "depends on its address"


class EndpointShare(msgspec.Struct, frozen=True):
    """An endpoint of the Service port: its share of new connections, and why it is or isn't on the list."""

    address: Address
    port: int
    pod: str  # its name, "" if it isn't known
    is_local: bool
    share: float  # the part of all new connections that it gets, in percent
    why: str  # it is or isn't on the list
    is_masqueraded: bool  # it sees another source than the client's

    def __str__(self) -> str:
        return host_port(self.address, self.port)


class Admission(msgspec.Struct, frozen=True):
    """The verdict of source ranges (loadBalancerSourceRanges) on a client.  `by` is the range that decides."""

    admits: Admits
    by: str
    why: str


class Case(msgspec.Struct, frozen=True):
    """The outcome of connections from some sources."""

    sources: tuple[str, ...]
    fate: Fate
    why: str
    rejection: str = ""  # how a connection is rejected, as nft names it
    drawn: str = ""  # how an endpoint is drawn from the list, as the annotation names it, or ""
    list: List | None = None  # None where no endpoint is chosen
    list_why: str = ""
    is_masqueraded: bool = False
    source_why: str = ""  # why the source is masqueraded or kept
    admission: Admission | None = None
    is_restricted: bool = False  # dropped by a restriction from annotations, after an endpoint was chosen
    endpoints: tuple[EndpointShare, ...] = ()

    @property
    def clients(self) -> tuple[str, ...]:
        """The sources in words."""
        return self.sources if len(self.sources) < len(SourceKind) else ("anywhere",)

    @property
    def outcome(self) -> str:
        """The outcome in words."""
        return outcome(self.fate, self.rejection)

    @property
    def chosen_first(self) -> tuple[EndpointShare, ...]:
        """The endpoints, first those on the list."""
        return tuple(sorted(self.endpoints, key=lambda each: not each.share))


class Owner(msgspec.Struct, frozen=True):
    """A Service port by its name, which may be ""."""

    namespace: str
    name: str
    port: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" + (f":{self.port}" if self.port else "")


class Loser(msgspec.Struct, frozen=True):
    """A Service port that claims the place and doesn't get it.  `code` is the code of the Event about it."""

    owner: Owner
    why: str
    code: Code


class Remembered(msgspec.Struct, frozen=True):
    """The pod that a client was sent to, and the seconds until it is forgotten.

    `is_used` is false if the Service doesn't use the pod any more: the client's next connection is drawn anew.
    """

    pod: Address
    seconds: float
    is_used: bool = True


class Affinity(msgspec.Struct, frozen=True):
    """How clients come back to the same pod."""

    timeout: int  # seconds
    how: str  # the way in which clients are remembered
    map: str = ""  # the kernel's map of clients, "" if the kernel doesn't remember them
    key: str = ""  # the client's key there, if the question names a client
    is_known: bool = False  # the kernel was asked
    remembered: Remembered | None = None  # the kernel's entry for the client

    def __str__(self) -> str:
        words = f"{self.timeout} s, {self.how}"
        if self.remembered and not self.remembered.is_used:
            return f"{words}; this one was sent to {self.remembered.pod}, which is no longer used"
        if self.remembered:
            return f"{words}; this client is sent to {self.remembered.pod} for {self.remembered.seconds:.0f} s more"
        return f"{words}; this client is not remembered" if self.is_known and self.key else words


class Expected(msgspec.Struct, frozen=True):
    """An element that the kernel must hold, or must not hold if `value` is None.  In a set `value` is ""."""

    container: str
    key: str
    value: str | None
    is_held: bool | None = None  # None if the kernel wasn't asked
    found: str | None = None  # the value that the kernel holds


class PlaceRestriction(msgspec.Struct, frozen=True):
    """A restriction of a place's clients that an extension adds, in words.

    `ranges` are the source ranges that it names.  `condition` is that of connections that reach an endpoint, "" if an
    admitted client's always do.
    """

    words: str
    ranges: tuple[str, ...] = ()
    condition: str = ""


class ExplainedPlace(msgspec.Struct, frozen=True):
    """An address, protocol and port.

    `front` is its kind: "ClusterIP", "external IP", "load balancer IP", "node port", "node port at localhost",
    "health-check node port", or "" where no Service is reached.
    """

    address: Address
    family: Family
    protocol: Protocol
    port: int
    front: str = ""
    owner: Owner | None = None
    policy: str = ""  # the traffic policy and its field
    cases: tuple[Case, ...] = ()
    losers: tuple[Loser, ...] = ()
    source_ranges: tuple[str, ...] = ()
    restrictions: tuple[PlaceRestriction, ...] = ()
    affinity: Affinity | None = None
    notes: tuple[str, ...] = ()
    expected: tuple[Expected, ...] = ()

    def __str__(self) -> str:
        return port_text(host_port(self.address, self.port), self.protocol.value)

    @property
    def reached(self) -> str:
        """The Service that is reached, in words."""
        return f"{self.front} of Service {self.owner}" if self.owner else "no Service is reached here"


class OwnBaseChain(msgspec.Struct, frozen=True):
    """A base chain of our tables, as nft declares it."""

    name: str
    hook: str
    priority: str


class Explanation(msgspec.Struct, frozen=True):
    """The answer to a question on a node.

    `notes` are about the whole question.  `is_known` is false if it names a Service, a port or a pod that this proxy
    doesn't know.
    """

    to: str
    source: str
    node: str
    places: tuple[ExplainedPlace, ...]
    notes: tuple[str, ...] = ()
    base_chains: tuple[OwnBaseChain, ...] = ()
    is_known: bool = True
    missing_chains: tuple[str, ...] = ()  # base chains to which no packet comes, if the kernel was asked

    @property
    def is_damaged(self) -> bool:
        """True if the kernel was asked, and a base chain or an element is missing, or an element is wrong."""
        return bool(self.missing_chains) or any(
            each.is_held is False for place in self.places for each in place.expected
        )

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    @property
    def title(self) -> str:
        """The question in words."""
        return f"{self.to}{f' from {self.source}' if self.source else ''}, on node {self.node}"


# The text for people: a paragraph for each place, a list for each kind of source


def _lines(explanation: Explanation) -> Iterator[str]:
    yield explanation.title
    yield from (f"  {printable(note)}" for note in explanation.notes)
    if explanation.missing_chains:
        chains = ", ".join(explanation.missing_chains)
        yield f"  kernel: no packet comes to {chains}: the chains are missing, or their table is dormant"
    for place in explanation.places:
        yield ""
        yield f"{place}: {place.reached}"
        yield from (f"  {line}" for line in (*_facts(place), *_kernel(place)))


def _facts(place: ExplainedPlace) -> Iterator[str]:
    if place.policy:
        yield f"policy: {place.policy}"
    if place.source_ranges:
        yield f"source ranges: {', '.join(place.source_ranges)}"
    yield from (each.words for each in place.restrictions)
    if place.affinity:
        yield f"session affinity: {place.affinity}"
    yield from (f"lost by {loser.owner}: {loser.code}: {loser.why}" for loser in place.losers)
    yield from (f"note: {printable(note)}" for note in place.notes)
    condition = "".join(f" {each.condition}" for each in place.restrictions if each.condition)
    for case in place.cases:
        outcome = f"{case.outcome}{condition if case.fate is Fate.ENDPOINT else ''}"
        yield f"from {', '.join(case.clients)}: {outcome}: {printable(case.why)}"
        yield from (f"  {line}" for line in _reasons(case))


def _reasons(case: Case) -> Iterator[str]:
    if case.admission and case.admission.admits is not Admits.NO:
        yield f"admitted: {printable(case.admission.why)}"
    if case.list:
        yield f"list: {case.list.value}, by {case.list_why}"
    if case.source_why:
        yield f"source: {'masqueraded' if case.is_masqueraded else 'kept'}: {case.source_why}"
    for endpoint in itertools.islice(case.chosen_first, MOST_ENDPOINTS):
        share = f"{endpoint.share:.1f} %" if endpoint.share else "no"
        here = ", on this node" if endpoint.is_local else ""
        pod = f" {printable(endpoint.pod)}" if endpoint.pod else ""
        yield f"{share:>7}  {endpoint}{pod}: {endpoint.why}{here}{_exception(case, endpoint)}"
    if len(case.endpoints) > MOST_ENDPOINTS:
        yield f"and {len(case.endpoints) - MOST_ENDPOINTS} more (--output json has all)"


def _exception(case: Case, endpoint: EndpointShare) -> str:
    """A remark about an endpoint that sees another source than the rest of the list."""
    if not endpoint.share or endpoint.is_masqueraded is case.is_masqueraded:
        return ""
    return "; source masqueraded, as it is itself" if endpoint.is_masqueraded else "; source kept: it is the node's own"


def _kernel(place: ExplainedPlace) -> Iterator[str]:
    """The kernel's elements, if the kernel was asked."""
    if any(each.is_held is None for each in place.expected):
        return
    differing = [each for each in place.expected if not each.is_held]
    if place.expected and not differing:
        present = sum(each.value is not None for each in place.expected)
        elements = "1 element" if present == 1 else f"{present} elements"
        yield f"kernel: holds exactly the {elements} that it must"
    for each in differing:
        wanted, found = _element(each.key, each.value), _element(each.key, each.found)
        yield f"kernel: {each.container} must have {wanted}, and has {found}"


def _element(key: str, value: str | None) -> str:
    if value is None:
        return "nothing"
    return f"{{ {key} : {value} }}" if value else f"{{ {key} }}"
