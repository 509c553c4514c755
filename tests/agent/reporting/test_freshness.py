"""The age of the agent's knowledge of the cluster, from the activities of resources."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from nftproxy.agent import node_watch, process_watch
from nftproxy.agent.reporting import freshness
from nftproxy.agent.reporting.freshness import GRACE, LONGEST_SILENCE
from nftproxy.agent.reporting.health import Health
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.sync_reporter import Clocks, SyncReporter
from nftproxy.model.addresses import Family
from nftproxy.model.settings import Config
from nftproxy.sources.api_client import ResourceActivity
from nftproxy.sources.api_connection import Timeouts
from tests.agent.reporting.test_metrics import BOTH, reporter, series
from tests.support.factories import pipeline

NOW = 1_000_000.0
PAGE = Path(__file__).resolve().parents[3] / "docs/reliability.md"


def resource(name: str, age: float | None = 40.0, failing: float | None = None, **fields: object) -> ResourceActivity:
    """A resource whose last word has an age, and whose requests have failed for some seconds."""
    heard = None if age is None else NOW - age
    since = None if failing is None else NOW - failing
    problem = "" if failing is None else f"no {name}"
    made = ResourceActivity(name, last_heard=heard, failing_since=since, problem=problem)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def test_a_resource_is_out_of_touch_once_its_requests_have_failed_for_a_while() -> None:
    """Neither a quiet resource, nor a short failure, nor a resource that the cluster lacks is out of touch."""
    fine = [
        resource("nodes", age=80),
        resource("services", failing=GRACE - 1),
        resource("servicecidrs", failing=300, is_absent=True),
    ]
    assert freshness.out_of_touch(fine, NOW) == []
    assert freshness.caveat(fine, NOW) == ""
    lost = resource("endpointslices", age=100, failing=GRACE)
    assert freshness.out_of_touch([*fine, lost], NOW) == [lost]


def test_silence_is_out_of_touch_whatever_the_reason() -> None:
    """A resource that the server has said nothing about for two minutes is out of touch, with the agent's activity."""
    assert Timeouts().connect + Timeouts().silence + GRACE < LONGEST_SILENCE
    quiet = resource("services", LONGEST_SILENCE - 1)
    listing = resource("services", LONGEST_SILENCE, what="listing", since=NOW - 100)
    assert freshness.out_of_touch([quiet, listing, resource("nodes", None)], NOW) == [listing]
    reason = "no changes of services have reached this node for 120 s: the agent has been listing for 100 s"
    assert list(freshness.warnings([listing], NOW)) == [f"NFT509: {reason}"]


def test_the_page_says_for_how_long_an_agent_may_be_blind() -> None:
    """The table of docs/reliability.md has the times after which the verdict isn't "well", and two minutes at most."""
    period = Config().sync_period
    looks = (node_watch.PERIOD, 2 * node_watch.PERIOD, process_watch.PERIOD, process_watch.LONGEST_CALL)
    times = (2 * period, GRACE, LONGEST_SILENCE, *looks)
    text = PAGE.read_text()
    table = text[text.index('| while | "well" ends |') :].partition("\n\n")[0]
    assert [float(each) for each in re.findall(r"\b(\d+) s\b", table)] == list(times)
    assert max(times) == 120


def test_a_wall_clock_that_jumps_makes_no_age_wrong() -> None:
    """After a jump of the wall clock by an hour nothing is out of touch, and the rules are as of a moment ago."""
    wall = 5_000.0
    reports = SyncReporter(Health(30.0), Metrics(), clocks=Clocks(time.monotonic, lambda: wall))
    reports.applied(1, BOTH, full=True)
    activity = ResourceActivity("services")
    activity.begin_request(is_watch=True)
    activity.record_word()
    reports.activities = lambda: (activity,)
    for wall in (8_600.0, 1_400.0):
        as_of = reports.as_of(Family.IPV4, reports.status().now)
        assert as_of is not None
        assert 0 <= wall - as_of < 1_000
        assert reports.caveat() == ""


def test_the_warning_has_the_age_and_the_reason() -> None:
    """One warning has each resource with its reason, and a caveat the longest age of all and its reason."""
    lost = [resource("services", 10, 10), resource("nodes", None, 20), resource("endpointslices", 300.4, 200)]
    assert list(freshness.warnings(lost, NOW)) == [
        "NFT509: no changes of services have reached this node for 10 s: no services; of nodes for 20 s: no nodes; "
        "of endpointslices for 300 s: no endpointslices"
    ]
    assert freshness.caveat(lost, NOW) == (
        "NFT509: this may be out of date: no changes of services, nodes and endpointslices have reached this node "
        "for 300 s (no endpointslices)"
    )
    assert freshness.caveat(lost[:1], NOW) == (
        "NFT509: this may be out of date: no changes of services have reached this node for 10 s (no services)"
    )


def test_resources_with_the_same_problem_share_its_words() -> None:
    """The same reason stands once, after the names of its resources and the longest of their ages."""
    lost = [resource(name, age, 10, problem="401") for name, age in (("services", 10), ("nodes", 30), ("slices", 20))]
    assert list(freshness.warnings(lost, NOW)) == [
        "NFT509: no changes of services, nodes and slices have reached this node for 30 s: 401"
    ]


def test_the_servers_words_are_bounded() -> None:
    """A problem of any length makes a line of bounded length."""
    lost = resource("services", 10, 10, problem="x" * 10_000)
    assert len(freshness.caveat([lost], NOW)) < 500
    assert all(len(line) < 500 for line in freshness.warnings([lost], NOW))


@pytest.mark.parametrize(
    ("ages", "oldest"), [((), None), ((5, 70, 20), NOW - 70), ((5, None), None)], ids=["files", "API", "unheard"]
)
def test_the_oldest_word_counts(ages: tuple[float | None, ...], oldest: float | None) -> None:
    """The oldest last word counts, and a resource without any word makes it unknown."""
    activities = [resource(str(number), age) for number, age in enumerate(ages)]
    assert freshness.oldest_word([*activities, resource("none", 900, is_absent=True)]) == oldest


def test_rules_are_as_old_as_their_oldest_source() -> None:
    """Rules are as of the oldest last word, or of a change that waits.

    Rules from files are as of their last update.
    """
    reports = reporter(pipeline())
    now = reports.status().now
    assert reports.as_of(Family.IPV4, now) is None, "never loaded"
    reports.queued(())
    reports.taken()
    reports.applied(1, BOTH, full=True)
    from_files = reports.as_of(Family.IPV4, now)
    assert from_files is not None
    assert from_files >= now.wall
    activity = ResourceActivity("services", last_heard=now.steady - 70)
    reports.activities = lambda: (activity,)
    assert reports.as_of(Family.IPV4, now) == now.wall_time(now.steady - 70)
    activity.last_heard = now.steady + 1e6
    reports.queued(())
    waits = reports.as_of(Family.IPV4, reports.status().now)
    assert waits is not None
    assert waits < now.wall + 1e5


def test_the_age_of_each_resource_is_a_metric() -> None:
    """A scrape has the age of each resource's last word, and nothing of a resource that the cluster lacks."""
    reports = reporter(pipeline())
    now = reports.status().now.steady
    reports.activities = lambda: (
        ResourceActivity("services", last_heard=now - 70),
        ResourceActivity("servicecidrs", is_absent=True),
    )
    reports.scrape()
    (found,) = series(reports.metrics, "nftproxy_last_word_age_seconds").items()
    assert found[0] == 'nftproxy_last_word_age_seconds{resource="services"}'
    assert 70 <= found[1] < 1000


def test_the_time_without_a_usable_listing_is_a_metric() -> None:
    """A scrape has the seconds for which the listings of a resource can't have been used, and 0 if they can be."""
    reports = reporter(pipeline())
    now = reports.status().now.steady
    unusable = ResourceActivity("services", unusable_since=now - 70)
    reports.activities = lambda: (unusable, ResourceActivity("nodes"))
    reports.scrape()
    found = series(reports.metrics, "nftproxy_unusable_listing_seconds")
    assert found['nftproxy_unusable_listing_seconds{resource="nodes"}'] == 0
    assert 70 <= found['nftproxy_unusable_listing_seconds{resource="services"}'] < 1000


def test_a_node_whose_listings_cannot_be_used_is_not_healthy() -> None:
    """Health fails once the server's listings can't have been used for a while, and until the next watch begins."""
    reports = reporter(pipeline())
    reports.waits_for(())
    reports.applied(1, BOTH, full=True)
    activity = ResourceActivity("services")
    reports.activities = lambda: (activity,)
    activity.record_unusable_listing()
    assert activity.unusable_since is not None
    activity.unusable_since = reports.status().now.steady  # whose clock isn't that of the machine
    assert reports.status().is_healthy
    activity.unusable_since -= reports.health.patience
    activity.record_unusable_listing()
    assert reports.status().waiting == ("a listing of services that can be used",)
    assert not reports.status().is_healthy
    assert reports.status().is_alive, "a restart would not help"
    activity.begin_request(is_watch=False)
    assert not reports.status().is_healthy
    activity.begin_request(is_watch=True)
    assert reports.status().is_healthy
