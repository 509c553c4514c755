"""Facts: the data that the templates loop over.

Every decision has been taken by the time a fact is made (compile.py).  A template only writes it down as nft.  A fact's
field names are the template author's vocabulary, so they are documented here, field by field.
"""

from __future__ import annotations

import msgspec

from nftproxy.model.addresses import Address


class Endings(msgspec.Struct, frozen=True):
    """The verdicts for packets that no endpoint gets.  They count first if so configured.

    `no_endpoint` rejects, and all other verdicts drop: `unserved` packets to a front without an endpoint in this
    generation or on this node, `not_admitted` packets that source ranges exclude, `race` packets overtaken by a commit.
    The prefix `nodeport_` stands for packets to node ports, `translated` for packets that already have the endpoint's
    address.
    """

    no_endpoint: str = "goto refuse"
    nodeport_no_endpoint: str = "goto refuse"
    unserved: str = "drop"
    nodeport_unserved: str = "drop"
    not_admitted: str = "drop"
    not_admitted_translated: str = "drop"
    race: str = "drop"
    nodeport_race: str = "drop"


COUNTED = Endings(**{field: f"goto count-{field.replace('_', '-')}" for field in Endings.__struct_fields__})
"""Each ending has a chain that counts (counts.nft.j2)."""


class TableFacts(msgspec.Struct, frozen=True):
    """The facts for the skeleton of a family's table, from the node and the configuration, independent of Services.

    `ip` is nft's keyword for the family's header ("ip", "ip6").
    `numbers` matches addresses that are numbers, `zero` is 0 as such an address (numbers.py).
    `lengths` are the lengths of prefixes that ranges of sources have: rows of (nft expression for a packet's source of
    this length, length).
    `mark` is the bit of the packet mark that asks for masquerading, `unmark` its complement: hexadecimal numbers.
    `local_sources` holds the match for local sources (pods of this cluster or node), or nothing.
    `external_ips` holds the set of external addresses that nothing but Services uses, if so configured, with the match
    for packets to reject there ("" matches all).
    `pings` holds the match for pings, and the node's address that answers them, or none, if Services answer pings.
    `masquerades` says how to masquerade connections: rows of (match, statement).  The first row that matches counts
    ("" matches all).
    `masqueraded_sources` holds a match for sources that ClusterIPs masquerade ("" matches all), or nothing.
    `nodeport_matches` holds the match for addresses that serve node ports, and `remembered_nodeports` the same for a
    packet already translated, by its original destination.
    `filter_priority` is the priority of the chains that reject packets that were not translated.
    `counted` holds the names of the counts for each Service ("connections", "race"), and `counters` the chain that
    counts a connection that an endpoint gets.  Without counting, both are empty.
    `endings` are the verdicts for packets that no endpoint gets.
    `watchers` holds the chain that notes connections without an answer, if any Service asks for failover from silent
    endpoints, and `refusals` rows of (match, protocol) of the packets that refuse a connection,
    if any asks for failover after these.  `icmp_errors` are the protocols of those of them that are ICMP errors.
    """

    table: str
    ip: str
    protocols: tuple[str, ...]
    numbers: str
    zero: str
    lengths: tuple[tuple[str, int], ...]
    mark: str
    unmark: str
    masquerades: tuple[tuple[str, str], ...]
    local_sources: tuple[str, ...]
    masqueraded_sources: tuple[str, ...]
    nodeport_matches: tuple[str, ...]
    remembered_nodeports: tuple[str, ...]
    nodeport_addresses: tuple[Address, ...]
    service_cidrs: tuple[str, ...]
    external_ips: tuple[tuple[str, str], ...]
    pings: tuple[tuple[str, tuple[Address, ...]], ...]
    filter_priority: int
    counted: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    endings: Endings = Endings()
    watchers: tuple[str, ...] = ()
    refusals: tuple[tuple[str, str], ...] = ()
    icmp_errors: tuple[str, ...] = ()


class FastPathFacts(msgspec.Struct, frozen=True):
    """The table of the fast path.

    `match` has the connections.  `packets` is how many of a connection's packets pass on average before it is added.
    `comment` is the table's comment.
    """

    table: str
    match: str
    packets: int
    comment: str = ""


class ListFacts(msgspec.Struct, frozen=True):
    """A list of endpoints, and the way from a slot to an endpoint.  Every Service port with such a list shares it.

    `list` names the map of slots ("tcp-endpoints"), `prefix` is "nodeport-" if it is for node ports.  A packet that
    comes here has had its address overwritten: `asked` is the list's key without the slot, in packet fields, and
    `asked_front` the front.  `numbers` matches addresses that are numbers (numbers.py), and `first` is slot 0.
    `affinities` holds the timeout if clients are remembered, in seconds and as an address, or nothing.  `race` is the
    verdict for a packet overtaken by a commit.
    """

    table: str
    ip: str
    protocol: str
    prefix: str
    list: str
    asked: str
    asked_front: str
    numbers: str
    first: str
    race: str
    affinities: tuple[tuple[int, str], ...]


class DrawFacts(msgspec.Struct, frozen=True):
    """A draw among `count` endpoints of a list.  Every Service port that has this many shares it.

    `number` leads here from `services` (with the `prefix` of node ports), and `sticky` holds the number for fronts with
    affinity, or nothing.  `draw` is the nft expression that picks the slot, as an address, and `how` says the same in
    words.  `suffix` says in names which algorithm that is ("", "-by-client", ...).  `slots` holds the map from slots to
    addresses, if `draw` needs it: rows of (name, rows of (protocol and slot, address)).  Otherwise it is empty.
    """

    table: str
    ip: str
    prefix: str
    list: str
    suffix: str
    count: int
    number: str
    sticky: tuple[str, ...]
    draw: str
    how: str
    slots: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]

    @property
    def of_port(self) -> str:
        """The number that the fronts of this very Service port have in `services`."""
        return self.sticky[0] if self.sticky else self.number


class Front(msgspec.Struct, frozen=True, gc=False):
    """An address and port at which a Service port is reached, or its node port.

    `prefix` is "" or "nodeport-" and goes before the names of sets and maps, `match` is the key (address, protocol,
    port) or (protocol, port), and `where` is the same without the protocol.
    """

    prefix: str
    match: str
    where: str


Row = tuple[str, Address, int]
"""A row of a list of endpoints: a slot as an address, and the address and port of the endpoint there."""


class Slots(msgspec.Struct, frozen=True, gc=False):
    """The endpoints of a front's list, in the map `list`."""

    list: str
    front: Front
    rows: tuple[Row, ...]


class RateFacts(msgspec.Struct, frozen=True, gc=False):
    """A limit of new connections: `per_second`, and `burst` in a row.

    `number` stands for both, written as an address.  `name` is in the names of its set and chain.
    """

    name: str
    per_second: int
    burst: int
    number: str


class ScreenFacts(msgspec.Struct, frozen=True):
    """The rules that screen clients in a family, with the sets and chains for some limits.  Service ports share them.

    `transports` is nft's set of the protocols that have ports, `asked` the front that a packet asked for, in packet
    fields.  `lengths` is as in TableFacts.  `nodeports` are the matches for packets that asked for a node port of
    the node.  `counted` are the reasons that have sets to count packets here, `dropped` the reasons that have a chain
    to drop them.  `rates` and `connections` are the limits, the latter in connections.
    """

    table: str
    ip: str
    transports: str
    asked: str
    lengths: tuple[tuple[str, int], ...]
    nodeports: tuple[str, ...]
    counted: tuple[str, ...]
    dropped: tuple[str, ...]
    rates: tuple[RateFacts, ...] = ()
    connections: tuple[int, ...] = ()


class PortScreen(msgspec.Struct, frozen=True, gc=False):
    """The screening of a Service port's clients, as memberships.

    `fronts` are the screened fronts.  `denying` and `guarded` are rows of (front, list of ranges), where
    `guarded` has node ports alone, `denied` of (list, key of a range), `rates` of (front, limit), `connections` of
    (front, limit, the same as an address).
    """

    table: str
    screen: ScreenFacts
    fronts: tuple[Front, ...]
    denying: tuple[tuple[Front, Address], ...] = ()
    denied: tuple[tuple[Address, str], ...] = ()
    guarded: tuple[tuple[Front, Address], ...] = ()
    rates: tuple[tuple[Front, RateFacts], ...] = ()
    connections: tuple[tuple[Front, int, str], ...] = ()


class PortFacts(msgspec.Struct, frozen=True, gc=False):
    """A Service port in a family, as memberships: each field has the members of a set or map.

    `external_ips` are the external addresses that nothing but Services uses, if so configured.  `pings` are rows of
    (address that answers pings, key of a range of sources).
    `services` and `short_circuits` are rows of (front, number that says how an endpoint is drawn), `guarded` of (front,
    list of source ranges), `allowed` of (list, key of a range: ranges.py), `affinities` of (front, seconds as an
    address).  A list of source ranges is called by an address, its Service's ClusterIP.
    `no_endpoints` are the fronts that no endpoint serves on any node.  `none_local` are the fronts that only endpoints
    of other nodes could serve, if connections are counted: their packets are dropped in any case.
    `watched` has the fronts whose connections are noted when they get no answer, each with the number of the Service's
    namespace (numbers.py).  `silent` are the endpoints of such a Service that are known to be silent.
    `retried` has the fronts whose connections are tried again if refused, in the same form, and `unretried` rows of
    (front, address and port of an endpoint whose refusals pass).
    `screen` is the screening of clients, None without any.
    """

    protocol: str
    cluster_ips: tuple[Address, ...]
    external_ips: tuple[Address, ...] = ()
    pings: tuple[tuple[Address, str], ...] = ()
    services: tuple[tuple[Front, str], ...] = ()
    short_circuits: tuple[tuple[Front, str], ...] = ()
    fronts: tuple[Front, ...] = ()
    no_endpoints: tuple[Front, ...] = ()
    none_local: tuple[Front, ...] = ()
    masqueraded: tuple[Front, ...] = ()
    local_policy: tuple[Front, ...] = ()
    guarded: tuple[tuple[Front, Address], ...] = ()
    allowed: tuple[tuple[Address, str], ...] = ()
    endpoints: tuple[Slots, ...] = ()
    sticky: tuple[Slots, ...] = ()
    affinities: tuple[tuple[Front, str], ...] = ()
    hairpins: tuple[tuple[Address, int], ...] = ()
    watched: tuple[tuple[Front, str], ...] = ()
    silent: tuple[tuple[Address, int], ...] = ()
    retried: tuple[tuple[Front, str], ...] = ()
    unretried: tuple[tuple[Front, Address, int], ...] = ()
    lists: tuple[ListFacts, ...] = ()
    draws: tuple[DrawFacts, ...] = ()
    screen: PortScreen | None = None
