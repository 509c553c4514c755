"""Somebody else takes our rules away, and they are back at once; what is others' is left to others."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nftproxy.lab import Origin, endpoint
from nftproxy.lab.apiserver import ApiServer
from nftproxy.model.addresses import Family
from tests.system.faults.bench import Bench, endpoints, pod, vip

PERIOD = 3600
"""No periodic check is made while these tests run: what is back in less time is back at once."""
LOADED = "loaded the rules"
"""What the agent says when it has loaded everything."""

GONE = ["flush ruleset", "delete table ip nftproxy", "delete table ip6 nftproxy"]
EMPTIED = "delete table ip nftproxy\nadd table ip nftproxy"
ALTERED = [
    "delete element ip nftproxy services { 10.96.0.1 . tcp . 80 }",
    "add element ip nftproxy masqueraded { 10.96.0.1 . tcp . 80 }",
    "flush map ip nftproxy tcp-endpoints",
]


@pytest.fixture
def quiet(bench: Bench) -> Bench:
    """An agent that has not had to load anything for a while: it rests after a load before it repairs again."""
    time.sleep(1.2)
    return bench


@pytest.mark.parametrize("harm", [*GONE, EMPTIED, *ALTERED])
def test_repaired(quiet: Bench, harm: str) -> None:
    """What a host firewall or a slip of the hand has done is repaired without waiting for a check, and counts."""
    before = {family: quiet.metric(repairs(family)) for family in Family}
    quiet.lab.load(harm)
    quiet.wait_until(lambda: quiet.has_tables() and quiet.is_right())
    assert quiet.lab.connect(Origin.POD, vip(1), 80) == endpoint(pod(1), 8080)
    assert "has changed them" in quiet.log()
    harmed = {family for family in Family if quiet.metric(repairs(family)) > before[family]}
    named = {family for family in Family if harm == "flush ruleset" or f"{family.value} nftproxy" in harm}
    assert harmed == named


def test_a_change_at_the_same_time(quiet: Bench, server: ApiServer) -> None:
    """Harm that comes just before a change, or just after, is repaired with it."""
    for number in range(5):
        quiet.lab.load(ALTERED[0])
        server.put(endpoints(2, f"10.1.1.{number + 1}"))
        quiet.lab.load(ALTERED[1])
        quiet.wait_until_right()


def test_others_tables_are_left_alone(quiet: Bench, server: ApiServer) -> None:
    """While others commit all the time, to tables of theirs, nothing is loaded and changes are as quick as ever."""
    loads = quiet.log().count(LOADED)
    alone = changes(quiet, server)
    with somebody_busy(quiet):
        beside = changes(quiet, server)
    assert quiet.log().count(LOADED) == loads
    assert min(beside) < 3 * min(alone)


def changes(bench: Bench, server: ApiServer) -> list[float]:
    """How long some changes take from the API to the kernel, in seconds."""
    taken = []
    for number in range(10):
        server.put(endpoints(3, f"10.1.1.{number + 100}"))
        began = time.monotonic()
        bench.wait_until(bench.is_right)
        taken.append(time.monotonic() - began)
        time.sleep(0.15)  # the shortest time between two changes
    return taken


@contextmanager
def somebody_busy(bench: Bench) -> Iterator[None]:
    """Somebody commits to tables of his own, some fifty times a second."""
    is_over = threading.Event()

    def commit() -> None:
        for number in itertools.count():
            bench.lab.load(f"add table inet firewall{number % 10}\nflush table inet firewall{number % 10}")
            if is_over.wait(0.02):
                return

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


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
