"""Who connects: what is known of a client, and what the configuration makes of it.

A question names one client, or a kind of source of which only so much is known: which addresses it may have, and what
it comes in through.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from nftproxy.explanation.question import Kind, Source
from nftproxy.model.addresses import Address, Family, Network, contains, family_of, is_loopback, of_family
from nftproxy.model.pods import Pods
from nftproxy.model.settings import Config, DetectLocalMode
from nftproxy.pipeline import Pipeline
from nftproxy.policy.local_sources import LocalSources, local_sources
from nftproxy.policy.state import ClusterState


class Client(NamedTuple):
    """A client, or all of a kind.

    `networks` are the addresses that it may have, none if that isn't known; one has a single address.  `interface` is
    what its packets come in through, "" for the node's own, None if that isn't known.
    """

    kind: Kind
    networks: tuple[Network, ...]
    interface: str | None = None
    is_one: bool = False

    @property
    def address(self) -> Address | None:
        """The one address that it has, if the question names it."""
        return Address(str(self.networks[0].network_address)) if self.is_one else None

    def __str__(self) -> str:
        return f"{self.address} ({self.kind.value})" if self.is_one else self.kind.value


def own_addresses(state: ClusterState) -> frozenset[Address]:
    """The addresses on the node's interfaces; while these aren't known, the Node's own stand in."""
    return frozenset(state.node.addresses) if state.host_addresses is None else state.host_addresses


def clients(pipeline: Pipeline, family: Family, source: Source | None, pods: Pods) -> tuple[Client, ...]:
    """Whom the question is about in a family: one, or one of each kind; none if it is about the other family."""
    if source is None:
        return tuple(_of_kind(pipeline.state, family, kind, None) for kind in Kind)
    if source.pod is not None:
        own = of_family(pods.addresses.get(source.pod, ()), family)
        return tuple(_one(pipeline, address, source) for address in own[:1])
    if source.address is None:
        return (_of_kind(pipeline.state, family, source.kind or Kind.OUTSIDE, source.interface),)
    return (_one(pipeline, source.address, source),) if family_of(source.address) is family else ()


def _one(pipeline: Pipeline, address: Address, source: Source) -> Client:
    kind = source.kind or kind_of(pipeline, address)
    interface = "" if kind is Kind.NODE else source.interface
    return Client(kind, (ipaddress.ip_network(address),), interface, is_one=True)


def kind_of(pipeline: Pipeline, address: Address) -> Kind:
    """What has this address, as far as the node can know."""
    state, config = pipeline.state, pipeline.settings.config
    if address in own_addresses(state) or address in state.node.addresses or is_loopback(address):
        return Kind.NODE
    if any(contains(cidr, address) for cidr in state.node.pod_cidrs):
        return Kind.POD
    nodes = {endpoint.node_name for _, endpoint in state.endpoints_at(address)}
    if nodes:
        return Kind.POD if state.node.name in nodes else Kind.REMOTE_POD
    return Kind.REMOTE_POD if any(contains(cidr, address) for cidr in config.cluster_cidrs) else Kind.OUTSIDE


def _of_kind(state: ClusterState, family: Family, kind: Kind, interface: str | None) -> Client:
    networks: tuple[Network, ...] = ()
    if kind is Kind.POD:
        networks = tuple(cidr for cidr in state.node.pod_cidrs if family_of(cidr) is family)[:1]
    elif kind is Kind.NODE:
        own = (*state.node.addresses, *sorted(own_addresses(state)))
        networks = tuple(map(ipaddress.ip_network, dict.fromkeys(a for a in own if family_of(a) is family)))
        interface = ""
    return Client(kind, networks, interface)


def is_local(client: Client, state: ClusterState, config: Config, family: Family) -> bool | None:
    """Whether a client is a local source (detectLocalMode); None if this node has no way to know of anyone."""
    detector = local_sources(state.node, config, family)
    if detector is None:
        return None
    if detector.network is None:
        return client.kind is Kind.POD if client.interface is None else detector.comes_in_by(client.interface)
    return _is_within(client, detector, config)


def _is_within(client: Client, detector: LocalSources, config: Config) -> bool:
    """The same by address; of pods whose addresses aren't known it is what the detector is there to say."""
    assert detector.network is not None
    if client.networks:
        return client.networks[0].overlaps(detector.network)
    by_cluster = config.detect_local_mode is DetectLocalMode.CLUSTER_CIDR
    return client.kind is Kind.POD or (client.kind is Kind.REMOTE_POD and by_cluster)
