"""Services beyond the budget, as logs and Events show them."""

from __future__ import annotations

import logging
from unittest.mock import Mock

import pytest

from nftproxy.agent.reporting.event_recorder import EventRecorder
from nftproxy.agent.reporting.fault_reporter import MOST_REPORTED, FaultReporter
from nftproxy.agent.reporting.health import Health
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.occurrences import Occurrence
from nftproxy.agent.reporting.sync_reporter import SyncReporter
from nftproxy.model.codes import Code
from nftproxy.model.events import Put, Removed
from nftproxy.model.objects import Service
from nftproxy.pipeline import Pipeline
from tests.support.factories import key, pipeline, service, slice_of


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Occurrence]:
    """The occurrences that are reported as Events."""
    found: list[Occurrence] = []
    monkeypatch.setattr(EventRecorder, "report", lambda _, occurrences: found.extend(occurrences))
    return found


def reporter_of(agent: Pipeline) -> FaultReporter:
    """A reporter of an agent's faults."""
    return FaultReporter(agent, EventRecorder("node-a"), SyncReporter(Health(30.0), Metrics()))


def many(count: int) -> list[Put]:
    """Services of five elements each in a namespace."""
    return [
        Put(each)
        for number in range(count)
        for name in (f"evil/s{number:03}",)
        for each in (
            service(name, cluster_ips=[f"10.97.{number >> 8}.{number & 255}"], created=number),
            slice_of(name, ["10.1.0.1", "10.1.0.2"]),
        )
    ]


def test_a_shortage_is_logged_once_for_a_namespace(
    caplog: pytest.LogCaptureFixture, reported: list[Occurrence]
) -> None:
    """A log line names the first Service that is left out and counts the rest, and the end has a line as well."""
    caplog.set_level(logging.INFO)
    agent = pipeline(element_budget=1_000)
    faults = reporter_of(agent)
    agent.ingest(many(210))
    faults.report_services()
    faults.report_services()
    reason = "its rules come to 5 elements, and 0 are left of the 1000 that namespace evil may have"
    lines = [record.getMessage() for record in caplog.records if "evil/s200" in record.getMessage()]
    assert len(lines) == 1
    assert reason in lines[0]
    assert "and 9 more Services of its namespace" in lines[0]
    assert (reported[0].subject, reported[0].code) == (key("evil/s200"), Code.BUDGET_EXCEEDED)
    assert reason in reported[0].note
    agent.ingest([Removed(Service, key(f"evil/s{number:03}")) for number in range(10)])
    faults.report_services()
    assert "evil/s200 is within all limits again" in caplog.text


def test_events_name_a_bounded_number_of_services(reported: list[Occurrence]) -> None:
    """However many Services are left out, a report takes a bounded time."""
    agent = pipeline(element_budget=1_000)
    agent.ingest(many(200 + 2 * MOST_REPORTED))
    reporter_of(agent).report_services()
    assert len(agent.quarantined) == 2 * MOST_REPORTED
    assert len(reported) == MOST_REPORTED


def test_events_name_services_of_each_namespace(reported: list[Occurrence]) -> None:
    """A tenant with hundreds of Services beyond a limit keeps no other tenant's out of the Events."""
    agent = pipeline(element_budget=1_000)
    large = slice_of("shop/web", [f"10.1.{number >> 8}.{number & 255}" for number in range(2_000)])
    agent.ingest([*many(200 + 2 * MOST_REPORTED), Put(service()), Put(large)])
    reporter_of(agent).report_services()
    assert key("shop/web") in {each.subject for each in reported}


def test_a_conflict_has_a_line_when_it_changes_hands_and_when_it_ends(
    caplog: pytest.LogCaptureFixture, reported: list[Occurrence]
) -> None:
    """The log names the Service that lacks an address: when that begins, when another holds it, and when it ends."""
    caplog.set_level(logging.INFO)
    agent = pipeline()
    faults = reporter_of(agent)
    for number, name in enumerate(("first", "second", "third")):
        agent.ingest(
            [
                Put(
                    service(
                        f"shop/{name}", cluster_ips=[f"10.97.0.{number}"], external_ips=["192.0.2.7"], created=number
                    )
                )
            ]
        )
        faults.report_services()
    for name in ("first", "second"):
        agent.ingest([Removed(Service, key(f"shop/{name}"))])
        faults.report_services()
        faults.report_services()
    lines = [record.getMessage() for record in caplog.records if "shop/third" in record.getMessage()]
    assert [each.partition(":")[0] for each in lines] == [
        "Service shop/third does not get 192.0.2.7",
        "192.0.2.7",
        "Service shop/third gets each of its addresses and ports now, or is gone",
    ]
    assert lines[1].endswith(", which Service shop/third does not get, has passed from shop/first to shop/second"), (
        lines[1]
    )
    assert len(reported) == 2


def test_lasting_conflicts_cost_other_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, reported: list[Occurrence]
) -> None:
    """A change looks at the Services that it judges and their losers, however many others lose an address."""
    agent = pipeline()
    faults = reporter_of(agent)
    holder, *losers = (
        service(f"evil/s{number:03}", cluster_ips=[f"10.97.0.{number}"], external_ips=["192.0.2.7"], created=number)
        for number in range(200)
    )
    agent.ingest([Put(each) for each in (holder, *losers)])
    faults.report_services()
    assert len(reported) == len(losers)
    look_up = Mock(wraps=agent.state.claims.holder)
    monkeypatch.setattr(agent.state.claims, "holder", look_up)
    agent.ingest([Put(service("shop/web", cluster_ips=["10.98.0.1"])), Put(slice_of("shop/web", ["10.1.0.1"]))])
    faults.report_services()
    look_up.assert_not_called()
    agent.ingest([Removed(Service, holder.key)])
    faults.report_services()
    assert look_up.call_count == len(losers) - 1
