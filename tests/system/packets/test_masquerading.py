"""Which port a masqueraded connection leaves with, by its protocol; system/test_masquerading.py has what for."""

from __future__ import annotations

from typing import Any

import pytest

from nftproxy.lab import Lab, Origin, Outcome
from tests.support.factories import service, slice_of
from tests.system.packets.cluster import Cluster, Ip, each_ip, each_protocol

FEW = 8
"""How many random ports are all those that were asked for once in 10³⁸ times."""


def masqueraded(lab: Lab, ip: Ip, protocol: str, origin: Origin, **tweaks: Any) -> list[Outcome]:
    """Connections to a load balancer's address from there; those from the pod reach themselves."""
    told = service(
        cluster_ips=[ip.vip], ports=[f"main:80/{protocol}"], type="LoadBalancer", load_balancer_ips=[ip.balanced]
    )
    target = slice_of(endpoints=[f"{ip.here}@node-a"], ports=[f"main:8080/{protocol}"])
    cluster = Cluster(lab, told, target, **tweaks)
    source = ip.here if origin is Origin.POD else None
    address = ip.vip if origin is Origin.POD else ip.balanced
    return cluster.connect(origin, address, 80, protocol, source=source, times=FEW)


def ports(outcomes: list[Outcome]) -> tuple[list[int], list[int]]:
    """The source ports that connections came with, and those that they left with, masqueraded all of them."""
    assert all(outcome.masqueraded for outcome in outcomes)
    came = [outcome.probe.sport or 0 for outcome in outcomes if outcome.probe]
    return came, [outcome.source.port for outcome in outcomes if outcome.source]


each_reason = pytest.mark.parametrize("origin", [Origin.OUTSIDE, Origin.NODE, Origin.POD])
"""From where connections are masqueraded: those of others by their mark, a pod's to itself as a hairpin."""


@each_ip
@each_protocol
@each_reason
def test_only_tcp_keeps_its_port(lab: Lab, ip: Ip, protocol: str, origin: Origin) -> None:
    """A masqueraded TCP connection leaves with the port that it came with, any other one with a random port."""
    came, left = ports(masqueraded(lab, ip, protocol, origin))
    assert (came == left) == (protocol == "tcp")


@each_ip
@each_protocol
@each_reason
def test_all_ports_are_random_on_demand(lab: Lab, ip: Ip, protocol: str, origin: Origin) -> None:
    """With masqueradeFullyRandom connections of every protocol leave with random ports, as under kube-proxy."""
    came, left = ports(masqueraded(lab, ip, protocol, origin, masquerade_fully_random=True))
    assert came != left


@each_ip
def test_two_clients_with_one_port_get_different_ones(lab: Lab, ip: Ip) -> None:
    """Where two clients come with the same port, the second one's connection leaves with another."""
    told = service(cluster_ips=[ip.vip], type="LoadBalancer", load_balancer_ips=[ip.balanced])
    cluster = Cluster(lab, told, slice_of(endpoints=[f"{ip.here}@node-a"]))
    clients = [ip.client, f"{ip.client[:-2]}c9" if ip.is_ipv6 else "198.51.100.201"]
    outcomes = [cluster.connect(Origin.OUTSIDE, ip.balanced, source=each, sport=7000)[0] for each in clients]
    came, left = ports(outcomes)
    assert came == [7000, 7000]
    assert left[0] == 7000
    assert left[1] != 7000
