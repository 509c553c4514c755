"""A small cluster with a Service of each kind, and the outcomes of connections in it.

kernel = loaded(lab, town())
outcomes = lab.connect_many(islice(everywhere(), 300))
assert all(map(goes_right, outcomes))
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from nftproxy_conformance.lab import DROPPED, NODE, TCP_RESET, UNTOUCHED, Origin, Outcome, Probe
from nftproxy_conformance.lab import endpoint as to

from nftproxy.kernel.capabilities import probe
from nftproxy.model.addresses import Family
from nftproxy.model.objects import ClusterObject, EndpointSlice, Service, TrafficPolicy
from nftproxy.pipeline import Pipeline
from tests.support.cluster import IP, IP6, Ip
from tests.support.factories import pipeline, service, service_cidr, slice_of


def web(protocol: str = "tcp", **tweaks: object) -> Service:
    """A Service with a ClusterIP, a load balancer's address and a node port in both families."""
    fields: dict[str, object] = {
        "cluster_ips": [IP.vip, IP6.vip],
        "ports": [f"http:80:30080/{protocol}"],
        "type": "LoadBalancer",
        "load_balancer_ips": [IP.balanced, IP6.balanced],
    }
    return service(**(fields | tweaks))  # type: ignore[arg-type]


def endpoints(addresses: Iterable[str], protocol: str = "tcp", ip: Ip = IP, name: str = "shop/web") -> EndpointSlice:
    """A slice that makes these addresses a Service's endpoints.  They are on other nodes, unless this node has them."""
    here = (ip.here, ip.here2)
    texts = [f"{each}@{'node-a' if each in here else 'node-b'}" for each in addresses]
    family = Family.IPV6 if ip.is_ipv6 else Family.IPV4
    return slice_of(name, texts, ports=[f"http:8080/{protocol}"], suffix=family.value, family=family)


def remote(ip: Ip, number: int) -> str:
    """The address of a pod of another node, by its number."""
    return f"fd00:1:0:1::{number + 1:x}" if ip.is_ipv6 else f"10.1.{1 + number // 250}.{number % 250 + 1}"


class Front(NamedTuple):
    """Where connections come from and go to, and how many."""

    connections: int
    origin: Origin
    address: str
    port: int = 80
    protocol: str = "tcp"

    @property
    def probes(self) -> Iterator[Probe]:
        """Any number of new connections."""
        while True:
            yield Probe(self.origin, self.address, self.port, self.protocol)

    @property
    def ip(self) -> Ip:
        """The family's addresses."""
        return IP6 if ":" in self.address else IP


def reaching(*addresses: str, masqueraded: bool = False) -> frozenset[Outcome]:
    """The outcomes of connections that reach these addresses."""
    return frozenset(to(each, 8080, masqueraded=masqueraded) for each in addresses)


REFUSED, LOST, LET_THROUGH, DELIVERED = (frozenset([each]) for each in (TCP_RESET, DROPPED, UNTOUCHED, NODE))

STICKY_VIPS = ("10.96.0.30", "fd00:96::30")
EMPTY_VIP = "10.96.0.40"
REACHED: Mapping[Front, frozenset[Outcome]] = {
    Front(5, Origin.POD, IP.vip): reaching(IP.here, IP.away),
    Front(5, Origin.OUTSIDE, IP.balanced): reaching(IP.here, IP.away, masqueraded=True),
    Front(3, Origin.OUTSIDE, IP.node, 30080): reaching(IP.here, IP.away, masqueraded=True),
    Front(2, Origin.POD, IP6.vip): reaching(IP6.here, IP6.away),
    Front(2, Origin.OUTSIDE, IP6.balanced): reaching(IP6.here, IP6.away, masqueraded=True),
    Front(2, Origin.OUTSIDE, IP.external): reaching(IP.here2),
    Front(2, Origin.POD, IP.external): reaching(IP.here2, IP.away2),
    Front(2, Origin.OUTSIDE, IP.node, 30081): reaching(IP.here2),
    Front(2, Origin.POD, STICKY_VIPS[0]): reaching(IP.here, IP.away, IP.away2),
    Front(2, Origin.POD, STICKY_VIPS[1]): reaching(IP6.here, IP6.away, IP6.away2),
    Front(1, Origin.POD, EMPTY_VIP): REFUSED,
    Front(1, Origin.OUTSIDE, IP.unallocated): LOST,
    Front(1, Origin.OUTSIDE, IP.node, 22): DELIVERED,
}
"""Where connections go in a town, and how many of 30."""


def town(**tweaks: Any) -> Pipeline:
    """A cluster with a Service of each kind that loading anew might disturb, and a hundred more as a load."""
    objects: list[ClusterObject] = [
        service_cidr(),
        web(source_ranges=["198.51.100.0/24", "2001:db8:100::/64"]),
        endpoints([IP.here, IP.away]),
        endpoints([IP6.here, IP6.away], ip=IP6),
        web(
            name="shop/local",
            cluster_ips=[IP.vip2],
            ports=["http:80:30081"],
            load_balancer_ips=[IP.external],
            external_policy=TrafficPolicy.LOCAL,
        ),
        endpoints([IP.here2, IP.away2], name="shop/local"),
        service("shop/sticky", cluster_ips=STICKY_VIPS, affinity_timeout=3600),
        endpoints([IP.here, IP.away, IP.away2], name="shop/sticky"),
        endpoints([IP6.here, IP6.away, IP6.away2], ip=IP6, name="shop/sticky"),
        service("shop/empty", cluster_ips=[EMPTY_VIP]),
    ]
    for number in range(100):
        name = f"crowd/s{number}"
        objects.append(service(name, cluster_ips=[f"10.96.1.{number}"]))
        objects.append(endpoints([remote(IP, number * 5 + each) for each in range(5)], name=name))
    return pipeline(*objects, wide_maps=probe().capabilities.wide_maps, **tweaks)


def everywhere() -> Iterator[Probe]:
    """Connections of all kinds, again and again."""
    return itertools.cycle(itertools.chain.from_iterable(islice(front.probes, front.connections) for front in REACHED))


def goes_right(outcome: Outcome) -> bool:
    """Whether a connection of `everywhere` has come to where it should."""
    asked = outcome.probe
    assert asked is not None
    (expected,) = (REACHED[front] for front in REACHED if front[1:4] == (asked.origin, asked.address, asked.port))
    return outcome in expected
