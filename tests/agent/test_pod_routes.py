"""Which endpoints are tried for a route, and how many at most."""

from __future__ import annotations

from collections.abc import Iterator

from nftproxy.agent.pod_routes import MOST_SLICES, MOST_TRIED, sample
from nftproxy.model.addresses import parse_network
from nftproxy.model.objects import EndpointSlice
from tests.support.factories import slice_of

RANGES = (parse_network("10.1.0.0/16"), parse_network("fd00:1::/48"))


def test_one_endpoint_of_each_node_is_tried() -> None:
    """One ready endpoint of each node's range is tried, within clusterCIDR only."""
    slices = [
        slice_of("shop/web", ["10.1.0.4 unready", "10.1.0.5", "10.1.0.6", "10.1.3.1"]),
        slice_of("shop/other", ["10.1.3.9", "192.168.0.7", "fd00:2::1"]),
    ]
    assert sample(slices, RANGES) == ["10.1.0.5", "10.1.3.1"]
    assert sample(slices, ()) == []


def test_a_look_is_bounded() -> None:
    """However many nodes there are, a look tries a bounded number of endpoints."""
    slices = [slice_of(f"shop/s{number}", [f"10.1.{number}.1"]) for number in range(200)]
    assert len(sample(slices, RANGES)) == MOST_TRIED


def test_a_look_reads_a_bounded_number_of_slices() -> None:
    """However many EndpointSlices there are, a look reads a bounded number, as changes wait for it."""
    read = 0

    def slices() -> Iterator[EndpointSlice]:
        nonlocal read
        for number in range(MOST_SLICES * 10):
            read += 1
            yield slice_of(f"shop/s{number}", ["10.1.0.1"])

    assert sample(slices(), RANGES) == ["10.1.0.1"]
    assert read == MOST_SLICES
