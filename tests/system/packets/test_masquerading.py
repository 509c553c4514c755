"""Which port a masqueraded connection leaves with, by its protocol.  system/test_masquerading.py has the reason."""

from __future__ import annotations

from typing import Any

import pytest
from nftproxy_conformance.lab import Lab, Origin, Outcome

from tests.support.cluster import Cluster, Ip, beside, exposed_service, pods

FEW = 8
"""So many random ports are all the ports that were asked for once in 10³⁸ times."""


def masqueraded(lab: Lab, ip: Ip, protocol: str, origin: Origin, **tweaks: Any) -> list[Outcome]:
    """Connections from an origin to a load balancer's address.  A pod connects to itself."""
    cluster = Cluster(lab, exposed_service(ip, protocol), pods(ip, "here", protocol=protocol), **tweaks)
    source = ip.here if origin is Origin.POD else None
    address = ip.vip if origin is Origin.POD else ip.balanced
    return cluster.connect(origin, address, 80, protocol, source=source, times=FEW)


def ports(outcomes: list[Outcome]) -> tuple[list[int], list[int]]:
    """The source ports that connections came with, and the ports that they left with.  All are masqueraded."""
    assert all(outcome.masqueraded for outcome in outcomes)
    came = [outcome.probe.sport or 0 for outcome in outcomes if outcome.probe]
    return came, [outcome.source.port for outcome in outcomes if outcome.source]


each_reason = pytest.mark.parametrize("origin", [Origin.OUTSIDE, Origin.NODE, Origin.POD])
"""Origins of masqueraded connections.  A pod's connection to itself is a hairpin, the rest is masqueraded by its
mark."""


@each_reason
def test_only_tcp_keeps_its_port(lab: Lab, ip: Ip, protocol: str, origin: Origin) -> None:
    """A masqueraded TCP connection leaves with the port that it came with, other protocols with a random port."""
    came, left = ports(masqueraded(lab, ip, protocol, origin))
    assert (came == left) == (protocol == "tcp")


@each_reason
def test_all_ports_are_random_on_demand(lab: Lab, ip: Ip, protocol: str, origin: Origin) -> None:
    """With masqueradeFullyRandom connections of every protocol leave with random ports, as under kube-proxy."""
    came, left = ports(masqueraded(lab, ip, protocol, origin, masquerade_fully_random=True))
    assert came != left


def test_two_clients_with_one_port_get_different_ones(lab: Lab, ip: Ip) -> None:
    """Where two clients come with the same port, the second client's connection leaves with another."""
    cluster = Cluster(lab, exposed_service(ip), pods(ip, "here"))
    clients = [ip.client, beside(ip.client, 201)]
    outcomes = [cluster.connect(Origin.OUTSIDE, ip.balanced, source=each, sport=7000)[0] for each in clients]
    came, left = ports(outcomes)
    assert came == [7000, 7000]
    assert left[0] == 7000
    assert left[1] != 7000
