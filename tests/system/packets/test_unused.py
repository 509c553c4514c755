"""Chains that no Service uses any more don't pile up in the kernel, and go without harm to connections."""

from __future__ import annotations

import pytest
from nftproxy_conformance.lab import Lab, Origin

from nftproxy.rules import ruleset
from tests.support.cluster import IP, Cluster, at, pods
from tests.support.factories import service


def chains(lab: Lab) -> int:
    """How many chains the node's table has."""
    return lab.load("list chains ip\n").count("chain ")


@pytest.mark.slow
def test_chains_of_old_timeouts_go(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service that changes its timeout again and again leaves a bounded number of chains, and is served each time."""
    monkeypatch.setattr(ruleset, "MAX_UNUSED", 12)
    stays = service("shop/stays", cluster_ips=[IP.vip2], affinity_timeout=5)
    cluster = Cluster(lab, stays, pods(IP, "away", name="shop/stays"), pods(IP, "here"))
    at_first = chains(lab)
    for timeout in range(10, 40):
        cluster.put(service(cluster_ips=[IP.vip], affinity_timeout=timeout))
        assert chains(lab) <= at_first + 12 + 4
        assert cluster.outcomes(Origin.POD, IP.vip, times=2) == at(IP.here)
    assert cluster.outcomes(Origin.POD, IP.vip2, times=2) == at(IP.away)
