"""Somebody else takes our rules away, and they come back with the next look at the tables."""

from __future__ import annotations

import pytest

from nftproxy.addresses import Family
from nftproxy.lab import Origin, endpoint
from tests.faults.bench import SYNC_PERIOD, Bench, pod, vip


@pytest.mark.parametrize(
    "harm",
    [
        "flush ruleset",
        "delete table ip nftproxy",
        "delete table ip6 nftproxy",
        "delete table ip nftproxy\nadd table ip nftproxy",
    ],
)
def test_repaired(bench: Bench, harm: str) -> None:
    """A host firewall that starts anew, or a slip of the hand, costs the rules for one period."""
    before = {family: bench.metric(repairs(family)) for family in Family}
    bench.lab.load(harm)
    bench.wait_until(bench.has_tables, 2 * SYNC_PERIOD)
    bench.wait_until_right()
    assert bench.lab.connect(Origin.POD, vip(1), 80) == endpoint(pod(1), 8080)
    harmed = {family for family in Family if bench.metric(repairs(family)) > before[family]}
    assert harmed
    assert harmed <= {family for family in Family if harm == "flush ruleset" or f"{family.value} nftproxy" in harm}


def test_a_set_that_was_declared_in_another_way_is_repaired(bench: Bench) -> None:
    """What can't be changed in place, though it goes by its old name, is replaced with the whole table."""
    bench.lab.load(
        "flush chain ip nftproxy services\n"
        "flush chain ip nftproxy unused-cluster-ips\n"
        "delete set ip nftproxy cluster-ips\n"
        "add set ip nftproxy cluster-ips { typeof ip daddr; flags interval; }\n"
    )
    bench.wait_until_right()
    assert bench.lab.connect(Origin.POD, vip(1), 80) == endpoint(pod(1), 8080)


def repairs(family: Family) -> str:
    """The sample that counts repairs of a family's table."""
    return f'nftproxy_repairs_total{{ip_family="{"IPv4" if family is Family.IPV4 else "IPv6"}"}}'
