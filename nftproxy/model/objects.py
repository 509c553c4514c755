"""The cluster as nftproxy sees it: frozen values, parsed once where JSON enters (api/parse.py).

They have only the fields that a service proxy acts upon.  Past this line, code assumes that the values are right:
addresses are `Address`, and ports are 1 to 65535.  The only free text is in names, which enter comments and messages
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

import msgspec

from nftproxy.model.addresses import Address, Family, Network, Protocol, host_port
from nftproxy.model.annotations import PLAIN, Options
from nftproxy.model.keys import KeyEnum


class TrafficPolicy(KeyEnum):
    """Whether all endpoints serve, or only this node's (spec.internalTrafficPolicy, spec.externalTrafficPolicy)."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


class TrafficDistribution(Enum):
    """The endpoints that a Service prefers (spec.trafficDistribution, KEP-4444, KEP-3015).

    The controller of EndpointSlices turns it into hints, and the hints decide.  The value is here to explain the
    result.
    """

    NONE = "none"
    PREFER_CLOSE = "PreferClose"
    PREFER_SAME_ZONE = "PreferSameZone"
    PREFER_SAME_NODE = "PreferSameNode"


class ServiceType(Enum):
    """spec.type.  A proxy ignores ExternalName."""

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
"""Key and value of a label.  Services with the same label share the tuple."""


class ServicePort(msgspec.Struct, frozen=True, order=True, gc=False):
    """An entry of spec.ports.  targetPort is never read."""

    name: str
    protocol: Protocol
    port: int
    node_port: int = 0  # 0 without a node port


class Service(msgspec.Struct, frozen=True, gc=False):
    """A Service that a proxy serves: not headless, not ExternalName, not another proxy's."""

    key: ObjectKey
    created: int  # metadata.creationTimestamp in seconds since the epoch, or 0, the oldest, if absent
    type: ServiceType
    cluster_ips: tuple[Address, ...]
    ports: tuple[ServicePort, ...]
    external_ips: tuple[Address, ...] = ()
    load_balancer_ips: tuple[Address, ...] = ()  # the ingress IPs with the ipMode VIP
    source_ranges: tuple[Network, ...] = ()  # in both families (an empty tuple restricts nothing)
    internal_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    external_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    affinity_timeout: int | None = None  # seconds, None without sessionAffinity ClientIP
    health_check_node_port: int = 0  # 0 unless type LoadBalancer with externalTrafficPolicy Local
    traffic_distribution: TrafficDistribution = TrafficDistribution.NONE
    labels: tuple[Label, ...] = ()  # for the selectors of `nftproxy list`: no rule depends on them
    options: Options = PLAIN  # the values of nftproxy's own annotations
    proxied_ips: tuple[Address, ...] = ()  # the ingress IPs with the ipMode Proxy: no rule depends on them
    faults: tuple[
        str, ...
    ] = ()  # the parts that can't be used, with codes, for `nftproxy list`: no rule depends on them

    @property
    def is_external(self) -> bool:
        """Whether the Service can have node ports, load balancer IPs or externalIPs (externalTrafficPolicy)."""
        return self.type is not ServiceType.CLUSTER_IP or bool(self.external_ips)


class Place(NamedTuple):
    """An address and port: of an endpoint, or of a listener."""

    address: Address
    port: int

    def __str__(self) -> str:
        return host_port(self.address, self.port)


class EndpointPort(msgspec.Struct, frozen=True, order=True, gc=False):
    """An entry of an EndpointSlice's ports that has both a name, which may be "", and a number."""

    name: str
    protocol: Protocol
    port: int


class EndpointState(msgspec.Struct, frozen=True, gc=False):
    """All of an endpoint but its address, defaults applied.  Endpoints in the same state share the object."""

    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node_name: str = ""
    node_hints: tuple[str, ...] | None = None  # hints.forNodes, None if absent or empty
    zone_hints: tuple[str, ...] | None = None  # hints.forZones, None if absent or empty
    zone: str = ""  # "" if unknown


class Endpoint(EndpointState, frozen=True, gc=False, kw_only=True):
    """An entry of an EndpointSlice's endpoints, with its first address."""

    address: Address


class Endpoints(msgspec.Struct, frozen=True, gc=False):
    """The endpoints of an EndpointSlice, in a quarter of the memory that as many `Endpoint` take."""

    text: str = ""
    """The address of each endpoint, separated by blanks."""
    states: tuple[EndpointState, ...] = ()
    """The state of each endpoint, in the same order."""

    @classmethod
    def of(cls, endpoints: Iterable[Endpoint]) -> Endpoints:
        """Store endpoints by attribute, which takes less memory than an object for each."""
        made = [msgspec.structs.astuple(each) for each in endpoints]
        return cls(" ".join(address for *_, address in made), tuple(EndpointState(*state) for *state, _ in made))

    @property
    def addresses(self) -> list[Address]:
        """The address of each endpoint."""
        return self.text.split()  # type: ignore[return-value]  # without calls of a NewType

    def __iter__(self) -> Iterator[Endpoint]:
        """Yield each endpoint, made anew."""
        for address, state in zip(self.addresses, self.states, strict=True):
            yield Endpoint(*msgspec.structs.astuple(state), address=address)


class EndpointSlice(msgspec.Struct, frozen=True, gc=False):
    """An EndpointSlice of type IPv4 or IPv6 that belongs to a Service (label kubernetes.io/service-name)."""

    key: ObjectKey
    service: ObjectKey
    family: Family
    ports: tuple[EndpointPort, ...]
    endpoints: Endpoints
    triggered: float = 0.0
    """The time of the change that led to this version, in seconds since the epoch, 0 if unknown.

    It is the annotation endpoints.kubernetes.io/last-change-trigger-time."""
    options: Options = PLAIN  # the values of nftproxy's own annotations
    pods: str = ""
    """The name of each endpoint's pod, in the order of `endpoints`, separated by blanks.  "" if none is known.

    One text takes a third of the memory of a text for each endpoint.  No rule depends on it."""
    faults: tuple[str, ...] = ()  # as those of a Service

    def pod_names(self) -> Iterator[tuple[Address, str]]:
        """Yield the address of each endpoint, and the name of its pod, "" if unknown."""
        names = self.pods.split(" ") if self.pods else [""] * len(self.endpoints.states)
        return zip(self.endpoints.addresses, names, strict=True)


class Node(msgspec.Struct, frozen=True, gc=False):
    """This node.  Addresses are ordered as in the status."""

    name: str
    zone: str = ""  # "" without the label topology.kubernetes.io/zone
    internal_ips: tuple[Address, ...] = ()
    external_ips: tuple[Address, ...] = ()
    pod_cidrs: tuple[Network, ...] = ()
    is_deleted: bool = False  # the Node has a metadata.deletionTimestamp
    taints: tuple[str, ...] = ()  # the keys

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All of the node's own addresses, internal addresses first."""
        return self.internal_ips + self.external_ips


class ServiceCIDR(msgspec.Struct, frozen=True, gc=False):
    """A range from which ClusterIPs are allocated (networking.k8s.io/v1 ServiceCIDR, spec.cidrs)."""

    name: str
    cidrs: tuple[Network, ...]


ClusterObject = Service | EndpointSlice | Node | ServiceCIDR


def key_of(value: ClusterObject) -> ObjectKey | str:
    """Return the key of an object among the objects of its kind."""
    return value.name if isinstance(value, Node | ServiceCIDR) else value.key


class Ignored(msgspec.Struct, frozen=True, gc=False):
    """An object that is well-formed but not for this proxy, and the reason in words for a reviewer."""

    object: str
    reason: str
    key: ObjectKey = ObjectKey("", "")  # a value
    cluster_ips: tuple[Address, ...] = ()  # of a Service
