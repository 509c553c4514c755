"""A cluster whose rules are in a lab's kernel: objects go in, and connections show how the rules treat them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from nftproxy_conformance.lab import Lab, Origin, Outcome, Probe, RealHost, endpoint

from nftproxy.kernel.capabilities import probe
from nftproxy.kernel.libnftables import Kernel
from nftproxy.model.addresses import Family
from nftproxy.model.events import Event, Put, Removed, Seen
from nftproxy.model.objects import ClusterObject, EndpointSlice, Service, key_of
from nftproxy.pipeline import Pipeline
from tests.support.factories import pipeline, service, slice_of

CONNECTIONS = 64
"""Connections to try.  They miss one of four endpoints once in 25 million times."""


NODES = {"here": "node-a", "here2": "node-a", "node": "node-a", "own": "node-a", "away": "node-b", "away2": "node-c"}
"""The node on which each address of an endpoint is."""


class Ip(NamedTuple):
    """The addresses of a family that the tests use.

    Pods: `here` and `here2` are on this node, `away` and `away2` elsewhere.  Virtual addresses: `vip`, `vip2` and
    `unallocated` are of the ServiceCIDR, `external` and `balanced` are an external IP and a load balancer's.  Addresses
    of the node: `node` is its InternalIP, `own` is beside it, `gateway` is among its pods.  `pod`,
    `remote_pod` and `client` are the sources that connections have.
    """

    here: str
    here2: str
    away: str
    away2: str
    vip: str
    vip2: str
    unallocated: str
    external: str
    balanced: str
    node: str
    own: str
    gateway: str
    loopback: str
    pod: str
    remote_pod: str
    client: str

    @property
    def is_ipv6(self) -> bool:
        """Whether these are IPv6 addresses."""
        return ":" in self.vip

    @property
    def nft(self) -> str:
        """The family, as nft names it."""
        return "ip6" if self.is_ipv6 else "ip"

    @property
    def family(self) -> Family:
        """The family itself."""
        return Family.IPV6 if self.is_ipv6 else Family.IPV4

    @property
    def fronts(self) -> list[tuple[str, int]]:
        """The addresses and ports of `exposed_service`: ClusterIP, external IP, load balancer's IP, node port."""
        return [self.front(name) for name in FRONTS]

    def front(self, name: str) -> tuple[str, int]:
        """The address and port of a front by its name."""
        return getattr(self, name), 30080 if name == "node" else 80

    def of(self, host: RealHost) -> str:
        """The address of this family that a host has."""
        return host.address6 if self.is_ipv6 else host.address

    def alone(self, address: str) -> str:
        """The network of a single address."""
        return f"{address}/{128 if self.is_ipv6 else 32}"


FRONTS = ("vip", "external", "balanced", "node")

IP = Ip(
    here="10.1.0.4",
    here2="10.1.0.5",
    away="10.1.1.4",
    away2="10.1.2.4",
    vip="10.96.0.10",
    vip2="10.96.0.20",
    unallocated="10.96.7.7",
    external="203.0.113.9",
    balanced="203.0.113.7",
    node="192.168.0.2",
    own="192.168.0.77",
    gateway="10.1.0.1",
    loopback="127.0.0.1",
    pod="10.1.0.200",
    remote_pod="10.1.1.200",
    client="198.51.100.200",
)
IP6 = Ip(
    here="fd00:1::4",
    here2="fd00:1::5",
    away="fd00:1:0:1::4",
    away2="fd00:1:0:2::4",
    vip="fd00:96::10",
    vip2="fd00:96::20",
    unallocated="fd00:96::707",
    external="2001:db8:113::9",
    balanced="2001:db8:113::7",
    node="fd00:c0a8::2",
    own="fd00:c0a8::77",
    gateway="fd00:1::1",
    loopback="::1",
    pod="fd00:1::c8",
    remote_pod="fd00:1:0:1::c8",
    client="2001:db8:100::c8",
)

Outcomes = set[Outcome]


class Prober:
    """Tries connections in a lab.  The node's own come from its second address."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def connect(
        self,
        origin: Origin,
        address: str,
        port: int = 80,
        protocol: str = "tcp",
        *,
        source: str | None = None,
        sport: int | None = None,
        times: int = 1,
    ) -> list[Outcome]:
        """The outcome of each of some new connections."""
        if origin is Origin.NODE and source is None:
            source = (IP6 if ":" in address else IP).own
        return self.lab.connect_many([Probe(origin, address, port, protocol, source, sport)] * times)

    def outcomes(
        self,
        origin: Origin,
        address: str,
        port: int = 80,
        protocol: str = "tcp",
        *,
        source: str | None = None,
        times: int = CONNECTIONS,
    ) -> Outcomes:
        """The set of outcomes of some new connections."""
        return set(self.connect(origin, address, port, protocol, source=source, times=times))

    def by_origin(
        self, address: str, port: int = 80, protocol: str = "tcp", *, times: int = CONNECTIONS
    ) -> dict[Origin, Outcomes]:
        """The set of outcomes of new connections, for each origin."""
        return {origin: self.outcomes(origin, address, port, protocol, times=times) for origin in Origin}


class Cluster(Prober):
    """Objects of a cluster, their rules in the lab's kernel, and connections to try.

    Args:
        lab: whose node gets the rules.
        objects: the objects that there are from the start.
        tweaks: as for `factories.pipeline`.  Clients are remembered as this nft can do it.
    """

    def __init__(self, lab: Lab, *objects: ClusterObject | Seen, **tweaks: Any) -> None:
        super().__init__(lab)
        self.pipeline = pipeline(*objects, **{"wide_maps": probe().capabilities.wide_maps} | tweaks)
        lab.load(self.pipeline.full_transaction({}).text)

    def load_again(self) -> None:
        """Load everything over the rules that are there, as after a repair."""
        load_over(self.lab, self.pipeline)

    def put(self, *objects: ClusterObject | Seen) -> None:
        """Put objects in a single transaction."""
        self.follow(*map(Put, objects))

    def remove(self, *objects: Service | EndpointSlice) -> None:
        """Remove objects in a single transaction."""
        self.follow(*(Removed(type(each), key_of(each)) for each in objects))

    def follow(self, *events: Event) -> None:
        """Apply events in a single transaction."""
        self.lab.load(self.pipeline.ingest(events).text)


def load_over(lab: Lab, pipeline: Pipeline) -> None:
    """Load everything that a pipeline has over the rules that are there."""
    installed = {family: lab.node.call(Kernel().read_back, family) for family in Family}
    lab.load(pipeline.full_transaction(installed).text)


def exposed_service(ip: Ip, protocol: str = "tcp", **tweaks: Any) -> Service:
    """A Service with a ClusterIP, an external IP, a load balancer's IP and a node port (`Ip.fronts`)."""
    fields: dict[str, Any] = {
        "type": "LoadBalancer",
        "cluster_ips": [ip.vip],
        "external_ips": [ip.external],
        "load_balancer_ips": [ip.balanced],
        "ports": [f"http:80:30080/{protocol}"],
    }
    return service(**fields | tweaks)


def pods(ip: Ip, *given: str, protocol: str = "tcp", port: int = 8080, **tweaks: Any) -> EndpointSlice:
    """An EndpointSlice of shop/web: pods by the names of their addresses, with words as in `factories.endpoint`."""
    parts = [each.partition(" ") for each in given]
    endpoints = [f"{getattr(ip, name)}@{NODES[name]} {words}" for name, _, words in parts]
    return slice_of(endpoints=endpoints, ports=[f"http:{port}/{protocol}"], family=ip.family, **tweaks)


def beside(address: str, number: int) -> str:
    """Another address of the same network, by its last number."""
    return re.sub("[0-9a-f]+$", str(number), address)


def at(*addresses: str, port: int = 8080, masqueraded: bool = False) -> Outcomes:
    """The outcomes of connections that reach each of these endpoints."""
    return {endpoint(address, port, masqueraded=masqueraded) for address in addresses}


def masqueraded(*addresses: str, port: int = 8080) -> Outcomes:
    """The same outcomes, for masqueraded connections."""
    return at(*addresses, port=port, masqueraded=True)


def everywhere(outcomes: Iterable[Outcome] | Outcome) -> dict[Origin, Outcomes]:
    """The same outcomes for all origins."""
    same = {outcomes} if isinstance(outcomes, Outcome) else set(outcomes)
    return dict.fromkeys(Origin, same)


def seen(pod: Outcomes, remote_pod: Outcomes, node: Outcomes, outside: Outcomes) -> dict[Origin, Outcomes]:
    """The outcomes for each origin, in the order of growing distance but for the node."""
    return {Origin.POD: pod, Origin.REMOTE_POD: remote_pod, Origin.NODE: node, Origin.OUTSIDE: outside}
