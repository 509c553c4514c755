"""The source of masqueraded connections on a node with several addresses (`nftproxy.masqueradeAddress`)."""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import Lab, Origin, Outcome

from nftproxy.extensions.masquerade_address.sources import InterfaceAddresses
from nftproxy.model.addresses import Address, AddressRange
from tests.support.cluster import Cluster, Ip, beside, exposed_service, masqueraded, pods
from tests.support.factories import host_addresses

MANY = 64
"""Connections from as many clients, of which each of four addresses gets some but once in 10⁷ times."""


def at_home(lab: Lab, ip: Ip, *own: str, asked: AddressRange | str, protocol: str = "tcp") -> Cluster:
    """A Service with a pod on this node and one elsewhere, on a node whose interfaces have further addresses."""
    for address in own:
        lab.add_address(address)
    seen = host_addresses(ip.node, ip.own, *own)
    web, slices = exposed_service(ip, protocol), pods(ip, "here", "away", protocol=protocol)
    return Cluster(lab, web, slices, seen, masquerade_address=(asked,))


def alone(address: str) -> AddressRange:
    """The range of an address."""
    return AddressRange(Address(address), Address(address))


def sources(outcomes: list[Outcome]) -> set[str]:
    """The source addresses that the endpoints see."""
    return {outcome.source.ip for outcome in outcomes if outcome.source}


@pytest.mark.parametrize("origin", [Origin.OUTSIDE, Origin.REMOTE_POD, Origin.POD, Origin.NODE])
def test_an_address(lab: Lab, ip: Ip, protocol: str, origin: Origin) -> None:
    """Endpoints on this node and elsewhere see the configured address, from clients of every kind."""
    wanted = beside(ip.node, 9)
    cluster = at_home(lab, ip, wanted, asked=alone(wanted), protocol=protocol)
    outcomes = cluster.connect(origin, ip.balanced, protocol=protocol, times=MANY)
    assert set(outcomes) == masqueraded(ip.here, ip.away)
    assert sources(outcomes) == {wanted}


def test_a_range(lab: Lab, ip: Ip) -> None:
    """Endpoints see the addresses of a range, each of them."""
    wanted = [beside(ip.node, number) for number in range(4, 8)]
    cluster = at_home(lab, ip, *wanted, asked=AddressRange(Address(wanted[0]), Address(wanted[-1])))
    clients = [beside(ip.client, number) for number in range(100, 100 + MANY)]
    outcomes = [cluster.connect(Origin.OUTSIDE, ip.balanced, source=client)[0] for client in clients]
    assert sources(outcomes) == set(wanted)


def test_an_interface(lab: Lab, ip: Ip) -> None:
    """Endpoints see the first address of the interface, and its next one once the agent has read that."""
    cluster = at_home(lab, ip, beside(ip.node, 9), beside(ip.node, 8), asked="eth1")
    for number in (9, 8):
        wanted = beside(ip.node, number)
        cluster.put(InterfaceAddresses((("eth1", (Address(wanted),)),)))
        assert sources(cluster.connect(Origin.OUTSIDE, ip.balanced, times=8)) == {wanted}


def test_kept_sources_stay(lab: Lab, ip: Ip) -> None:
    """Connections that aren't masqueraded keep their source: of a pod to a ClusterIP."""
    wanted = beside(ip.node, 9)
    cluster = at_home(lab, ip, wanted, asked=alone(wanted))
    assert sources(cluster.connect(Origin.POD, ip.vip, times=8)) == {ip.pod}


def test_a_pod_reaches_itself(lab: Lab, ip: Ip) -> None:
    """A pod that reaches itself through a Service sees the configured address."""
    wanted = beside(ip.node, 9)
    cluster = at_home(lab, ip, wanted, asked=alone(wanted))
    outcomes = cluster.connect(Origin.POD, ip.vip, source=ip.here, times=MANY)
    assert sources([each for each in outcomes if each.endpoint and each.endpoint.ip == ip.here]) == {wanted}


def test_an_address_that_the_node_lacks(lab: Lab, ip: Ip) -> None:
    """While no interface has the address, endpoints see the source that the kernel chooses, as without the field."""
    wanted = beside(ip.node, 9)
    cluster = at_home(lab, ip, asked=alone(wanted))
    before = sources(cluster.connect(Origin.OUTSIDE, ip.balanced, times=MANY))
    assert wanted not in before
    plain = Cluster(lab, exposed_service(ip), pods(ip, "here", "away"))
    assert before == sources(plain.connect(Origin.OUTSIDE, ip.balanced, times=MANY))
