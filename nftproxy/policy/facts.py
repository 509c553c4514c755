"""Facts: what the templates loop over.

Every decision has been taken by the time a fact is made (compile.py); a template only writes it down as nft.  A fact's
field names are the template author's vocabulary, so they are documented here, field by field.
"""

from __future__ import annotations

import msgspec

from nftproxy.model.addresses import Address


class Endings(msgspec.Struct, frozen=True):
    """Where a packet goes that no endpoint gets: verdicts, which count first where that is configured.

    `no_endpoint` rejects, all others drop: `unserved` what a front has no endpoint for in this generation or on this
    node, `not_admitted` what source ranges exclude, `race` what a commit has come between.  `nodeport_` says the same
    of node ports, `translated` of a packet whose address is the endpoint's already.
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
    """What the skeleton of one family's table depends on: the node and the configuration, no Service.

    `ip` is nft's keyword for the family's header ("ip", "ip6").
    `numbers` matches addresses that are numbers, `zero` is 0 as such an address (numbers.py).
    `mark` is the bit of the packet mark that asks for masquerading, `unmark` its complement: hexadecimal numbers.
    `local_sources` holds the match for local sources (pods of this cluster or node), or nothing.
    `masquerades` holds how connections are masqueraded: rows of (match, statement), of which the first that matches
    counts ("" matches all).
    `masqueraded_sources` holds a match for sources that ClusterIPs masquerade ("" matches all), or nothing.
    `nodeport_matches` holds the match for addresses that serve node ports; `remembered_nodeports` the same for a
    packet already translated, by its original destination.
    `filter_priority` is that of the chains that reject what was not translated.
    `counted` holds what is counted for each Service ("connections", "race"), and `counters` the chain that counts a
    connection which an endpoint gets; or nothing, both.  `endings` are the verdicts for what no endpoint gets.
    `watchers` holds the chain that notes connections without an answer, if any Service leaves out who doesn't answer.
    """

    table: str
    ip: str
    protocols: tuple[str, ...]
    numbers: str
    zero: str
    mark: str
    unmark: str
    masquerades: tuple[tuple[str, str], ...]
    local_sources: tuple[str, ...]
    masqueraded_sources: tuple[str, ...]
    nodeport_matches: tuple[str, ...]
    remembered_nodeports: tuple[str, ...]
    nodeport_addresses: tuple[Address, ...]
    service_cidrs: tuple[str, ...]
    filter_priority: int
    counted: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    endings: Endings = Endings()
    watchers: tuple[str, ...] = ()


class ListFacts(msgspec.Struct, frozen=True):
    """A list of endpoints, and the way from a slot to an endpoint; every Service port with such a list shares it.

    `list` names the map of slots ("tcp-endpoints"), `prefix` is "nodeport-" if it is one of node ports.  A packet that
    comes here has had its address overwritten: `asked` is the list's key without the slot, in packet fields, and
    `asked_front` the front.  `numbers` matches addresses that are numbers (numbers.py); `first` is slot 0.
    `affinities` holds the timeout if clients are remembered, in seconds and as an address, or nothing.  `race` is the
    verdict for a packet that a commit has come between.
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
    """How one of `count` endpoints of a list is drawn; every Service port that has this many shares it.

    `number` leads here from `services` (with the `prefix` of node ports); `sticky` holds the number for fronts with
    affinity, or nothing.  `draw` is the nft expression that picks the slot, as an address, and `suffix` says in names
    which algorithm that is ("", "-by-client", ...).  `slots` holds the map that makes an address of a slot where `draw`
    needs one: rows of (name, rows of (protocol and slot, address)); or nothing.
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
    slots: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]

    @property
    def of_port(self) -> str:
        """The number that the fronts of this very Service port have in `services`."""
        return self.sticky[0] if self.sticky else self.number


class Front(msgspec.Struct, frozen=True, gc=False):
    """One address and port at which a Service port is reached, or its node port.

    `prefix` is "" or "nodeport-" and goes before the names of sets and maps, `match` is the key (address, protocol,
    port) or (protocol, port), and `where` is the same without the protocol.
    """

    prefix: str
    match: str
    where: str


Row = tuple[str, Address, int]
"""A row of a list of endpoints: a slot as an address, and the address and port of the endpoint there."""


class Slots(msgspec.Struct, frozen=True, gc=False):
    """The endpoints of one list of one front, in the map `list`."""

    list: str
    front: Front
    rows: tuple[Row, ...]


class RateFacts(msgspec.Struct, frozen=True, gc=False):
    """A limit of new connections: `per_second`, and `burst` in a row; `number` stands for both, written as an address.

    `name` is in the names of its set and chain.
    """

    name: str
    per_second: int
    burst: int
    number: str


class ScreenFacts(msgspec.Struct, frozen=True):
    """What screens clients in one family, with the sets and chains for some limits; Service ports share it.

    `transports` is nft's set of the protocols that have ports, `asked` the front that a packet asked for, in packet
    fields.  `nodeports` are the matches for packets that asked for a node port of the node.  `counted` are the reasons
    that have sets to count packets here, `dropped` those that have a chain to drop them.  `rates` and `connections` are
    the limits, the latter in connections.
    """

    table: str
    ip: str
    transports: str
    asked: str
    nodeports: tuple[str, ...]
    counted: tuple[str, ...]
    dropped: tuple[str, ...]
    rates: tuple[RateFacts, ...] = ()
    connections: tuple[int, ...] = ()


class PortScreen(msgspec.Struct, frozen=True, gc=False):
    """What one Service port's clients are screened for, as memberships.

    `fronts` are those that are screened at all.  `denying` and `guarded` are rows of (front, list of ranges), where
    `guarded` has node ports alone, `denied` of (list, address or CIDR), `rates` of (front, limit), `connections` of
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
    """One Service port in one family, as memberships: each field is a set or map and who is in it.

    `services` and `short_circuits` are rows of (front, number that says how an endpoint is drawn), `guarded` of (front,
    list of source ranges), `allowed` of (list, address or CIDR), `affinities` of (front, seconds as an address).  A
    list of source ranges is called by an address, its Service's ClusterIP.
    `no_endpoints` are those of the fronts that no endpoint serves on any node.  `none_local` are those that only
    endpoints of other nodes could serve, where connections are counted: their packets are dropped in any case.
    `watched` are those whose connections are noted when they get no answer.  `screen` says what clients are screened
    for, None for nothing.
    """

    protocol: str
    cluster_ips: tuple[Address, ...]
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
    watched: tuple[Front, ...] = ()
    lists: tuple[ListFacts, ...] = ()
    draws: tuple[DrawFacts, ...] = ()
    screen: PortScreen | None = None
