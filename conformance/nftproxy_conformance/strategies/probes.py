"""The connections to try on a cluster: to every place of every Service from all origins, and near misses.

The node's own connections come from its second address, so that masquerading shows, which uses the first address.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from nftproxy.model.addresses import Address, Family, Protocol, family_of
from nftproxy_conformance.lab import PING, Origin, Probe
from nftproxy_conformance.lab.topology import NODE_IP, NODE_IP6, NODE_POD_IP, NODE_POD_IP6
from nftproxy_conformance.specification.world import Destination, World, virtual_ips
from nftproxy_conformance.strategies.notation import addresses

OWN_IPS = {Family.IPV4: Address("192.168.0.77"), Family.IPV6: Address("fd00:c0a8::77")}
"""The sources of the node's own connections, on its uplink."""
MORE_IPS = (*OWN_IPS.values(), Address("203.0.113.8"))
"""More addresses on the uplink of the lab's node: these, and a public address."""
NODE_ADDRESSES = frozenset({*addresses([NODE_IP, NODE_IP6, NODE_POD_IP, NODE_POD_IP6]), *MORE_IPS})
"""All addresses on the interfaces of the lab's node."""
UNUSED = {Family.IPV4: addresses(["10.96.7.7", "10.98.0.1"]), Family.IPV6: addresses(["fd00:96::707", "fd00:98::1"])}
"""Addresses of no Service, within the ServiceCIDRs that there may be and beyond them."""

SOURCES = {
    (Origin.POD, Family.IPV4): addresses(["10.1.0.200", "10.1.0.4", "10.1.0.5"]),
    (Origin.POD, Family.IPV6): addresses(["fd00:1::c8", "fd00:1::4", "fd00:1::5"]),
    (Origin.NODE, Family.IPV4): (OWN_IPS[Family.IPV4],),
    (Origin.NODE, Family.IPV6): (OWN_IPS[Family.IPV6],),
    (Origin.REMOTE_POD, Family.IPV4): addresses(["10.1.1.200", "10.1.1.4"]),
    (Origin.REMOTE_POD, Family.IPV6): addresses(["fd00:1:0:1::c8", "fd00:1:0:1::4"]),
    (Origin.OUTSIDE, Family.IPV4): addresses(["198.51.100.7", "198.51.100.200", "198.51.101.9", "203.0.113.7"]),
    (Origin.OUTSIDE, Family.IPV6): addresses(["2001:db8:100::7", "2001:db9::9", "2001:db8::7"]),
}
"""Sources in and out of the ranges there may be, endpoints that reach themselves, and load balancer addresses."""


def probes(world: World) -> Iterator[Probe]:
    """Every connection worth trying on a world, once each."""
    for target, origin in itertools.product(dict.fromkeys(targets(world)), Origin):
        for source in SOURCES[origin, family_of(target.address)]:
            yield Probe(origin, target.address, target.port, target.protocol.value, source)


def pings(world: World) -> Iterator[Probe]:
    """A ping to every address of Services, of the node, and of nobody, from all origins."""
    virtual = (address for service in world.services for address in virtual_ips(service))
    for address, origin in itertools.product(
        dict.fromkeys([*virtual, *sorted(world.interfaces), *itertools.chain(*UNUSED.values())]), Origin
    ):
        for source in SOURCES[origin, family_of(address)]:
            yield Probe(origin, address, 0, PING, source)


def targets(world: World) -> Iterator[Destination]:
    """The places of Services, and near misses."""
    own = sorted({*world.interfaces, *world.node.addresses})
    for service in world.services:
        virtual = sorted(set(virtual_ips(service)))
        for port in service.ports:
            yield from (Destination(address, port.protocol, port.port) for address in virtual)
            if port.node_port:
                yield from (Destination(address, port.protocol, port.node_port) for address in own)
        yield from _misses(virtual)
        if service.health_check_node_port:
            yield from (Destination(address, Protocol.TCP, service.health_check_node_port) for address in own)
    for address in itertools.chain.from_iterable(UNUSED.values()):
        yield Destination(address, Protocol.TCP, 80)


def _misses(virtual: Iterable[Address]) -> Iterator[Destination]:
    """Another port of each address, and a port with all protocols."""
    for address in virtual:
        yield Destination(address, Protocol.TCP, 9999)
        yield from (Destination(address, protocol, 80) for protocol in Protocol)


def others_like(probe: Probe) -> list[Probe]:
    """The same connection from many clients of the same network.  The node itself is a single client."""
    assert probe.source
    if probe.origin is Origin.NODE:
        return [probe]
    head, separator, tail = probe.source.rpartition(":" if ":" in probe.source else ".")
    first, base = (int(tail, 16), 16) if separator == ":" else (int(tail), 10)
    numbers = range(first - first % 128 + 20, first - first % 128 + 120)
    return [
        Probe(probe.origin, probe.address, probe.port, probe.protocol, f"{head}{separator}{_digits(number, base)}")
        for number in numbers
    ]


def _digits(number: int, base: int) -> str:
    return f"{number:x}" if base == 16 else str(number)
