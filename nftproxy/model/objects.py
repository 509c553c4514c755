"""The cluster as nftproxy sees it: frozen values, parsed once where JSON enters (parse.py).

Only what a service proxy acts upon is kept.  Past this line code assumes that the values are right: addresses are
`Address`, ports are 1 to 65535, and the only free text is in names, which go nowhere but into comments and messages.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import Address, Family, Network, Protocol
from nftproxy.model.annotations import PLAIN, PLAIN_SLICE, ServiceOptions, SliceOptions
from nftproxy.model.keys import KeyEnum


class TrafficPolicy(KeyEnum):
    """Which endpoints serve: all, or this node's (spec.internalTrafficPolicy, spec.externalTrafficPolicy)."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


class TrafficDistribution(Enum):
    """Which endpoints a Service prefers (spec.trafficDistribution; KEP-4444, KEP-3015).

    The controller of EndpointSlices turns it into hints, and these decide; the wish is here to explain the result.
    """

    NONE = "none"
    PREFER_CLOSE = "PreferClose"
    PREFER_SAME_ZONE = "PreferSameZone"
    PREFER_SAME_NODE = "PreferSameNode"


class ServiceType(Enum):
    """spec.type, except ExternalName, which a proxy ignores."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ObjectKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """Namespace and name of a namespaced object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


Label = tuple[str, str]
"""Key and value of one label; Services that have the same label share one tuple."""


class ServicePort(msgspec.Struct, frozen=True, order=True, gc=False):
    """One entry of spec.ports; `node_port` is 0 where there is none.  targetPort is never read."""

    name: str
    protocol: Protocol
    port: int
    node_port: int = 0


class Service(msgspec.Struct, frozen=True, gc=False):
    """A Service that a proxy serves: not headless, not ExternalName, not another proxy's.

    `created` is metadata.creationTimestamp in seconds since the epoch (0 if absent: such an object counts as oldest).
    `load_balancer_ips` are the ingress IPs whose ipMode is VIP.  `affinity_timeout` is in seconds, None without
    sessionAffinity ClientIP.  `source_ranges` is as given, both families; an empty tuple does not restrict.
    `health_check_node_port` is 0 unless type LoadBalancer with externalTrafficPolicy Local.  `labels` are there for
    people's questions: no rule depends on them.  `options` are what annotations of nftproxy's own ask for.
    """

    key: ObjectKey
    created: int
    type: ServiceType
    cluster_ips: tuple[Address, ...]
    ports: tuple[ServicePort, ...]
    external_ips: tuple[Address, ...] = ()
    load_balancer_ips: tuple[Address, ...] = ()
    source_ranges: tuple[Network, ...] = ()
    internal_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    external_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    affinity_timeout: int | None = None
    health_check_node_port: int = 0
    traffic_distribution: TrafficDistribution = TrafficDistribution.NONE
    labels: tuple[Label, ...] = ()
    options: ServiceOptions = PLAIN


class Place(NamedTuple):
    """Where an endpoint answers: its address, and the port of one of its EndpointSlice's ports."""

    address: Address
    port: int


class EndpointPort(msgspec.Struct, frozen=True, order=True, gc=False):
    """One entry of an EndpointSlice's ports that has both a name ("" is one) and a number."""

    name: str
    protocol: Protocol
    port: int


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One entry of an EndpointSlice's endpoints: its first address and its conditions, defaults applied.

    `zone` is "" where it isn't known.  `node_hints` and `zone_hints` are None where hints.forNodes / hints.forZones is
    absent or empty.
    """

    address: Address
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node_name: str = ""
    node_hints: tuple[str, ...] | None = None
    zone_hints: tuple[str, ...] | None = None
    zone: str = ""


class EndpointSlice(msgspec.Struct, frozen=True, gc=False):
    """An EndpointSlice of type IPv4 or IPv6 that belongs to a Service (label kubernetes.io/service-name).

    `triggered` is the time of the change that it reports, in seconds since the epoch, 0 if that isn't known (annotation
    endpoints.kubernetes.io/last-change-trigger-time).  `options` are what annotations of nftproxy's own ask for.
    """

    key: ObjectKey
    service: ObjectKey
    family: Family
    ports: tuple[EndpointPort, ...]
    endpoints: tuple[Endpoint, ...]
    triggered: float = 0.0
    options: SliceOptions = PLAIN_SLICE


class Node(msgspec.Struct, frozen=True, gc=False):
    """This node: `zone` is "" without the label topology.kubernetes.io/zone; addresses are ordered as in the status.

    `is_deleted`: it is about to go (metadata.deletionTimestamp).  `taints` are keys only.
    """

    name: str
    zone: str = ""
    internal_ips: tuple[Address, ...] = ()
    external_ips: tuple[Address, ...] = ()
    pod_cidrs: tuple[Network, ...] = ()
    is_deleted: bool = False
    taints: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All of the node's own addresses, internal ones first."""
        return self.internal_ips + self.external_ips


class ServiceCIDR(msgspec.Struct, frozen=True, gc=False):
    """A range from which ClusterIPs are allocated (networking.k8s.io/v1 ServiceCIDR, spec.cidrs)."""

    name: str
    cidrs: tuple[Network, ...]


ClusterObject = Service | EndpointSlice | Node | ServiceCIDR


class Ignored(msgspec.Struct, frozen=True, gc=False):
    """An object that is well-formed but not for this proxy, and why, in words for a reviewer."""

    object: str
    reason: str
