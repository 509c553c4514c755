"""The lab that the tests of a module share."""

import pytest
from nftproxy_conformance.lab import Lab
from nftproxy_conformance.lab.topology import UPLINK

from nftproxy.trace.links import add_addresses
from tests.support.cluster import IP, IP6


@pytest.fixture(scope="module")
def shared_lab(shared_lab: Lab) -> Lab:
    """A lab whose node has the addresses that `Cluster` sends from.  `reset` keeps them, as `ip` takes long."""
    add_addresses(shared_lab.node, UPLINK, IP.own, IP6.own, options="preferred_lft 0")
    return shared_lab
