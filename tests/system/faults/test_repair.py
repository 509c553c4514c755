"""Rules that another program removes are restored at once.  Other programs' tables are left alone."""

from __future__ import annotations

import itertools
import re
import time
from contextlib import AbstractContextManager

import pytest
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.lab import Origin, endpoint

from nftproxy.model.addresses import Family
from tests.support.background import repeating
from tests.support.selection import every
from tests.system.faults.bench import Bench, endpoints, pod, vip

PERIOD = 3600
"""Seconds between periodic checks: none happens while these tests run, so notifications cause every repair."""
LOADED = "loaded the rules"
"""The log line after a load."""

GONE = ["flush ruleset", "delete table ip nftproxy", "delete table ip6 nftproxy"]
EMPTIED = "delete table ip nftproxy\nadd table ip nftproxy"
ALTERED = [
    "delete element ip nftproxy services { 10.96.0.1 . tcp . 80 }",
    "add element ip nftproxy masqueraded { 10.96.0.1 . tcp . 80 }",
    "flush map ip nftproxy tcp-endpoints",
]
WHAT_IS_SAID = {
    "flush ruleset": "NFT409: table ip6 nftproxy is damaged, loading everything: all of it is missing",
    "delete table ip nftproxy": "NFT409: table ip nftproxy is damaged, loading everything: all of it is missing",
    "delete table ip6 nftproxy": "NFT409: table ip6 nftproxy is damaged, loading everything: all of it is missing",
    EMPTIED: "NFT409: table ip nftproxy is damaged, loading everything: ",
    ALTERED[
        0
    ]: "NFT409: table ip nftproxy had other elements, which are repaired: added services { 10.96.0.1 . tcp . 80 ",
    ALTERED[1]: "added none; deleted masqueraded { 10.96.0.1 . tcp . 80 }",
    ALTERED[2]: "NFT409: table ip nftproxy had other elements, which are repaired: added tcp-endpoints { ",
}
"""The log's words about each kind of damage."""
TURNS = 5
"""How often the times of changes are compared at most."""


@pytest.fixture
def quiet(bench: Bench) -> Bench:
    """An agent without a load in the last 1.2 s.  After a load the agent pauses before it repairs again."""
    time.sleep(1.2)
    return bench


@pytest.mark.parametrize("harm", every(5, [*GONE, EMPTIED, *ALTERED]))
def test_damage_is_repaired_and_counted(quiet: Bench, harm: str) -> None:
    """Damage to the tables is repaired without a periodic check, and counted for the damaged family."""
    before = {family: quiet.metric(repairs(family)) for family in Family}
    size = len(quiet.log())
    quiet.lab.load(harm)
    quiet.wait_until(lambda: quiet.has_tables() and quiet.is_right())
    assert quiet.lab.connect(Origin.POD, vip(1), 80) == endpoint(pod(1), 8080)
    quiet.wait_until(lambda: WHAT_IS_SAID[harm] in quiet.log()[size:])
    assert re.search(r"our tables will be loaded again: .+ \(process \d+\) has changed them", quiet.log()[size:])
    harmed = {family for family in Family if quiet.metric(repairs(family)) > before[family]}
    named = {family for family in Family if harm == "flush ruleset" or f"{family.value} nftproxy" in harm}
    assert harmed == named


@pytest.mark.slow
def test_a_change_at_the_same_time(quiet: Bench, server: ApiServer) -> None:
    """Damage just before or just after a change is repaired, and the change isn't lost."""
    for number in range(5):
        quiet.lab.load(ALTERED[0])
        server.put(endpoints(2, f"10.1.1.{number + 1}"))
        quiet.lab.load(ALTERED[1])
        quiet.wait_until_right()


@pytest.mark.slow
def test_others_tables_are_left_alone(quiet: Bench, server: ApiServer) -> None:
    """While another program commits to its own tables, the agent loads nothing and its changes stay fast.

    The best of several turns counts, as the machine may be busier in a turn with that program than without it.
    """
    loads = quiet.log().count(LOADED)
    figures = []
    for _ in range(TURNS):
        alone = min(changes(quiet, server))
        with somebody_busy(quiet):
            beside = min(changes(quiet, server))
        figures.append((alone, beside))
        if beside < 3 * alone:
            break
    assert quiet.log().count(LOADED) == loads
    assert beside < 3 * alone, figures


def changes(bench: Bench, server: ApiServer) -> list[float]:
    """The seconds from the API to the kernel, for each of ten changes."""
    taken = []
    for number in range(10):
        server.put(endpoints(3, f"10.1.1.{number + 100}"))
        began = time.monotonic()
        bench.wait_until(bench.is_right)
        taken.append(time.monotonic() - began)
        time.sleep(0.15)  # longer than minSyncPeriod, 100 ms
    return taken


def somebody_busy(bench: Bench) -> AbstractContextManager[object]:
    """Another program commits to its own tables, about fifty times a second."""
    numbers = itertools.cycle(range(10))

    def commit() -> None:
        number = next(numbers)
        bench.lab.load(f"add table inet firewall{number}\nflush table inet firewall{number}")

    return repeating(commit, 0.02)


@pytest.mark.slow
def test_a_set_that_was_declared_in_another_way_is_repaired(bench: Bench) -> None:
    """A set declared anew with other flags can't be changed in place and is replaced with the whole table."""
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
