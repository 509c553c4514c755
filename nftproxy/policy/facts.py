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


class Part(msgspec.Struct, frozen=True):
    """The facts of an extension, with the template that writes them.

    A template for a table's skeleton consists of blocks: `declarations`, and one for each of the `INSERTION_POINTS` at
    which it adds rules to the proxy's chains.  It reads the fields of `TableFacts`, too.
    """

    template: str
    facts: msgspec.Struct


class Addition(msgspec.Struct, frozen=True, gc=False):
    """An extension's share of a Service port: its elements, and declarations that several ports share."""

    elements: Part
    shared: tuple[Part, ...] = ()


INSERTION_POINTS = (
    "before_services",
    "delivered",
    "unused_addresses",
    "translated",
    "every_packet",
    "masqueraded_packets",
)
"""The points of table.nft.j2 at which extensions may add rules:

* `before_services`: the first packet of a connection, before its Service is looked for
* `delivered`: a packet for the node itself
* `unused_addresses`: a packet that is not translated, before addresses that no Service has
* `translated`: a new connection that an endpoint gets, before session affinity
* `every_packet`: a packet of any connection, in any direction
* `masqueraded_packets`: the first packet of a connection whose source must be hidden
"""


class TableFacts(msgspec.Struct, frozen=True):
    """The facts for the skeleton of a family's table, from the node and the configuration, independent of Services.

    `ip` is nft's keyword for the family's header ("ip", "ip6").
    `numbers` matches addresses that are numbers, `zero` is 0 as such an address (numbers.py).
    `lengths` are the lengths of prefixes that ranges of sources have: rows of (nft expression for a packet's source of
    this length, length).
    `mark` is the bit of the packet mark that asks for masquerading, `unmark` its complement: hexadecimal numbers.
    `local_sources` holds the match for local sources (pods of this cluster or node), or nothing.
    `masquerades` says how to masquerade connections: rows of (match, statement).  The first row that matches counts
    ("" matches all).
    `masqueraded_sources` holds a match for sources that ClusterIPs masquerade ("" matches all), or nothing.
    `nodeport_matches` holds the match for addresses that serve node ports, and `remembered_nodeports` the same for a
    packet already translated, by its original destination.
    `filter_priority` is the priority of the chains that reject packets that were not translated.
    `endings` are the verdicts for packets that no endpoint gets.
    `parts` are the shares of the extensions.  `later` are parts that a Service may ask for later: their declarations
    belong to the table's shape.
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
    filter_priority: int
    endings: Endings = Endings()
    parts: tuple[Part, ...] = ()
    later: tuple[Part, ...] = ()


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
    of_port: str
    """The number that the fronts of this very Service port have in `services`."""


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


class PortFacts(msgspec.Struct, frozen=True, gc=False):
    """A Service port in a family, as memberships: each field has the members of a set or map.

    `services` and `short_circuits` are rows of (front, number that says how an endpoint is drawn), `guarded` of (front,
    list of source ranges), `allowed` of (list, key of a range: ranges.py), `affinities` of (front, seconds as an
    address).  A list of source ranges is called by an address, its Service's ClusterIP.
    `no_endpoints` are the fronts that no endpoint serves on any node.
    `additions` are the shares of the extensions for which the Service or the configuration asks.
    """

    protocol: str
    cluster_ips: tuple[Address, ...]
    services: tuple[tuple[Front, str], ...] = ()
    short_circuits: tuple[tuple[Front, str], ...] = ()
    fronts: tuple[Front, ...] = ()
    no_endpoints: tuple[Front, ...] = ()
    masqueraded: tuple[Front, ...] = ()
    local_policy: tuple[Front, ...] = ()
    guarded: tuple[tuple[Front, Address], ...] = ()
    allowed: tuple[tuple[Address, str], ...] = ()
    endpoints: tuple[Slots, ...] = ()
    sticky: tuple[Slots, ...] = ()
    affinities: tuple[tuple[Front, str], ...] = ()
    hairpins: tuple[tuple[Address, int], ...] = ()
    lists: tuple[ListFacts, ...] = ()
    draws: tuple[DrawFacts, ...] = ()
    additions: tuple[Addition, ...] = ()
