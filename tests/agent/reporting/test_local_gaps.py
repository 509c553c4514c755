"""A scrape holds the event loop for a bounded time, whatever Services tenants make."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType

import pytest

from nftproxy.agent.reporting import local_gaps
from nftproxy.agent.reporting.health import Health
from nftproxy.agent.reporting.local_gaps import AT_ONCE, METRIC, REST, LocalGaps
from nftproxy.agent.reporting.measurements import measure
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.model.addresses import Family
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import EndpointSlice, Service
from nftproxy.pipeline import Pipeline
from nftproxy.policy.health_checks import LocalDemand, local_demand, without_local_endpoints
from nftproxy.policy.state import ClusterState
from tests.support.factories import IPV4, IPV6, key, pipeline, service, slice_of

AWAY = ["10.1.1.4@node-b"]


def objects(count: int, *, policy: str = "Local") -> Iterator[Service | EndpointSlice]:
    """Services of a tenant whose endpoints are on another node."""
    for number in range(count):
        name, address = f"evil/s{number}", f"10.96.{number >> 8}.{number & 255}"
        yield service(name, cluster_ips=[address], internal_policy=policy, external_ips=["192.0.2.7"], created=number)
        yield slice_of(name, AWAY)


def counted(metrics: Metrics) -> dict[str, float]:
    """The series of ports without local endpoints that aren't 0."""
    lines = (line.rpartition(" ") for line in metrics.exposition().decode().splitlines())
    return {name.removeprefix(METRIC): float(value) for name, _, value in lines if METRIC in name and value == "1.0"}


async def test_ports_without_local_endpoints_are_counted_at_a_scrape() -> None:
    """A port with endpoints on other nodes alone counts while its Service exists."""
    made, metrics = pipeline(service(internal_policy="Local"), slice_of(endpoints=AWAY)), Metrics()
    gaps = LocalGaps(made, metrics, iter([0.0, 0.0, 0.0, 0.0]).__next__)
    assert await gaps.exposition() == b""
    assert counted(metrics) == {'{ip_family="IPv4",traffic_policy="internal"}': 1.0}
    made.ingest([Removed(Service, key("shop/web"))])
    await gaps.exposition()
    assert counted(metrics) == {}


async def test_a_count_rests_in_proportion_to_its_cost() -> None:
    """After a count of a second, scrapes have its result for nine seconds."""
    made, metrics = pipeline(service(internal_policy="Local"), slice_of(endpoints=AWAY)), Metrics()
    gaps = LocalGaps(made, metrics, iter([0.0, 1.0, REST + 0.9, REST + 1.0, REST + 2.0]).__next__)
    await gaps.exposition()
    made.ingest([Removed(Service, key("shop/web"))])
    await gaps.exposition()
    assert counted(metrics)
    await gaps.exposition()
    assert counted(metrics) == {}


async def test_no_endpoint_is_looked_at_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread looks at endpoints, and the loop's other tasks run after each Service with policy Local."""
    made, threads, asked = pipeline(*objects(20), families=[IPV4]), set[int](), [0]

    def look(demands: Iterable[LocalDemand]) -> dict[str, int]:
        threads.add(threading.get_ident())
        return without_local_endpoints(demands)

    def demand(state: ClusterState, each: Service, family: Family) -> LocalDemand | None:
        asked[-1] += 1
        return local_demand(state, each, family)

    async def others() -> None:
        while True:
            asked.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(local_gaps, "without_local_endpoints", look)
    monkeypatch.setattr(local_gaps, "local_demand", demand)
    beside = asyncio.create_task(others())
    await LocalGaps(made, Metrics()).exposition()
    assert (sum(asked), max(asked)) == (20, 1)
    made.ingest([Put(each) for each in objects(4 * AT_ONCE, policy="Cluster")])
    await LocalGaps(made, Metrics()).exposition()
    assert max(asked) == AT_ONCE
    beside.cancel()
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def scraped(made: Pipeline) -> tuple[int, int]:
    """The number of Python's calls in a scrape, and of its lines."""
    metrics = Metrics(lambda metrics: measure(metrics, made, lambda _: {}, lambda _: {}))
    reporter, calls = SyncReporter(Health(30.0), metrics, find_node=lambda: made.state.node), 0

    def count(_frame: FrameType, event: str, _value: object) -> None:
        nonlocal calls
        calls += event == "call"

    reporter.scrape()
    sys.setprofile(count)
    try:
        text = reporter.scrape()
    finally:
        sys.setprofile(None)
    return calls, text.count(b"\n")


@pytest.mark.parametrize("policy", ["Local", "Cluster"])
def test_a_scrape_makes_as_many_calls_for_any_number_of_services(policy: str) -> None:
    """The loop's part of a scrape has the same calls and series with 10 Services as with 500 that conflict."""
    few, many = pipeline(*objects(10, policy=policy)), pipeline(*objects(500, policy=policy))
    assert scraped(few) == scraped(many)
    assert {IPV4, IPV6} == set(many.generations)
