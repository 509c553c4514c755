"""An operator's own cluster on a scratch node: its objects, and a bounded selection of connections to its Services.

The node has the addresses of one of the cluster's Nodes, and reaches the pods on that Node through one interface, cni0.
To every front of every Service there is a connection from each kind of source: a pod of the node, a pod that serves the
Service itself, the node, another node's pod, the world outside, and an address in each of two source ranges.  If these
are more than `MOST`, every second, third, ... front is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_interface
from typing import NamedTuple

from nftproxy.api.kinds import kinds_for
from nftproxy.api.parse import parse_object
from nftproxy.config.parse_config import parse_config
from nftproxy.extensions.external_addresses.fields import EXTERNAL_ADDRESSES, PINGS, ExternalAddresses, Ping
from nftproxy.installed import OPTIONS
from nftproxy.installed_fields import FIELDS
from nftproxy.model.addresses import Address, Family, Network, contains, family_of
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem
from nftproxy.model.objects import ClusterObject, Ignored, Node, Service
from nftproxy.model.settings import DetectLocalMode
from nftproxy_conformance.lab import PING, Origin, Probe
from nftproxy_conformance.lab.topology import DEFAULT_SOURCES, PODS, Site
from nftproxy_conformance.specification.world import World, of_family, virtual_ips
from nftproxy_conformance.subjects.manifests import Manifest, stamped
from nftproxy_conformance.subjects.proxy import Presentation

MOST = 50_000
"""Connections, each of which is tried twice: some ten seconds for each proxy."""
MOST_MORE = 200_000
"""Further connections, by which it shows whether each endpoint is reached."""
RANGES = 2
"""Source ranges of a Service that are tried from inside."""
OWN_SOURCES = {Family.IPV4: Address("192.0.2.77"), Family.IPV6: Address("2001:db8:0:77::77")}
"""The sources of the node's own connections: a second address, so that masquerading shows (RFC 5737, RFC 3849)."""
UNUSED_PORT = 1
"""Reserved for TCPMUX (RFC 1078)."""
NARROW = 8
"""The shortest prefix length of a range whose end has addresses that clients may have."""
_NAMESPACED = {"Service", "EndpointSlice"}


class OwnCluster(NamedTuple):
    """A cluster from manifests, for the oracle and for the API server.

    `problems` are faults of objects, which cost only the fields that they name.
    """

    world: World
    documents: tuple[Manifest, ...]
    configuration: Manifest
    problems: tuple[Problem, ...]

    def presentation(self) -> Presentation:
        """Its presentation to a proxy: a node with the Node's addresses, and all pods behind an interface."""
        node = self.world.node
        pods = [str(ip_interface(cidr[1])) for cidr in node.pod_cidrs if cidr.num_addresses > 1]
        local = [pod.address for each in self.world.slices for pod in each.endpoints if pod.node_name == node.name]
        inside = {each for each in local if any(contains(cidr, each) for cidr in node.pod_cidrs)}
        away = [each for each in local if each not in node.addresses and each not in inside]
        site = Site(
            addresses=tuple(str(ip_interface(each)) for each in node.internal_ips),
            pods=tuple(each for each in pods if each.partition("/")[0] not in local),
            pod_networks=(*map(str, node.pod_cidrs), *dict.fromkeys(str(ip_interface(each)) for each in away)),
            gateways=(),
        )
        return Presentation(
            lambda _: list(self.documents), lambda _: self.configuration, site, tuple(OWN_SOURCES.values())
        )


def own_cluster(documents: Iterable[Manifest], configuration: Manifest, node_name: str = "") -> OwnCluster:
    """The cluster in manifests from the point of view of a Node.

    Args:
        documents: objects as decoded JSON.  Kinds that don't matter are left out.
        configuration: a KubeProxyConfiguration.
        node_name: the Node of the proxy, required if there are several.

    Raises:
        BadInput: there is no such Node, or the configuration is wrong.
    """
    adapted = _with_our_interfaces(configuration)
    config, _ = parse_config(adapted, "", FIELDS)
    kinds = kinds_for(config.service_proxy_name, OPTIONS)
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
    world = World.with_objects(node, config, objects)
    cluster = OwnCluster(world, tuple(kept), adapted, tuple(problems))
    site = cluster.presentation().site
    present = {Address(each.partition("/")[0]) for each in (*site.addresses, *site.pods)}
    return cluster._replace(world=world._replace(interfaces=frozenset(present | set(OWN_SOURCES.values()))))


def _completed(document: Manifest) -> Manifest:
    """An object with namespace and creation time, whose defaults differ between API servers and manifests."""
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
    raise BadInput(Problem("", "", "", f"{wanted}; there: {names}", Code.TRIAL_IMPOSSIBLE))


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
    """The connections that are worth trying, at most `most`."""
    targets = dict.fromkeys(itertools.chain(_fronts(world), _others(world)))
    sources = _Sources(world)
    found = [
        [Probe(origin, address, port, protocol, source) for origin, source in sources.to(service, address)]
        for service, (address, port, protocol) in targets
    ]
    step = -(-sum(map(len, found)) // most) or 1
    return list(dict.fromkeys(itertools.chain.from_iterable(found[::step])))


Target = tuple[Address, int, str]
"""An address, port and protocol, as a probe has them."""


def _fronts(world: World) -> Iterator[tuple[Service, Target]]:
    """The places of each Service.  Node ports are tried at the node's addresses on the uplink and among its pods."""
    own = sorted(world.interfaces - set(OWN_SOURCES.values()))
    for service in world.services:
        virtual = dict.fromkeys(virtual_ips(service))
        for port in service.ports:
            yield from ((service, (address, port.port, port.protocol.value)) for address in virtual)
            if port.node_port:
                yield from ((service, (address, port.node_port, port.protocol.value)) for address in own)


def _others(world: World) -> Iterator[tuple[Service, Target]]:
    """Pings, and a port that hardly any Service has, where the configuration has words about these."""
    for service in world.services:
        for address in dict.fromkeys(virtual_ips(service)):
            if world.config[PINGS] is Ping.ANSWER:
                yield service, (address, 0, PING)
            if world.config[EXTERNAL_ADDRESSES] is ExternalAddresses.CLOSED and address not in service.cluster_ips:
                yield service, (address, UNUSED_PORT, "tcp")


class _Sources:
    """Source addresses by origin and family.  An origin without an address in the manifests is left out."""

    def __init__(self, world: World) -> None:
        pods = [pod for each in world.slices for pod in each.endpoints]
        self._taken = {pod.address for pod in pods} | world.interfaces
        here = {pod.address for pod in pods if pod.node_name == world.node.name} - world.interfaces
        away = sorted({pod.address for pod in pods if pod.node_name not in ("", world.node.name)} - world.interfaces)
        self._common = {
            family: [
                *(
                    (Origin.POD, each)
                    for cidr in of_family(world.node.pod_cidrs, family)[:1]
                    for each in self._free(cidr)
                ),
                (Origin.NODE, OWN_SOURCES[family]),
                *((Origin.REMOTE_POD, each) for each in of_family(away, family)[:1]),
                (Origin.OUTSIDE, Address(DEFAULT_SOURCES[Origin.OUTSIDE][family is Family.IPV6])),
            ]
            for family in Family
        }
        self._itself: dict[tuple[object, Family], Address] = {}
        for each in world.slices:
            for own in (pod.address for pod in each.endpoints if pod.address in here):
                self._itself.setdefault((each.service, each.family), own)

    def to(self, service: Service, target: Address) -> Iterator[tuple[Origin, Address]]:
        """The origins and source addresses of connections to an address, or node port, of a Service."""
        family = family_of(target)
        yield from self._common[family]
        if itself := self._itself.get((service.key, family)):
            yield Origin.POD, itself
        if target in service.load_balancer_ips:
            narrow = [each for each in of_family(service.source_ranges, family) if each.prefixlen >= NARROW]
            yield from ((Origin.OUTSIDE, each) for cidr in narrow[:RANGES] for each in self._free(cidr))

    def _free(self, network: Network) -> Iterator[Address]:
        """An unused address of a network, near its end, as clusters allocate from the start."""
        last = network.num_addresses - 1
        numbers = range(max(last - 1, 0), max(last - 256, -1), -1)
        free = (each for number in numbers if (each := Address(str(network[number]))) not in self._taken)
        return itertools.islice(free, 1)
