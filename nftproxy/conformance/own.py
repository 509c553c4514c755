"""An operator's own cluster on a scratch node: its objects, and a bounded selection of connections to its Services.

The node has the addresses of one of the cluster's Nodes, and reaches the pods on that Node through one interface, cni0.
To every front of every Service there is a connection from each kind of source: a pod of the node, a pod that serves the
Service itself, the node, another node's pod, the world outside, and an address in each of two source ranges.  Where
that is more than `MOST`, every second, third, ... front is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from nftproxy.api.config import parse_config
from nftproxy.api.kinds import kinds_for
from nftproxy.api.parse import parse_object
from nftproxy.conformance.manifests import Manifest, stamped
from nftproxy.conformance.oracle import World, virtual_ips
from nftproxy.conformance.probes import Target
from nftproxy.conformance.proxy import Presentation
from nftproxy.lab import Origin, Probe
from nftproxy.lab.topology import DEFAULT_SOURCES, PODS, Site
from nftproxy.model.addresses import Address, Family, Network, contains, family_of
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.objects import ClusterObject, EndpointSlice, Ignored, Node, Service, ServiceCIDR
from nftproxy.model.settings import DetectLocalMode

MOST = 50_000
"""Connections, each of which is tried twice: some ten seconds for each proxy."""
MOST_MORE = 200_000
"""Further connections, by which it shows whether each endpoint is reached."""
RANGES = 2
"""Source ranges of a Service that are tried from inside."""
OWN_SOURCES = {Family.IPV4: Address("192.0.2.77"), Family.IPV6: Address("2001:db8:0:77::77")}
"""What the node's own connections come from: a second address, so that masquerading shows (RFC 5737, RFC 3849)."""
NARROW = 8
"""The prefix length from which on the end of a range has addresses that anybody may have."""
_NAMESPACED = {"Service", "EndpointSlice"}


class OwnCluster(NamedTuple):
    """A cluster from manifests: as the oracle sees it, and as the API server has it.

    `problems` are what is wrong with objects, and costs only what they name.
    """

    world: World
    documents: tuple[Manifest, ...]
    configuration: Manifest
    problems: tuple[Problem, ...]

    def presentation(self) -> Presentation:
        """How it is shown to a proxy: a node with the Node's addresses, and its pods behind one interface."""
        node = self.world.node
        pods = [_alone(cidr[1]) for cidr in node.pod_cidrs if cidr.num_addresses > 1]
        local = [pod.address for each in self.world.slices for pod in each.endpoints if pod.node_name == node.name]
        away = [each for each in local if each not in node.addresses and not _within(each, node.pod_cidrs)]
        site = Site(
            addresses=tuple(_alone(each) for each in node.internal_ips),
            pods=tuple(each for each in pods if each.partition("/")[0] not in local),
            pod_networks=(*map(str, node.pod_cidrs), *dict.fromkeys(map(_alone, away))),
            gateways=(),
        )
        return Presentation(
            lambda _: list(self.documents), lambda _: self.configuration, site, tuple(OWN_SOURCES.values())
        )


def own_cluster(documents: Iterable[Manifest], configuration: Manifest, node_name: str = "") -> OwnCluster:
    """The cluster in manifests, seen from one of its Nodes; a Node's name is needed if there are several.

    Args:
        documents: objects as decoded JSON; those of kinds that don't matter are left out.
        configuration: a KubeProxyConfiguration.
        node_name: the Node that the proxy is on.

    Raises:
        BadInput: there is no such Node, or the configuration is wrong.
    """
    adapted = _with_our_interfaces(configuration)
    config, _ = parse_config(adapted, "")
    kinds = kinds_for(config.service_proxy_name)
    problems: list[Problem] = []
    kept: list[Manifest] = []
    objects: list[ClusterObject] = []
    for each in documents:
        read = parse_object(each, "", problems, kinds=kinds)
        if read is not None:
            kept.append(_completed(each))
        if read is not None and not isinstance(read, Ignored):
            objects.append(read)
    node = _node([each for each in objects if isinstance(each, Node)], node_name)
    world = World(
        node,
        config,
        tuple(each for each in objects if isinstance(each, Service)),
        tuple(each for each in objects if isinstance(each, EndpointSlice)),
        tuple(each for each in objects if isinstance(each, ServiceCIDR)),
    )
    cluster = OwnCluster(world, tuple(kept), adapted, tuple(problems))
    site = cluster.presentation().site
    present = {Address(each.partition("/")[0]) for each in (*site.addresses, *site.pods)}
    return cluster._replace(world=world._replace(interfaces=frozenset(present | set(OWN_SOURCES.values()))))


def _completed(document: Manifest) -> Manifest:
    """An object with what an API server would fill in, and otherwise than manifests mean: namespace and time."""
    made = stamped(document)
    if made["kind"] in _NAMESPACED:
        made["metadata"]["namespace"] = made["metadata"].get("namespace") or "default"
    return made


def _node(nodes: Sequence[Node], name: str) -> Node:
    found = [each for each in nodes if not name or each.name == name]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(each.name for each in nodes)) or "none"
    wanted = f"no Node {name} is among the manifests" if name else "--node must say which Node the proxy is on"
    raise BadInput([Problem("", "", "", f"{wanted}; there: {names}", Code.TRIAL_IMPOSSIBLE)])


def _with_our_interfaces(configuration: Manifest) -> Manifest:
    """The configuration with the lab's interface to pods where it names the cluster's own."""
    names = {
        DetectLocalMode.BRIDGE_INTERFACE.value: {"bridgeInterface": PODS},
        DetectLocalMode.INTERFACE_NAME_PREFIX.value: {"interfaceNamePrefix": PODS},
    }
    ours = names.get(configuration.get("detectLocalMode") or "")
    return configuration | {"detectLocal": ours} if ours else configuration


# Connections


def flows(world: World, most: int = MOST) -> list[Probe]:
    """The connections that are worth trying, at most so many."""
    fronts = list(dict.fromkeys(_fronts(world)))
    sources = _Sources(world)
    found = [[Probe(origin, *_words(to), source) for origin, source in sources.to(who, to)] for who, to in fronts]
    step = -(-sum(map(len, found)) // most) or 1
    return list(dict.fromkeys(itertools.chain.from_iterable(found[::step])))


def _words(target: Target) -> tuple[str, int, str]:
    return target.address, target.port, target.protocol.value


def _fronts(world: World) -> Iterator[tuple[Service, Target]]:
    """Where each Service is reached; node ports at the addresses that the node has on its uplink and among its pods."""
    own = sorted(world.interfaces - set(OWN_SOURCES.values()))
    for service in world.services:
        virtual = dict.fromkeys(virtual_ips(service))
        for port in service.ports:
            yield from ((service, Target(address, port.protocol, port.port)) for address in virtual)
            if port.node_port:
                yield from ((service, Target(address, port.protocol, port.node_port)) for address in own)


class _Sources:
    """Addresses of each kind of source, by family; a kind of which the manifests name none is left out."""

    def __init__(self, world: World) -> None:
        self._world = world
        pods = [pod for each in world.slices for pod in each.endpoints]
        self._taken = {pod.address for pod in pods} | world.interfaces
        self._here = {pod.address for pod in pods if pod.node_name == world.node.name} - world.interfaces
        away = sorted({pod.address for pod in pods if pod.node_name not in ("", world.node.name)} - world.interfaces)
        self._common = {
            family: [
                *_at(Origin.POD, self._free_among(_of(family, world.node.pod_cidrs))),
                (Origin.NODE, OWN_SOURCES[family]),
                *_at(Origin.REMOTE_POD, next(iter(_of(family, away)), None)),
                (Origin.OUTSIDE, Address(DEFAULT_SOURCES[Origin.OUTSIDE][family is Family.IPV6])),
            ]
            for family in Family
        }
        self._itself: dict[tuple[object, Family], Address] = {}
        for each in world.slices:
            for pod in each.endpoints:
                if pod.address in self._here:
                    self._itself.setdefault((each.service, each.family), pod.address)

    def to(self, service: Service, target: Target) -> Iterator[tuple[Origin, Address]]:
        """Where connections to a front come from, and with which address."""
        family = family_of(target.address)
        yield from self._common[family]
        yield from _at(Origin.POD, self._itself.get((service.key, family)))
        if target.address in service.load_balancer_ips:
            narrow = [each for each in _of(family, service.source_ranges) if each.prefixlen >= NARROW]
            for cidr in narrow[:RANGES]:
                yield from _at(Origin.OUTSIDE, self._free_among([cidr]))

    def _free_among(self, networks: Sequence[Network]) -> Address | None:
        """An address of the first network that nobody is known to have; near its end, as others begin at the front."""
        for network in networks[:1]:
            last = network.num_addresses - 1
            for number in range(max(last - 1, 0), max(last - 256, -1), -1):
                address = Address(str(network[number]))
                if address not in self._taken:
                    return address
        return None


def _at(origin: Origin, address: Address | None) -> Iterator[tuple[Origin, Address]]:
    if address:
        yield origin, address


def _of(family: Family, values: Iterable[Any]) -> list[Any]:
    return [value for value in values if family_of(value) is family]


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(contains(each, address) for each in networks)


def _alone(address: object) -> str:
    """An address with the prefix length that makes it alone."""
    return f"{address}/{128 if ':' in str(address) else 32}"
