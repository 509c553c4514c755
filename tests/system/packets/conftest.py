"""The lab that the tests of a module share."""

import pytest
from nftproxy_conformance.lab import Lab

from tests.support.cluster import IP, IP6


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    """A lab without rules and without memory, whose node has the addresses that `Cluster` sends from."""
    shared_lab.reset()
    for ip in (IP, IP6):
        shared_lab.add_address(ip.own)
    return shared_lab
