"""The throughput of iperf3: the bench sends data through nodes with different rules."""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.lab.namespace import LabError

from tools.bench.packet_ways import Kind
from tools.bench.throughput import Found, measure, report, through_services

needs_lab = pytest.mark.skipif(obstacle() != "", reason=obstacle())


@needs_lab
@pytest.mark.parametrize("is_ipv6", [False, True], ids=["IPv4", "IPv6"])
def test_each_node_forwards_its_transfers(is_ipv6: bool) -> None:
    """Each node has a speed for each turn, and only a node with the fast path forwards few packets."""
    given = through_services(Kind(is_ipv6, is_tcp=True))
    found = measure(given, turns=1, seconds=1)
    assert [(each.name, len(each.speeds)) for each in found] == [(flow.name, 1) for flow in given]
    assert all(speed > 0 for each in found for speed in each.speeds)
    assert all(each.forwarded >= 100 for flow, each in zip(given, found, strict=True) if not flow.is_fast)


@needs_lab
def test_a_transfer_beside_the_fast_path_is_no_measurement() -> None:
    """If packets of a node with the fast path take the usual way, there is an error instead of a figure."""
    given = through_services(Kind(is_tcp=True))[:2]
    with pytest.raises(LabError, match=r"^NAT: \d+ packets took the usual way$"):
        measure([given[0], given[1]._replace(name="NAT", is_fast=True)], turns=1, seconds=1)


def test_the_table_has_parts_of_the_first_row() -> None:
    """Each row has its median and its quarters as parts of the first row's median."""
    rows = list(report([Found("none", [8e9, 10e9, 12e9], 5000), Found("ours", [9e9, 9.5e9, 10e9], 10)]))
    assert rows[2:] == [
        "| none | 10.00 | 1.000 | 0.900 to 1.100 | 5,000 |",
        "| ours | 9.50 | 0.950 | 0.925 to 0.975 | 10 |",
    ]
