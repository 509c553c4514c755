"""The bit of the packet mark that asks for masquerading: which it is, that it is cleared, that no other is touched."""

from __future__ import annotations

import re

import pytest
from nftproxy_conformance.lab import UNTOUCHED, Lab, Origin

from tests.support.cluster import Cluster, Ip, at, everywhere, masqueraded, pods
from tests.support.factories import service

DEFAULT_BIT = 14
ALL_BITS = 0xFFFFFFFF

each_bit = pytest.mark.parametrize("bit", [0, 3, DEFAULT_BIT, 31])


def spy(lab: Lab, mark: int) -> None:
    """Have every packet come with this mark, set where mangle rules set marks, and note the mark that it leaves
    with.
    """
    lab.load(f"""
        table inet spy {{
          set marks {{
            type mark
            size 1024
            flags dynamic
          }}
          chain prerouting {{
            type filter hook prerouting priority mangle
            meta mark set {mark:#x}
          }}
          chain output {{
            type filter hook output priority mangle
            meta mark set {mark:#x}
          }}
          chain postrouting {{
            type filter hook postrouting priority 101
            meta l4proto {{ tcp, udp, sctp }} update @marks {{ meta mark }}
          }}
        }}""")


def marks(lab: Lab) -> set[int]:
    """The marks that packets left with since the last time of asking."""
    listed = lab.load("list set inet spy marks")
    lab.load("flush set inet spy marks")
    return {int(mark, 16) for mark in re.findall(r"0x[0-9a-f]{8}", listed)}


def make_cluster(lab: Lab, ip: Ip, bit: int = DEFAULT_BIT, protocol: str = "tcp") -> Cluster:
    """A ClusterIP, which is masqueraded for some, and an external IP with policy Local, which isn't for the outside."""
    ports = [f"http:80/{protocol}"]
    given = service(cluster_ips=[ip.vip], external_ips=[ip.external], external_policy="Local", ports=ports)
    return Cluster(lab, given, pods(ip, "here", protocol=protocol), masquerade_bit=bit)


@each_bit
def test_no_other_bit_is_touched(lab: Lab, ip: Ip, bit: int, protocol: str) -> None:
    """With all other bits set, connections masqueraded or plain leave with these bits set and this bit clear."""
    others = ALL_BITS ^ 1 << bit
    cluster = make_cluster(lab, ip, bit, protocol)
    spy(lab, others)
    hidden = masqueraded(ip.here)
    for origin, wanted in ((Origin.OUTSIDE, hidden), (Origin.NODE, hidden), (Origin.POD, at(ip.here))):
        assert cluster.outcomes(origin, ip.vip, 80, protocol) == wanted
        assert marks(lab) == {others}


@each_bit
def test_the_bit_does_not_leave_the_node(lab: Lab, ip: Ip, bit: int) -> None:
    """A packet that came without a mark leaves without a mark, masqueraded or not."""
    cluster = make_cluster(lab, ip, bit)
    spy(lab, 0)
    cluster.by_origin(ip.vip)
    cluster.by_origin(ip.external)
    assert marks(lab) == {0}


def test_a_pod_that_is_masqueraded_for_two_reasons_leaves_no_bit(lab: Lab, ip: Ip) -> None:
    """A marked connection of a pod to itself is masqueraded by its mark, which is cleared, not as a hairpin."""
    Cluster(lab, service(cluster_ips=[ip.vip]), pods(ip, "here"), masquerade_all=True)
    spy(lab, 0)
    assert lab.connect(Origin.POD, ip.vip, 80, source=ip.here).endpoint == (ip.here, 8080)
    assert marks(lab) == {0}


def test_another_bit_than_the_configured_one_means_nothing(lab: Lab, ip: Ip) -> None:
    """With masqueradeBit 3, packets that someone marked with bit 14 are not masqueraded, and keep the mark."""
    cluster = make_cluster(lab, ip, bit=3)
    spy(lab, 1 << DEFAULT_BIT)
    assert cluster.outcomes(Origin.POD, ip.vip) == at(ip.here)
    assert cluster.outcomes(Origin.OUTSIDE, ip.external) == at(ip.here)
    assert marks(lab) == {1 << DEFAULT_BIT}


def test_other_traffic_keeps_its_mark(lab: Lab, ip: Ip) -> None:
    """Packets to no Service leave with the mark that they came with, and their own source."""
    others = ALL_BITS ^ 1 << DEFAULT_BIT
    cluster = make_cluster(lab, ip)
    spy(lab, others)
    assert cluster.by_origin(ip.away, times=2) == everywhere(UNTOUCHED)
    assert cluster.by_origin(ip.balanced, times=2) == everywhere(UNTOUCHED)
    assert marks(lab) == {others}
