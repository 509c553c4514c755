"""A cluster whose rules are in a lab's kernel: objects go in, connections tell what the rules do.

    cluster = Cluster(lab, service(cluster_ips=[IP.vip]), slice_of(endpoints=[f"{IP.here}@node-a"]))
    assert cluster.outcomes(Origin.POD, IP.vip) == at(IP.here)

The node's own connections come from a second address of the node, so that masquerading, which gives them the first one,
can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from nftproxy.lab import Lab, Origin, Outcome, Probe, endpoint
from nftproxy.model.events import Event, Put, Removed, Seen, key_of
from nftproxy.model.objects import ClusterObject, EndpointSlice, Service
from tests.support.factories import pipeline, service

CONNECTIONS = 64
"""How many show every one of up to four endpoints, but for once in 25 million times."""


class Ip(NamedTuple):
    """What the tests need of a family.

    Pods: `here` and `here2` are on this node, `away` and `away2` on others.  Virtual addresses: `vip`, `vip2` and
    `unallocated` are of the ServiceCIDR.  Addresses of the node: `node` is its InternalIP, `own` another one beside it,
    `gateway` the one among its pods.  `pod`, `remote_pod` and `client` are the sources that connections have.
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

    def alone(self, address: str) -> str:
        """The network of one address."""
        return f"{address}/{128 if self.is_ipv6 else 32}"


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

each_ip = pytest.mark.parametrize("ip", [IP, IP6], ids=["ip", "ip6"])
each_protocol = pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])

Outcomes = set[Outcome]


class Connecting:
    """What has a lab to try connections in; the node's own come from its second address."""

    lab: Lab

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
        """What becomes of each of some new connections."""
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
        """Everything that becomes of some new connections."""
        return set(self.connect(origin, address, port, protocol, source=source, times=times))

    def by_origin(
        self, address: str, port: int = 80, protocol: str = "tcp", *, times: int = CONNECTIONS
    ) -> dict[Origin, Outcomes]:
        """Everything that becomes of new connections, by where these come from."""
        return {origin: self.outcomes(origin, address, port, protocol, times=times) for origin in Origin}


class Cluster(Connecting):
    """Objects of a cluster, their rules in the lab's kernel, and connections to try.

    Args:
        lab: whose node gets the rules.
        objects: what there is from the start.
        tweaks: as for `factories.pipeline`.
    """

    def __init__(self, lab: Lab, *objects: ClusterObject | Seen, **tweaks: Any) -> None:
        self.lab = lab
        self.pipeline = pipeline(*objects, **tweaks)
        lab.load(self.pipeline.full_transaction({}).text)

    def put(self, *objects: ClusterObject | Seen) -> None:
        """Let objects appear or change, in one transaction."""
        self.follow(*map(Put, objects))

    def remove(self, *objects: Service | EndpointSlice) -> None:
        """Let objects go, in one transaction."""
        self.follow(*(Removed(type(each), key_of(each)) for each in objects))

    def follow(self, *events: Event) -> None:
        """Let things happen, in one transaction."""
        self.lab.load(self.pipeline.apply(events).text)


def reached_in_all_ways(ip: Ip, protocol: str = "tcp", **tweaks: Any) -> Service:
    """A Service with all kinds of addresses, and a node port."""
    return service(
        type="LoadBalancer",
        cluster_ips=[ip.vip],
        external_ips=[ip.external],
        load_balancer_ips=[ip.balanced],
        ports=[f"http:80:30080/{protocol}"],
        **tweaks,
    )


def at(*addresses: str, port: int = 8080, masqueraded: bool = False) -> Outcomes:
    """The outcomes of connections that reach each of these endpoints."""
    return {endpoint(address, port, masqueraded=masqueraded) for address in addresses}


def everywhere(outcomes: Iterable[Outcome] | Outcome) -> dict[Origin, Outcomes]:
    """The same outcomes for all origins."""
    same = {outcomes} if isinstance(outcomes, Outcome) else set(outcomes)
    return dict.fromkeys(Origin, same)


def seen(pod: Outcomes, remote_pod: Outcomes, node: Outcomes, outside: Outcomes) -> dict[Origin, Outcomes]:
    """The outcomes for each origin, in the order of growing distance but for the node."""
    return {Origin.POD: pod, Origin.REMOTE_POD: remote_pod, Origin.NODE: node, Origin.OUTSIDE: outside}
