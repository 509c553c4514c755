"""The answers of the agent on its socket (agent_socket.py), as typed values for the agent and for its clients.

A listing is a line of JSON for each row, and an `End`.  The field `kind` is the type of a row.  Times are in seconds
since the epoch, durations in seconds.  `-o json` prints the same rows, so a field here is a promise to scripts.
"""

from __future__ import annotations

import msgspec

from nftproxy.model.addresses import host_port
from nftproxy.model.last_transactions import LastRefusal, LastTransaction

NAMESPACE = "Network-Namespace"
"""The header of an answer with the network namespace whose kernel the agent reads and writes."""


LIMITS = ("rate-", "connections-")
"""How the names of sets begin in which the kernel keeps clients that have a limit."""


class ListingRow(msgspec.Struct, frozen=True, tag_field="kind", rename="camel"):
    """A row of a listing, about a Service."""

    namespace: str
    service: str

    @property
    def key(self) -> str:
        """The Service, as an argument of `nftproxy explain`."""
        return f"svc/{self.namespace}/{self.service}"


class ServiceRow(ListingRow, frozen=True, tag="Service", rename="camel"):
    """A row of `nftproxy list services`.

    `ports` are in kubectl's form (80:30080/TCP).  In the family of its first ClusterIP it has `known` endpoints.
    Connections on this node can go to `used` of them, and connections that policy Local keeps on this node to `local`.

    `state` is the first of these that holds, and `notes` say why, also of the rest.  Quarantined: it has no rules in
    some family.  Conflict: it lacks some address or port.  NoEndpoints: no node has a usable endpoint of some port.
    NoneLocal: policy Local, and only other nodes have usable endpoints of some port.  NoAddress: in some family no
    address of this node serves its node ports.  Served: none of these.  `notes` have the parts of the Service and of
    its EndpointSlices, too, that can't be used.
    """

    type: str
    cluster_ips: tuple[str, ...]
    external_ips: tuple[str, ...]
    ports: tuple[str, ...]
    created: int
    state: str
    used: int
    local: int
    known: int
    internal_policy: str
    external_policy: str
    affinity: int | None
    labels: dict[str, str]
    notes: tuple[str, ...] = ()


class EndpointRow(ListingRow, frozen=True, tag="Endpoint", rename="camel"):
    """An endpoint of a Service port.

    `is_used` says that connections can reach it, from any client of this node.  `is_used_locally` says the same of
    connections that policy Local keeps on this node.  `why` and `why_locally` have the reasons.  `pod` is
    "namespace/name", or "" if unknown.
    """

    port_name: str
    port: int
    protocol: str
    address: str
    target_port: int
    is_local: bool
    is_used: bool
    why: str
    is_used_locally: bool
    why_locally: str
    pod: str = ""

    @property
    def endpoint(self) -> str:
        """The endpoint's address and port."""
        return host_port(self.address, self.target_port)


class ConflictRow(ListingRow, frozen=True, tag="Conflict", rename="camel"):
    """An address and port that a Service claims and doesn't get, or a port of the agent's own: then `service` is "".

    `holder` is the Service that has it, "" for none, as if another program has it.
    """

    port_name: str
    what: str
    why: str
    holder: str

    @property
    def key(self) -> str:
        """The Service, as an argument of `nftproxy explain`, or the node."""
        return f"svc/{self.namespace}/{self.service}" if self.service else "node"


class QuarantinedRow(ListingRow, frozen=True, tag="Quarantined", rename="camel"):
    """A Service without rules: in a family whose rules the kernel refuses, or in any family ("") beyond a limit."""

    family: str
    why: str


class ClientRow(ListingRow, frozen=True, tag="Client", rename="camel"):
    """A client that session affinity remembers: its destination, its pod, and the time left.

    Namespace and Service are "" if no Service has that address and port any more.
    """

    client: str
    address: str
    port: int
    protocol: str
    pod: str
    timeout: int
    seconds_left: float


class End(msgspec.Struct, frozen=True, tag_field="kind", tag="End", rename="camel"):
    """The end of a listing.  `is_cut` is true if there are more rows than the limit.

    `caveat` says why the rows may be out of date, "" if they aren't.
    """

    is_cut: bool = False
    caveat: str = ""


Line = ServiceRow | EndpointRow | ConflictRow | QuarantinedRow | ClientRow | End


class FamilyState(msgspec.Struct, frozen=True, rename="camel"):
    """A family's rules: the time of the last update, and the seconds that the oldest change has waited (0: none).

    At `as_of` the cluster was as the rules say: it is the time of the oldest of the API server's last words about each
    resource, or of the oldest change that waits.  None means that the rules were never loaded.

    Until the first load, `of_earlier_agent` is the number of elements that an earlier agent's rules in force have, None
    if there are none.
    """

    family: str
    last_updated: float | None
    is_healthy: bool
    waiting: float
    elements: int
    as_of: float | None = None
    of_earlier_agent: int | None = None


class WatchState(msgspec.Struct, frozen=True, rename="camel"):
    """A resource of the API: the client's activity (listing, watching, pausing), since when, and the last input.

    `last_event` is the time of the last change, `last_heard` of the server's last word, None before the first.
    `problem` is the reason of a pause, "" for none.
    """

    resource: str
    activity: str
    since: float
    last_event: float | None
    last_heard: float | None
    problem: str = ""


class AffinityMap(msgspec.Struct, frozen=True, rename="camel"):
    """The fill of a map of remembered clients, or of a set of clients with a limit, whose name begins with `LIMITS`.

    `is_at_least` is true if counting stopped at a limit.
    """

    family: str
    name: str
    clients: int
    is_at_least: bool
    is_full: bool
    size: int


class Versions(msgspec.Struct, frozen=True, rename="camel"):
    """The versions of nftproxy, Linux, the nftables library ("" if it isn't known), and Python."""

    nftproxy: str
    kernel: str
    libnftables: str
    python: str


class ConnectionRow(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """Active connections of a Service port to an endpoint.

    `service` is "namespace/name".  If it is unknown, it is "", and `port` has the address and port that clients use.
    `unanswered` connections have had no packet from the endpoint.  `is_gone` is true if no EndpointSlice of the Service
    has the endpoint any more.  `pod` is "namespace/name", "" if unknown.
    """

    service: str
    port: str
    protocol: str
    endpoint: str
    connections: int
    unanswered: int = 0
    is_gone: bool = False
    pod: str = ""


class Connections(msgspec.Struct, frozen=True, rename="camel"):
    """Active connections: the rows, the largest first.

    `connections` is the number of all.  `others` is the number of connections that are in no row, as there are too many
    different rows.  `problem` says why rows have no Services, "" if they have.  `caveat` says why the Services may be
    out of date, "" if they aren't.
    """

    connections: int
    others: int
    rows: tuple[ConnectionRow, ...]
    problem: str = ""
    caveat: str = ""


class AgentState(msgspec.Struct, frozen=True, rename="camel"):
    """The state of the agent, with the verdicts of /healthz.

    `is_healthy` is about the proxy alone.  `is_eligible` is false while the node is being removed.  Unless both are
    true, /healthz answers 503, and `why_not` has the reasons.  `source` names the source of objects.

    `caveat` says why the rules may be out of date, "" if they follow the cluster.
    Until `knows_cluster` is true, the numbers of Services, conflicts and quarantined Services mean nothing.
    `features` has lines of text about features that only nftproxy has, by their titles (`AgentPart.status`).
    """

    is_healthy: bool
    why_not: tuple[str, ...]
    warnings: tuple[str, ...]
    node: str
    process: int
    started: float
    now: float
    source: str
    caveat: str
    knows_cluster: bool
    services: int
    conflicts: int
    quarantined: int
    families: tuple[FamilyState, ...]
    watches: tuple[WatchState, ...]
    last_transaction: LastTransaction | None
    last_refusal: LastRefusal | None
    affinity: tuple[AffinityMap, ...]
    other_proxies: dict[str, list[str]]
    missing: tuple[str, ...]
    versions: Versions
    features: dict[str, tuple[str, ...]] = {}
    configuration: str = ""
    """A digest of the configuration without the node's name: nodes of the same configuration have the same."""
    is_eligible: bool = True
    dropped_lines: int = 0
    """Lines of the agent's log that nobody read in time."""


class NodeInputs(msgspec.Struct, frozen=True, rename="camel"):
    """The inputs for the rules of a node beside Services and EndpointSlices, as text in the form of manifests.

    `host_addresses` are the addresses on the machine's interfaces, None if interfaces aren't followed.  `api_servers`
    has each address and port at which the agent reaches the API server, in order.  `families` are nft's names.
    `configuration` is the answer of /configz.  `endpoints` are some of other nodes, within clusterCIDR.
    """

    name: str
    zone: str
    internal_ips: tuple[str, ...]
    external_ips: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    service_cidrs: tuple[str, ...]
    host_addresses: tuple[str, ...] | None
    api_servers: tuple[tuple[str, int], ...]
    families: tuple[str, ...]
    wide_maps: bool
    configuration: msgspec.Raw
    endpoints: tuple[str, ...] = ()
