"""Metrics have the names and labels of kube-proxy's, so that charts and alerts keep working.

They show the agent's work.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nftproxy.agent.reporting.health import Health, Moment
from nftproxy.agent.reporting.measurements import measure
from nftproxy.agent.reporting.metrics import Metrics
from nftproxy.agent.reporting.sync_reporter import Clocks, SyncReporter
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import Refused
from nftproxy.model.events import Listed, Put, Removed
from nftproxy.model.objects import EndpointSlice, Node, Service
from nftproxy.model.stages import Stage
from nftproxy.pipeline import Pipeline
from nftproxy.rules.transaction import Transaction
from nftproxy.sources.api_client import ResourceActivity
from nftproxy.sources.api_connection import RequestOutcome
from tests.support.factories import IPV4, IPV6, host_addresses, key, node, pipeline, service, service_cidr, slice_of
from tests.support.metrics import ADDED, all_metrics

Series = dict[str, float]
BOTH = frozenset(Family)

SYNC = "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 +Inf".split()
PROGRAMMING = [
    *"0 0.25 0.5".split(),
    *(str(second) for second in range(1, 60)),
    *"60 65 70 75 80 85 90 95 100 105 110 115 120 150 180 210 240 270 300 +Inf".split(),
]
STAGES = "0.0001 0.0004 0.0016 0.0064 0.0256 0.1024 0.4096 1.6384 6.5536 +Inf".split()
SIZES = "100 1000 10000 100000 1e+06 1e+07 1e+08 +Inf".split()
REQUESTS = "0.005 0.025 0.1 0.25 0.5 1 2 4 8 15 30 60 +Inf".split()
BUCKETS = {
    "kubeproxy_sync_proxy_rules_duration_seconds": SYNC,
    "kubeproxy_sync_full_proxy_rules_duration_seconds": SYNC,
    "kubeproxy_sync_partial_proxy_rules_duration_seconds": SYNC,
    "kubeproxy_network_programming_duration_seconds": PROGRAMMING,
    "kubeproxy_conntrack_reconciler_sync_duration_seconds": SYNC,
    "nftproxy_sync_stage_duration_seconds": STAGES,
    "rest_client_request_duration_seconds": REQUESTS,
    "nftproxy_transaction_bytes": SIZES,
}

KUBE_PROXY = """
histogram ip_family kubeproxy_sync_proxy_rules_duration_seconds [ALPHA] SyncProxyRules latency in seconds
histogram ip_family kubeproxy_sync_full_proxy_rules_duration_seconds [ALPHA] SyncProxyRules latency in seconds for full resyncs
histogram ip_family kubeproxy_sync_partial_proxy_rules_duration_seconds [ALPHA] SyncProxyRules latency in seconds for partial resyncs
gauge ip_family kubeproxy_sync_proxy_rules_last_timestamp_seconds [ALPHA] The last time proxy rules were successfully synced
gauge ip_family kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds [ALPHA] The last time a sync of proxy rules was queued
histogram ip_family kubeproxy_network_programming_duration_seconds [ALPHA] In Cluster Network Programming Latency in seconds
gauge - kubeproxy_sync_proxy_rules_endpoint_changes_pending [ALPHA] Pending proxy rules Endpoint changes
counter - kubeproxy_sync_proxy_rules_endpoint_changes_total [ALPHA] Cumulative proxy rules Endpoint changes
gauge - kubeproxy_sync_proxy_rules_service_changes_pending [ALPHA] Pending proxy rules Service changes
counter - kubeproxy_sync_proxy_rules_service_changes_total [ALPHA] Cumulative proxy rules Service changes
counter ip_family kubeproxy_sync_proxy_rules_nftables_sync_failures_total [ALPHA] Cumulative proxy nftables sync failures
counter ip_family kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total [ALPHA] Cumulative proxy nftables cleanup failures
gauge ip_family,traffic_policy kubeproxy_sync_proxy_rules_no_local_endpoints_total [ALPHA] Number of services with a Local traffic policy and no endpoints
counter code kubeproxy_proxy_healthz_total [ALPHA] Cumulative proxy healthz HTTP status
counter code kubeproxy_proxy_livez_total [ALPHA] Cumulative proxy livez HTTP status
histogram ip_family kubeproxy_conntrack_reconciler_sync_duration_seconds [ALPHA] ReconcileConntrackFlowsLatency latency in seconds
counter ip_family kubeproxy_conntrack_reconciler_deleted_entries_total [ALPHA] Cumulative conntrack flows deleted by conntrack reconciler
gauge ip_family kubeproxy_nftables_localhost_nodeport_listeners [ALPHA] Node ports that are listened on at localhost
counter ip_family kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total [ALPHA] Cumulative node ports that could not be listened on at localhost
counter code,host,method rest_client_requests_total [ALPHA] Number of HTTP requests, partitioned by status code, method, and host.
histogram host,verb rest_client_request_duration_seconds [ALPHA] Request latency in seconds. Broken down by verb, and host.
"""  # noqa: E501 -- a table
"""Type, labels, name and help text of each metric, as kube-proxy 1.36 in nftables mode writes them; the last two are of
1.37 (KEP-6032) and have texts of our own."""

OURS = """
gauge ip_family nftproxy_elements
counter outcome nftproxy_localhost_connections_total
counter kind nftproxy_transactions_total
histogram kind nftproxy_transaction_bytes
histogram kind,stage nftproxy_sync_stage_duration_seconds
counter ip_family nftproxy_repairs_total
counter - nftproxy_rebalanced_lists_total
gauge ip_family nftproxy_silent_endpoints
counter ip_family nftproxy_silences_total
counter ip_family nftproxy_silence_overflows_total
counter answered nftproxy_silence_checks_total
counter ip_family nftproxy_connections_ended_total
counter - nftproxy_connections_moved_total
counter - nftproxy_log_lines_dropped_total
counter code nftproxy_warnings_total
gauge ip_family,map nftproxy_affinity_entries
gauge - nftproxy_configuration_rejected
gauge - nftproxy_conflicts
gauge proxy nftproxy_other_proxies
gauge - nftproxy_services_quarantined
gauge - nftproxy_fast_path_interfaces
gauge for nftproxy_waiting
gauge path nftproxy_healthy
gauge code nftproxy_faults
gauge resource nftproxy_last_word_age_seconds
gauge resource nftproxy_unusable_listing_seconds
gauge - nftproxy_oldest_change_age_seconds
gauge - nftproxy_services_postponed
gauge - nftproxy_skipped_objects
gauge ip_family nftproxy_forwarding
gauge - nftproxy_conntrack_entries
gauge - nftproxy_conntrack_limit
gauge commit,configuration,kernel,libnftables,version nftproxy_build_info
"""


class Clock:
    """Two clocks that stand still until they are set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def clocks(self) -> Clocks:
        """Both clocks."""
        return Clocks(lambda: 1000 + self.seconds, lambda: 5000 + self.seconds)


def metrics_of(pipeline: Pipeline) -> Metrics:
    """Metrics that look at this pipeline, at maps that remember three clients each, and at a log with a warning."""

    def look(metrics: Metrics) -> None:
        measure(
            metrics, pipeline, lambda family: {f"{family.value}-affinity": 3}, lambda paths: dict.fromkeys(paths, 7)
        )
        metrics.set_each("nftproxy_warnings_total", {"NFT301": 1})

    return Metrics(look, ADDED)


def reporter(pipeline: Pipeline, clock: Clock | None = None) -> SyncReporter:
    """The reporter of an agent with this pipeline."""
    made = SyncReporter(Health(30.0), metrics_of(pipeline), clocks=(clock or Clock()).clocks)
    made.waits_for(())
    return made


def series(scraped: Metrics | SyncReporter, *names: str) -> Series:
    """The samples whose names begin with any of these prefixes, by name and labels as Prometheus writes them."""
    found = {}
    text = scraped.exposition() if isinstance(scraped, Metrics) else scraped.scrape()
    for line in text.decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(names) and not line.startswith("#"):
            found[name] = float(value)
    return found


def by_family(name: str, value: float) -> Series:
    """The same value for both families."""
    return {f'{name}{{ip_family="{family}"}}': value for family in ("IPv4", "IPv6")}


def exercised() -> Metrics:
    """Metrics with at least one sample each."""
    made = reporter(pipeline(service(), slice_of()))
    made.queued([Put(service())])
    made.taken()
    made.lap(Stage.DIFF)
    made.applied(1, BOTH, full=True)
    made.applied(1, BOTH, full=False)
    made.metrics.observe("kubeproxy_network_programming_duration_seconds", 1, IPV4)
    made.metrics.count_sweep(IPV4, 1, 1, 1)
    made.metrics.set("nftproxy_other_proxies", 0, "Cilium")
    made.metrics.set("nftproxy_build_info", 1, "1", "2", "3", "4", "5")
    made.metrics.count_request(RequestOutcome("200", "GET", "api.example:6443", 0.01))
    made.metrics.set("kubeproxy_nftables_localhost_nodeport_listeners", 1, IPV4)
    made.metrics.set("nftproxy_silent_endpoints", 1, IPV4)
    made.metrics.set("kubeproxy_sync_proxy_rules_no_local_endpoints_total", 0, IPV4, "internal")
    made.health.set_warnings(Code.OTHER_PROXY, ["kube-proxy has left a table"])
    made.scrape()
    made.metrics.set_only("nftproxy_waiting", "the first load of IPv6")
    made.metrics.set_each("nftproxy_last_word_age_seconds", {"services": 1.0})
    made.metrics.set_each("nftproxy_unusable_listing_seconds", {"services": 0.0})
    return made.metrics


Shape = tuple[str, str, str]


def shapes(text: str) -> dict[str, Shape]:
    """Type, labels and help text by name, of a text in Prometheus' format."""
    found = {}
    for metric in text_string_to_metric_families(text):
        labels = sorted({label for sample in metric.samples for label in sample.labels} - {"le"})
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        found[name] = (metric.type, ",".join(labels) or "-", metric.documentation)
    return found


def rows(table: str) -> dict[str, Shape]:
    """The same for a table in this file.  A row without a help text has ""."""
    split = (f"{line} ".split(" ", 3) for line in table.strip().splitlines())
    return {name: (kind, labels, text.strip()) for kind, labels, name, text in split}


def test_verdicts_and_faults_are_metrics() -> None:
    """The verdicts of /healthz and /livez are metrics, and so are the warnings that hold, by code."""
    made = reporter(pipeline())
    made.health.set_warnings(Code.OTHER_PROXY, ["one", "two"])
    assert series(made, "nftproxy_healthy", "nftproxy_faults") == {
        'nftproxy_healthy{path="healthz"}': 0.0,
        'nftproxy_healthy{path="livez"}': 1.0,
        'nftproxy_faults{code="NFT007"}': 2.0,
    }
    made.applied(1, BOTH, full=True)
    made.health.set_warnings(Code.OTHER_PROXY, [])
    assert series(made, "nftproxy_healthy", "nftproxy_faults") == {
        'nftproxy_healthy{path="healthz"}': 1.0,
        'nftproxy_healthy{path="livez"}': 1.0,
    }


# ---- names and shapes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shape"), rows(KUBE_PROXY).items(), ids=list(rows(KUBE_PROXY)))
def test_kube_proxys_metrics(name: str, shape: Shape) -> None:
    """Each metric of kube-proxy's is there with its type, labels and help text."""
    assert shapes(exercised().exposition().decode())[name] == shape


def test_our_own_metrics() -> None:
    """Besides these there are our own metrics, and apart from the process's no more."""
    found = shapes(exercised().exposition().decode())
    theirs = ("kubeproxy_", "process_", "rest_client_")
    own = {name: shape for name, shape in found.items() if not name.startswith(theirs)}
    assert {name: (kind, labels, "") for name, (kind, labels, _) in own.items()} == rows(OURS)
    assert all(text for _, _, text in own.values())
    assert {name for name in found if name.startswith(("kubeproxy_", "rest_client_"))} == rows(KUBE_PROXY).keys()


@pytest.mark.parametrize(("name", "bounds"), BUCKETS.items(), ids=list(BUCKETS))
def test_buckets(name: str, bounds: list[str]) -> None:
    """Bounds are kube-proxy's, and written as Go writes them: another text is another series."""
    lines = [line for line in exercised().exposition().decode().splitlines() if line.startswith(f"{name}_bucket")]
    labels = {"nftproxy": 'kind="full"', "rest": 'verb="GET"', "kubeproxy": 'ip_family="IPv4"'}
    label = labels[name.split("_")[0]]
    assert [line.split('le="')[1].split('"')[0] for line in lines if label in line] == bounds


def test_the_process() -> None:
    """The process tells its memory, files and time under the names that Go programs use."""
    assert {"process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"} <= (
        series(exercised(), "process_").keys()
    )


def test_counters_begin_at_zero() -> None:
    """Counters have their series before anything has happened, so that the first increase is seen.

    Counters of API requests have none, as in kube-proxy: no host is known then.
    """
    names = [name for name, shape in (rows(KUBE_PROXY) | rows(OURS)).items() if shape[0] == "counter"]
    assert series(all_metrics(), *names) == {
        "kubeproxy_sync_proxy_rules_endpoint_changes_total": 0,
        "kubeproxy_sync_proxy_rules_service_changes_total": 0,
        'kubeproxy_proxy_healthz_total{code="200"}': 0,
        'kubeproxy_proxy_healthz_total{code="503"}': 0,
        'kubeproxy_proxy_livez_total{code="200"}': 0,
        'kubeproxy_proxy_livez_total{code="503"}': 0,
        'nftproxy_transactions_total{kind="full"}': 0,
        'nftproxy_transactions_total{kind="change"}': 0,
        **by_family("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", 0),
        **by_family("kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", 0),
        **by_family("kubeproxy_conntrack_reconciler_deleted_entries_total", 0),
        'nftproxy_localhost_connections_total{outcome="forwarded"}': 0,
        'nftproxy_localhost_connections_total{outcome="unreachable"}': 0,
        'nftproxy_localhost_connections_total{outcome="limit"}': 0,
        **by_family("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total", 0),
        **by_family("nftproxy_repairs_total", 0),
        **by_family("nftproxy_silences_total", 0),
        **by_family("nftproxy_silence_overflows_total", 0),
        'nftproxy_silence_checks_total{answered="false"}': 0,
        'nftproxy_silence_checks_total{answered="true"}': 0,
        **by_family("nftproxy_connections_ended_total", 0),
        "nftproxy_connections_moved_total": 0,
        "nftproxy_rebalanced_lists_total": 0,
        "nftproxy_log_lines_dropped_total": 0,
    }


def test_requests_to_the_api() -> None:
    """Each request is counted by its outcome, and its duration by its verb."""
    metrics = all_metrics()
    metrics.count_request(RequestOutcome("200", "GET", "10.0.0.1:6443", 0.03))
    metrics.count_request(RequestOutcome("200", "GET", "10.0.0.1:6443", 0.3))
    metrics.count_request(RequestOutcome("<error>", "POST", "10.0.0.1:6443", 5.0))
    get, post = 'method="GET"', 'method="POST"'
    assert series(metrics, "rest_client_requests_total") == {
        f'rest_client_requests_total{{code="200",host="10.0.0.1:6443",{get}}}': 2,
        f'rest_client_requests_total{{code="<error>",host="10.0.0.1:6443",{post}}}': 1,
    }
    counts = series(metrics, "rest_client_request_duration_seconds_count")
    assert list(counts.values()) == [2, 1]


def test_metrics_are_an_objects_own() -> None:
    """Two agents in one process do not count together."""
    one, other = all_metrics(), all_metrics()
    one.count("kubeproxy_proxy_healthz_total", "200")
    assert series(other, "kubeproxy_proxy_healthz_total")['kubeproxy_proxy_healthz_total{code="200"}'] == 0


# ---- the agent's rounds ----------------------------------------------------------------------------------------------

PENDING = ("kubeproxy_sync_proxy_rules_service_changes_pending", "kubeproxy_sync_proxy_rules_endpoint_changes_pending")
TOTAL = ("kubeproxy_sync_proxy_rules_service_changes_total", "kubeproxy_sync_proxy_rules_endpoint_changes_total")


def changes(made: SyncReporter, names: tuple[str, str]) -> tuple[float, float]:
    """How many Services and EndpointSlices a pair of metrics tells."""
    found = series(made, *names)
    return found[names[0]], found[names[1]]


@pytest.mark.parametrize(
    ("event", "services", "slices"),
    [
        (Put(service()), 1, 0),
        (Put(slice_of()), 0, 1),
        (Removed(Service, key("shop/web")), 1, 0),
        (Removed(EndpointSlice, key("shop/web-1")), 0, 1),
        (Listed(Service, (service("shop/a"), service("shop/b"))), 2, 0),
        (Listed(EndpointSlice, ()), 0, 0),
        (Put(node()), 0, 0),
        (Put(service_cidr()), 0, 0),
        (Put(host_addresses("192.0.2.1")), 0, 0),
        (Removed(Node, "node-a"), 0, 0),
    ],
)
def test_changes_that_have_come(event: Put | Removed | Listed, services: int, slices: int) -> None:
    """Each Service and each EndpointSlice in an event counts, and is pending.  Other kinds are not counted."""
    made = reporter(pipeline())
    made.queued([event])
    assert changes(made, TOTAL) == changes(made, PENDING) == (services, slices)


def test_changes_are_pending_until_applied() -> None:
    """A change is pending until the kernel has it, so a change that came during a transaction still is."""
    made = reporter(pipeline())
    made.queued([Put(service()), Put(slice_of())])
    made.taken()
    made.queued([Put(slice_of())])
    assert changes(made, PENDING) == (1, 2)
    made.applied(1, BOTH, full=False)
    assert changes(made, PENDING) == (0, 1)
    assert changes(made, TOTAL) == (1, 2)


def test_changes_stay_pending_when_a_transaction_fails() -> None:
    """After a failure its changes stay pending, until a later transaction applies them all."""
    made = reporter(pipeline())
    made.queued([Put(service())])
    made.taken()
    made.failed(BOTH, "why", full=False)
    made.queued([Put(slice_of())])
    assert changes(made, PENDING) == (1, 1)
    made.taken()
    made.applied(1, BOTH, full=True)
    assert changes(made, PENDING) == (0, 0)


def test_when_changes_were_queued_and_applied() -> None:
    """The times of the last change and of the last success are told in seconds since the epoch."""
    clock = Clock()
    made = reporter(pipeline(), clock)
    clock.seconds = 10
    made.queued([Put(service())])
    clock.seconds = 11
    made.taken()
    clock.seconds = 12
    made.applied(1, BOTH, full=False)
    queued = by_family("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", 5010)
    assert series(made, "kubeproxy_sync_proxy_rules_last_") == queued | by_family(
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds", 5012
    )


def test_a_check_is_a_success() -> None:
    """A periodic check that finds nothing amiss renews the time of the last success: alerts ask how old it is."""
    clock = Clock()
    made = reporter(pipeline(), clock)
    clock.seconds = 500
    made.checked(BOTH)
    name = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
    assert series(made, name) == by_family(name, 5500)


SECONDS = "kubeproxy_sync_{}proxy_rules_duration_seconds_{}"


@pytest.mark.parametrize(("full", "kind"), [(True, "full_"), (False, "partial_")])
@pytest.mark.parametrize("succeeds", [True, False])
def test_durations(full: bool, kind: str, succeeds: bool) -> None:
    """The duration of a round starts when events are taken, for all rounds and by kind, also if the round fails."""
    clock = Clock()
    made = reporter(pipeline(), clock)
    clock.seconds = 7
    made.taken()
    clock.seconds = 7.5
    if succeeds:
        made.applied(1, BOTH, full=full)
    else:
        made.failed(BOTH, "why", full=full)
    expected: Series = {}
    for name in (SECONDS.format("", ""), SECONDS.format(kind, "")):
        expected |= by_family(f"{name}sum", 0.5) | by_family(f"{name}count", 1)
    everything = series(made.metrics, "kubeproxy_sync_")
    assert {name: value for name, value in everything.items() if "_sum{" in name or "_count{" in name} == expected


def stages(made: SyncReporter) -> Series:
    """The seconds that metrics report of each stage, by kind and stage."""
    found = series(made.metrics, "nftproxy_sync_stage_duration_seconds_sum")
    return {name.split("{")[1].rstrip("}"): value for name, value in found.items()}


def test_the_time_of_each_stage() -> None:
    """A round's time counts for its stages, without other tasks' turns or time between stages."""
    clock = Clock()
    made = reporter(pipeline(), clock)
    clock.seconds = 1
    made.taken()
    clock.seconds = 3
    with made.interrupted():
        clock.seconds = 10
    clock.seconds = 11
    made.lap(Stage.STATE)
    clock.seconds = 15
    made.lap()
    for _ in range(2):
        clock.seconds += 0.5
        made.lap(Stage.RENDER)
    clock.seconds = 20
    with made.committing(Transaction("x"), BOTH):
        clock.seconds = 20.25
    made.applied(1, BOTH, full=False)
    assert stages(made) == {
        'kind="change",stage="state"': 3,
        'kind="change",stage="render"': 1,
        'kind="change",stage="commit"': 0.25,
    }


def test_a_load_has_its_own_time() -> None:
    """A load counts neither the time of that change nor of earlier rounds."""
    clock = Clock()
    made = reporter(pipeline(), clock)
    made.lap(Stage.DIFF)
    clock.seconds = 5
    made.lap(Stage.DIFF)
    made.taken()
    clock.seconds = 6
    made.lap(Stage.COMPILE)
    made.applied(1, BOTH, full=False)
    clock.seconds = 8
    made.lap(Stage.DIFF)
    made.applied(1, BOTH, full=True)
    assert stages(made) == {'kind="change",stage="compile"': 1, 'kind="full",stage="diff"': 2}


CHANGE = Transaction("add element ip nftproxy services { 1, 2 }\nflush chain ip nftproxy refuse\n")


def commits(made: SyncReporter, clock: Clock, *seconds: float) -> None:
    """Let transactions take these numbers of seconds, one after the other."""
    for each in seconds:
        with made.committing(CHANGE, [IPV4, IPV6]):
            clock.seconds += each


def test_a_slow_transaction_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A transaction that takes a second is logged once, with its size, and a quicker transaction isn't."""
    clock = Clock()
    commits(reporter(pipeline(), clock), clock, 0.75, 1.0)
    assert caplog.messages == [
        "slow: the kernel took 1.0 s for a transaction of IPv4 and IPv6: 3 statements, 2 of them elements, 73 bytes"
    ]


def test_a_slow_refusal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A transaction that the kernel refuses after a second is logged, too."""
    clock = Clock()
    with contextlib.suppress(Refused), reporter(pipeline(), clock).committing(CHANGE, [IPV4]):
        clock.seconds = 2
        raise Refused("no", "statement")
    assert len(caplog.messages) == 1


def test_slow_transactions_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Slow transactions in a row are logged once a minute, and the next line counts the rest."""
    clock = Clock()
    made = reporter(pipeline(), clock)
    commits(made, clock, 2, 30, 0.5, 27, 30, 60)
    assert [line.rpartition(" bytes")[2] for line in caplog.messages] == ["", "; 2 more since the last such line", ""]


def test_a_bound_is_within_its_bucket() -> None:
    """Buckets are cumulative, and an observation that equals a bound is counted by it."""
    metrics = all_metrics()
    for seconds in (0.0, 0.25, 8.192, 100.0):
        metrics.count_sweep(IPV6, seconds, 0, 0)
    found = series(metrics, "kubeproxy_conntrack_reconciler_sync_duration_seconds_bucket")
    assert list(found.values()) == [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4]


def test_failures() -> None:
    """A transaction that the kernel didn't take is a failure of both families, as both were in it."""
    made = reporter(pipeline())
    made.taken()
    made.failed(BOTH, "why", full=True)
    name = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
    assert series(made.metrics, name) == by_family(name, 1)


def test_transactions() -> None:
    """Transactions are counted by kind, with their size, and a round in which no rule changed isn't counted."""
    made = reporter(pipeline())
    made.applied(5000, BOTH, full=True)
    made.applied(70, BOTH, full=False)
    made.applied(0, BOTH, full=False)
    names = ("nftproxy_transactions_total", "nftproxy_transaction_bytes_sum", "nftproxy_transaction_bytes_count")
    assert series(made.metrics, *names) == {
        'nftproxy_transactions_total{kind="full"}': 1,
        'nftproxy_transactions_total{kind="change"}': 1,
        'nftproxy_transaction_bytes_sum{kind="full"}': 5000,
        'nftproxy_transaction_bytes_sum{kind="change"}': 70,
        'nftproxy_transaction_bytes_count{kind="full"}': 1,
        'nftproxy_transaction_bytes_count{kind="change"}': 1,
    }


def test_one_family() -> None:
    """An agent of one family has no series of the other that nothing will ever move."""
    made = reporter(pipeline(families=[IPV6]))
    made.health = Health(30.0, [IPV6])
    made.queued([Put(service())])
    made.applied(1, {IPV6}, full=True)
    assert not [name for name in series(made.metrics, "kubeproxy_sync_full", "nftproxy_elements") if "IPv4" in name]


def test_damage_waits_to_be_mended() -> None:
    """A table that is not as it was left counts, and until it is loaded again a change waits, without an event."""
    made = reporter(pipeline())
    made.damaged(IPV6)
    assert not made.health.status(Moment(1060, 0)).is_healthy
    assert series(made.metrics, "nftproxy_repairs_total{")['nftproxy_repairs_total{ip_family="IPv6"}'] == 1
    assert changes(made, TOTAL) == (0, 0)
    made.taken()
    made.applied(1, BOTH, full=True)
    assert made.health.status(Moment(1060, 0)).is_healthy


def test_every_report_reaches_health() -> None:
    """Every report of the agent to its reporter reaches health, with the same time."""
    clock = Clock()
    made = reporter(pipeline(), clock)
    made.queued([Put(service())])
    assert not made.health.status(Moment(1060, 0)).is_healthy
    made.taken()
    made.applied(1, BOTH, full=False)
    status = made.health.status(Moment(1060, 0))
    assert status.is_healthy
    assert {each.last_updated for each in status.families.values()} == {5000}


# ---- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("triggered", "count"), [(99.0, 0), (100.0, 0), (100.5, 1)])
def test_network_programming(triggered: float, count: int) -> None:
    """A trigger before this process began doesn't count, as that would measure how long the process was not there."""
    clock = Clock()
    clock.seconds = 102.0 - clock.clocks.wall()
    made = SyncReporter(Health(30.0), all_metrics(), started=100.0, clocks=clock.clocks)
    made.queued([Put(slice_of(triggered=triggered))])
    made.taken()
    made.applied(1, BOTH, full=False)
    name = "kubeproxy_network_programming_duration_seconds"
    expected = {f'{name}_count{{ip_family="IPv4"}}': 1, f'{name}_sum{{ip_family="IPv4"}}': 1.5} if count else {}
    assert series(made.metrics, f"{name}_count", f"{name}_sum") == expected


def test_conntrack() -> None:
    """A look for stale conntrack entries tells how long it took and how many it deleted."""
    metrics = all_metrics()
    metrics.count_sweep(IPV6, 0.003, 2, 1)
    metrics.count_sweep(IPV6, 0.001, 3, 0)
    name = "kubeproxy_conntrack_reconciler_sync_duration_seconds"
    assert series(metrics, f"{name}_count") == {f'{name}_count{{ip_family="IPv6"}}': 2}
    deleted = "kubeproxy_conntrack_reconciler_deleted_entries_total"
    assert series(metrics, deleted) == {f'{deleted}{{ip_family="IPv4"}}': 0, f'{deleted}{{ip_family="IPv6"}}': 5}
    ended = "nftproxy_connections_ended_total"
    assert series(metrics, ended) == {f'{ended}{{ip_family="IPv4"}}': 0, f'{ended}{{ip_family="IPv6"}}': 1}


@pytest.mark.parametrize("what", ["healthz", "livez"])
def test_probes(what: str) -> None:
    """Answers to probes count by their status code."""
    metrics = all_metrics()
    name = f"kubeproxy_proxy_{what}_total"
    for status in ("200", "503", "200"):
        metrics.count(name, status)
    assert series(metrics, name) == {f'{name}{{code="200"}}': 2, f'{name}{{code="503"}}': 1}


def test_values_that_are_set_are_reported() -> None:
    """Conflicts are counted at the scrape, and values that the agent sets are reported as they are."""
    ports = ["a:80:30080", "b:81:30081"]
    loser = service("shop/web-2", cluster_ips=["10.96.0.11"], ports=ports)
    made = pipeline(service(ports=ports), loser)
    made.withhold(IPV4, [key("shop/web-2")])
    made.withhold(IPV6, [key("shop/web-2")])
    metrics = metrics_of(made)
    metrics.set("nftproxy_skipped_objects", 2)
    metrics.set("nftproxy_build_info", 1, "0.1.0", "1.0.6", "6.18.1", "a", "5f")
    metrics.count("nftproxy_repairs_total", IPV4)
    assert series(
        metrics, "nftproxy_conflicts", "nftproxy_services_q", "nftproxy_sk", "nftproxy_build", "nftproxy_repairs"
    ) == {
        "nftproxy_conflicts": 2,
        "nftproxy_services_quarantined": 1,
        "nftproxy_skipped_objects": 2,
        'nftproxy_build_info{commit="a",configuration="5f",kernel="6.18.1",libnftables="1.0.6",version="0.1.0"}': 1,
        'nftproxy_repairs_total{ip_family="IPv4"}': 1,
        'nftproxy_repairs_total{ip_family="IPv6"}': 0,
    }


def test_values_are_read_at_the_scrape() -> None:
    """Elements are reported as they are at the scrape."""
    made = pipeline()
    metrics = metrics_of(made)
    before = series(metrics, "nftproxy_elements")
    made.ingest([Put(service()), Put(slice_of())])
    after = series(metrics, "nftproxy_elements")
    counts = {
        'nftproxy_elements{ip_family="IPv4"}': made.generations[IPV4].element_count(),
        'nftproxy_elements{ip_family="IPv6"}': made.generations[IPV6].element_count(),
    }
    assert after == counts != before


NODE = ("nftproxy_forwarding", "nftproxy_conntrack")


@pytest.mark.parametrize(
    ("sysctls", "expected"),
    [
        (
            {
                "ipv4/ip_forward": 0,
                "ipv6/conf/all/forwarding": 1,
                "netfilter/nf_conntrack_count": 12,
                "netfilter/nf_conntrack_max": 400,
            },
            {
                'nftproxy_forwarding{ip_family="IPv4"}': 0,
                "nftproxy_conntrack_entries": 12,
                "nftproxy_conntrack_limit": 400,
            },
        ),
        ({}, {}),
    ],
)
def test_the_nodes_sysctls(sysctls: Mapping[str, int], expected: Series) -> None:
    """Forwarding has a series for each family with Services, and a missing sysctl has none."""
    made = pipeline(service(), slice_of())
    metrics = Metrics(lambda metrics: measure(metrics, made, lambda _: {}, lambda _: sysctls))
    assert series(metrics, *NODE) == expected


def test_sysctls_that_go() -> None:
    """Series end when no Service of the family is left, and when the kernel no longer has the settings."""
    made = pipeline(service(), slice_of())
    sysctls = {"ipv4/ip_forward": 1, "netfilter/nf_conntrack_max": 400}
    metrics = Metrics(lambda metrics: measure(metrics, made, lambda _: {}, lambda _: sysctls))
    assert series(metrics, *NODE) == {'nftproxy_forwarding{ip_family="IPv4"}': 1, "nftproxy_conntrack_limit": 400}
    made.ingest([Removed(Service, key("shop/web"))])
    del sysctls["netfilter/nf_conntrack_max"]
    assert series(metrics, *NODE) == {}


def test_a_scrape_is_of_one_moment() -> None:
    """A scrape takes the ages of changes and of the API's words at the same moment, however long it takes."""
    clock = itertools.count()  # which ticks whenever it is read
    made = SyncReporter(Health(30.0), all_metrics(), clocks=Clocks(lambda: next(clock), lambda: 5000.0))
    activity = ResourceActivity("services")
    made.activities = lambda: (activity,)
    made.queued([Put(service())])
    activity.last_heard = next(clock)
    change, word = "nftproxy_oldest_change_age_seconds", 'nftproxy_last_word_age_seconds{resource="services"}'
    for _ in range(3):
        made.scrape()
        found = series(made.metrics, change, word)
        assert found[change] == found[word] + 1


def test_reporting_a_round_costs_little() -> None:
    """Telling of a round costs next to nothing beside its transaction, which takes a millisecond."""
    made = reporter(pipeline())
    events = [Put(service()), Put(slice_of())]
    began = time.thread_time()
    for _ in range(1000):
        made.queued(events)
        made.taken()
        made.applied(1, BOTH, full=False)
    assert (time.thread_time() - began) / 1000 < 0.0005


def test_remembered_clients_are_counted() -> None:
    """The gauge of affinity entries has the kernel's counts, by family and map."""
    assert series(reporter(pipeline()).metrics, "nftproxy_affinity_entries") == {
        'nftproxy_affinity_entries{ip_family="IPv4",map="ip-affinity"}': 3,
        'nftproxy_affinity_entries{ip_family="IPv6",map="ip6-affinity"}': 3,
    }


def test_programming_latency_counts_from_the_trigger() -> None:
    """A changed slice that says when it was triggered is measured once its rules are in the kernel, and only then."""
    clock = Clock()
    made = reporter(pipeline(), clock)
    name = 'kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"}'
    made.queued([Put(slice_of(triggered=4999.0)), Put(slice_of("shop/other"))])
    made.taken()
    made.failed(BOTH, "why", full=False)
    assert name not in series(made.metrics, name)
    clock.seconds = 2.5
    made.taken()
    made.applied(1, BOTH, full=True)
    made.applied(1, BOTH, full=False)
    assert series(made.metrics, name) == {name: 3.5}
