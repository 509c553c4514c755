"""The lab that the tests of one module share."""

from collections.abc import Iterator

import pytest

from nftproxy.lab import Lab, obstacle
from tests.packets.cluster import IP, IP6


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """One lab for all tests of a module; skips them where there can be none."""
    if why := obstacle():
        pytest.skip(why)
    with Lab() as lab:
        yield lab


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    """A lab without rules and without memory, whose node has the addresses that `Cluster` sends from."""
    shared_lab.reset()
    for ip in (IP, IP6):
        shared_lab.add_address(ip.own)
    return shared_lab
