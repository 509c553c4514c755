"""What the agent answers over its socket (control.py), as typed values: the same for the agent and for who asks it.

A listing is a line of JSON for each row and one `End`; every row says by `kind` what it is.  Times are in seconds since
the epoch, durations in seconds.  The same rows are what `-o json` prints, so a field here is a promise to scripts.
"""

from __future__ import annotations

import msgspec

from nftproxy.model.addresses import host_port


class Row(msgspec.Struct, frozen=True, tag_field="kind", rename="camel"):
    """One thing of a listing, of a Service of some namespace."""

    namespace: str
    service: str

    @property
    def key(self) -> str:
        """The Service, as `nftproxy explain` takes it."""
        return f"svc/{self.namespace}/{self.service}"


class ServiceRow(Row, frozen=True, tag="Service", rename="camel"):
    """A Service.

    `ports` are as kubectl has them (80:30080/TCP).  Of its endpoints, in the family of its first ClusterIP, there are
    `known`; connections of all clients can go to `used` of them, those that stay on the node to `local`.  `state` is
    Served, Conflict (it lacks some address or port) or Quarantined (it has no rules in some family), `notes` say why.
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


class EndpointRow(Row, frozen=True, tag="Endpoint", rename="camel"):
    """An endpoint of a Service port: whether it is on the list for all clients, and on that of this node, and why."""

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

    @property
    def endpoint(self) -> str:
        """Where it is."""
        return host_port(self.address, self.target_port)


class ConflictRow(Row, frozen=True, tag="Conflict", rename="camel"):
    """An address and port that a Service claims and doesn't get; `holder` is the Service that has it, if one has."""

    port_name: str
    what: str
    why: str
    holder: str


class QuarantinedRow(Row, frozen=True, tag="Quarantined", rename="camel"):
    """A Service without rules: of a family that the kernel refuses them for, or of any ("") beyond a limit."""

    family: str
    why: str


class ClientRow(Row, frozen=True, tag="Client", rename="camel"):
    """A client that session affinity remembers: what it asked for, the pod, and when it will be forgotten.

    Namespace and Service are "" where no Service has that address and port any more.
    """

    client: str
    address: str
    port: int
    protocol: str
    pod: str
    timeout: int
    seconds_left: float


class End(msgspec.Struct, frozen=True, tag_field="kind", tag="End", rename="camel"):
    """The end of a listing; `is_cut` says that there is more than was asked for."""

    is_cut: bool = False


Line = ServiceRow | EndpointRow | ConflictRow | QuarantinedRow | ClientRow | End


class FamilyState(msgspec.Struct, frozen=True, rename="camel"):
    """One family's rules: when they last followed, and for how long the oldest change waits (0: none does)."""

    family: str
    last_updated: float | None
    is_healthy: bool
    waiting: float
    elements: int


class Watch(msgspec.Struct, frozen=True, rename="camel"):
    """One resource of the API: what is being done about it (listing, watching, pausing), since when, and what came.

    `last_event` is of a change, `last_heard` of anything that the server has sent; None before the first.  `problem`
    says why it pauses, "" if nothing is wrong.
    """

    resource: str
    activity: str
    since: float
    last_event: float | None
    last_heard: float | None
    problem: str = ""


class LastTransaction(msgspec.Struct, frozen=True, rename="camel"):
    """The last transaction that the kernel took; `duration` counts from taking its events on."""

    at: float
    duration: float
    size: int
    is_full: bool
    families: tuple[str, ...]


class LastRefusal(msgspec.Struct, frozen=True, rename="camel"):
    """The last transaction that wasn't applied, and why."""

    at: float
    families: tuple[str, ...]
    reason: str


class AffinityMap(msgspec.Struct, frozen=True, rename="camel"):
    """How full a map of remembered clients is; `is_at_least` says that no more were counted."""

    family: str
    name: str
    clients: int
    is_at_least: bool
    is_full: bool
    size: int


class Versions(msgspec.Struct, frozen=True, rename="camel"):
    """Which versions there are: ours, Linux', the nftables library's ("" if it can't be asked), Python's."""

    nftproxy: str
    kernel: str
    libnftables: str
    python: str


class AgentState(msgspec.Struct, frozen=True, rename="camel"):
    """What the agent knows of itself; `why_not` has the reasons where it isn't healthy, `source` what it follows.

    `silent` are the endpoints that don't answer this node, of Services that leave such out.
    """

    is_healthy: bool
    why_not: tuple[str, ...]
    warnings: tuple[str, ...]
    node: str
    process: int
    started: float
    now: float
    source: str
    services: int
    conflicts: int
    quarantined: int
    silent: tuple[str, ...]
    families: tuple[FamilyState, ...]
    watches: tuple[Watch, ...]
    last_transaction: LastTransaction | None
    last_refusal: LastRefusal | None
    affinity: tuple[AffinityMap, ...]
    other_proxies: dict[str, list[str]]
    missing: tuple[str, ...]
    versions: Versions


class NodeFacts(msgspec.Struct, frozen=True, rename="camel"):
    """All that the rules of a node depend on beside Services and EndpointSlices, in texts as manifests have them.

    `host_addresses` are those on the machine's interfaces, None where they aren't followed.  `families` are nft's
    names.  `configuration` is what /configz shows.
    """

    name: str
    zone: str
    internal_ips: tuple[str, ...]
    external_ips: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    service_cidrs: tuple[str, ...]
    host_addresses: tuple[str, ...] | None
    families: tuple[str, ...]
    wide_maps: bool
    configuration: msgspec.Raw
