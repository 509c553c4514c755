"""Clients: their addresses and interfaces, and whether the configuration takes them for local sources.

A question names a client, or a kind of source.  Only the possible addresses and the interface of a kind are known.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from nftproxy.explanation.question import Source, SourceKind
from nftproxy.model.addresses import Address, Family, Network, family_of, is_loopback, is_within, of_family
from nftproxy.model.objects import ObjectKey
from nftproxy.model.pods import Pods
from nftproxy.model.settings import Config, DetectLocalMode
from nftproxy.pipeline import Pipeline
from nftproxy.policy.local_sources import LocalSources, local_sources
from nftproxy.policy.state import ClusterState


class Client(NamedTuple):
    """A client (`is_one`), or all clients of a kind.

    `networks` are the possible addresses, empty if they aren't known.  `interface` is the interface that the packets
    come in through, "" for the node's own packets, None if it isn't known.
    """

    kind: SourceKind
    networks: tuple[Network, ...]
    interface: str | None = None
    is_one: bool = False

    @property
    def address(self) -> Address | None:
        """The client's address, None for a kind."""
        return Address(str(self.networks[0].network_address)) if self.is_one else None

    def __str__(self) -> str:
        return f"{self.address} ({self.kind.value})" if self.is_one else self.kind.value


def addresses_of(state: ClusterState, pod: ObjectKey, pods: Pods) -> tuple[Address, ...]:
    """The addresses of a pod by its name: from manifests of pods, or as an endpoint of a Service."""
    return pods.addresses.get(pod) or state.pod_addresses(pod)


def clients(pipeline: Pipeline, family: Family, source: Source | None, pods: Pods) -> tuple[Client, ...]:
    """The clients of a question in a family: a client, a kind, or all kinds.  Empty if the family is another."""
    if source is None:
        return tuple(_of_kind(pipeline.state, family, kind, None) for kind in SourceKind)
    if source.pod is not None:
        own = of_family(addresses_of(pipeline.state, source.pod, pods), family)
        return tuple(_one(pipeline, address, source) for address in own[:1])
    if source.address is None:
        return (_of_kind(pipeline.state, family, source.kind or SourceKind.OUTSIDE, source.interface),)
    return (_one(pipeline, source.address, source),) if family_of(source.address) is family else ()


def _one(pipeline: Pipeline, address: Address, source: Source) -> Client:
    kind = source.kind or kind_of(pipeline, address)
    interface = "" if kind is SourceKind.NODE else source.interface
    return Client(kind, (ipaddress.ip_network(address),), interface, is_one=True)


def kind_of(pipeline: Pipeline, address: Address) -> SourceKind:
    """The kind of source that has an address, as far as the node can tell."""
    known = _known_kind(pipeline.state, address)
    if known is not None:
        return known
    ranges = pipeline.settings.config.cluster_cidrs
    return SourceKind.REMOTE_POD if is_within(address, ranges) else SourceKind.OUTSIDE


def _known_kind(state: ClusterState, address: Address) -> SourceKind | None:
    if address in state.own_addresses or address in state.node.addresses or is_loopback(address):
        return SourceKind.NODE
    if is_within(address, state.node.pod_cidrs):
        return SourceKind.POD
    nodes = {endpoint.node_name for _, endpoint in state.endpoints_at(address)}
    if nodes:
        return SourceKind.POD if state.node.name in nodes else SourceKind.REMOTE_POD
    return None


def assumption(pipeline: Pipeline, source: Source | None) -> str:
    """A note on a source whose kind rests on a range that isn't known, or ""."""
    address = source.address if source and source.kind is None else None
    if address is None or _known_kind(pipeline.state, address) is not None:
        return ""
    kind, family = kind_of(pipeline, address), family_of(address)
    if kind is SourceKind.OUTSIDE and family not in map(family_of, pipeline.settings.config.cluster_cidrs):
        return f"{address} is taken for a client outside the cluster: no clusterCIDR tells pods' addresses"
    if kind is SourceKind.REMOTE_POD and family not in map(family_of, pipeline.state.node.pod_cidrs):
        return f"{address} is taken for a pod of another node: Node {pipeline.state.node.name} has no podCIDR"
    return ""


def _of_kind(state: ClusterState, family: Family, kind: SourceKind, interface: str | None) -> Client:
    networks: tuple[Network, ...] = ()
    if kind is SourceKind.POD:
        networks = tuple(cidr for cidr in state.node.pod_cidrs if family_of(cidr) is family)[:1]
    elif kind is SourceKind.NODE:
        own = (*state.node.addresses, *sorted(state.own_addresses))
        networks = tuple(map(ipaddress.ip_network, dict.fromkeys(a for a in own if family_of(a) is family)))
        interface = ""
    return Client(kind, networks, interface)


def is_local(client: Client, state: ClusterState, config: Config, family: Family) -> bool | None:
    """True if a client is a local source (detectLocalMode), None if the node can't recognise local sources."""
    detector = local_sources(state.node, config, family)
    if detector is None:
        return None
    if detector.network is None:
        return client.kind is SourceKind.POD if client.interface is None else detector.comes_in_by(client.interface)
    return _is_within(client, detector, config)


def _is_within(client: Client, detector: LocalSources, config: Config) -> bool:
    """True if a client is a local source by its address.  If a pod's address isn't known, its kind decides."""
    assert detector.network is not None
    if client.networks:
        return client.networks[0].overlaps(detector.network)
    by_cluster = config.detect_local_mode is DetectLocalMode.CLUSTER_CIDR
    return client.kind is SourceKind.POD or (client.kind is SourceKind.REMOTE_POD and by_cluster)
