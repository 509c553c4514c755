"""Metrics for Prometheus: kube-proxy's, so that charts and alerts keep working, and a few of our own.

Names, labels, help texts and buckets are those of kube-proxy 1.36 in nftables mode (pkg/proxy/metrics/metrics.go, and
for requests to the API component-base's metrics/prometheus/restclient/metrics.go).  The mark [ALPHA] is Kubernetes':
these metrics may still change.

Series are kept here, and prometheus_client only writes them out.  Its own histograms write the bound 1 as "1.0" where
Go writes "1", which is another label and so another series, and each of its counters adds a series with its time of
creation.  Counting is an addition in a dict, without locks, as everything runs on the same loop.  Labels become texts,
and values that would be expensive to keep up to date are looked up, at each scrape (`exposition`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.stages import Stage
from nftproxy.sources.api_connection import RequestOutcome

# Upper bounds.  Seconds, 1 ms to 16 s: ExponentialBuckets(0.001, 2, 15).
SYNC_BUCKETS = tuple(0.001 * 2**n for n in range(15))
# Seconds, to 5 minutes.  The bound 0 comes from a slip in component-base's MergeBuckets, and is in every chart.
PROGRAMMING_BUCKETS = (0, 0.25, 0.5, *range(1, 60), *range(60, 120, 5), *range(120, 301, 30))
# Seconds, 0.1 ms to 6.6 s.  A stage takes about 1 ms for a change of one endpoint, and seconds for 40,000 Services.
STAGE_BUCKETS = tuple(0.0001 * 4**n for n in range(9))
# Seconds, as client-go's.
REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
# Bytes: a change of one endpoint takes some 100, and loading 40,000 Services some 10 million.
SIZE_BUCKETS = tuple(10**n for n in range(2, 9))


Label = str | Family | Stage
"""The value of a label: a `Family` stands for its API name, and a `Stage` for its value."""


class Metric(NamedTuple):
    """The definition of a metric.  The name of a kube-proxy metric is without prefix.  Histograms have `bounds`.

    `known` are the values of a counter's only label that are known beforehand.  A counter has these series from the
    start, at 0, because `increase` ignores a series that begins with 1.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ("ip_family",)
    bounds: Sequence[float] = SYNC_BUCKETS
    known: tuple[Label, ...] = tuple(Family)

    @property
    def header(self) -> tuple[str, str]:
        """Name and help text in full."""
        if self.name.startswith("nftproxy_"):
            return self.name, self.text
        is_shared = self.name.startswith("rest_client_")
        return self.name if is_shared else f"kubeproxy_{self.name}", f"[ALPHA] {self.text}"


class MetricRows(NamedTuple):
    """The counters and gauges of an extension."""

    counters: tuple[Metric, ...] = ()
    gauges: tuple[Metric, ...] = ()


_STATUSES = ("200", "503")

COUNTERS = (
    Metric("sync_proxy_rules_endpoint_changes_total", "Cumulative proxy rules Endpoint changes", ()),
    Metric("sync_proxy_rules_service_changes_total", "Cumulative proxy rules Service changes", ()),
    Metric("sync_proxy_rules_nftables_sync_failures_total", "Cumulative proxy nftables sync failures"),
    Metric("sync_proxy_rules_nftables_cleanup_failures_total", "Cumulative proxy nftables cleanup failures"),
    Metric("proxy_healthz_total", "Cumulative proxy healthz HTTP status", ("code",), known=_STATUSES),
    Metric("proxy_livez_total", "Cumulative proxy livez HTTP status", ("code",), known=_STATUSES),
    Metric("conntrack_reconciler_deleted_entries_total", "Cumulative conntrack flows deleted by conntrack reconciler"),
    Metric(
        "rest_client_requests_total",
        "Number of HTTP requests, partitioned by status code, method, and host.",
        ("code", "method", "host"),
        known=(),
    ),
    Metric(
        "nftproxy_transactions_total",
        "Transactions that the kernel accepted, by kind",
        ("kind",),
        known=("full", "change"),
    ),
    Metric("nftproxy_log_lines_dropped_total", "Lines of the log that were dropped, as nobody read them in time", ()),
    Metric("nftproxy_warnings_total", "Warnings and errors that were logged, by their codes", ("code",), known=()),
    Metric("nftproxy_connections_ended_total", "TCP connections that were ended, as their endpoint's address is gone"),
    Metric("nftproxy_repairs_total", "Times that a table was loaded again, as another program had changed it"),
)

GAUGES = (
    Metric("sync_proxy_rules_endpoint_changes_pending", "Pending proxy rules Endpoint changes", ()),
    Metric("sync_proxy_rules_service_changes_pending", "Pending proxy rules Service changes", ()),
    Metric("sync_proxy_rules_last_timestamp_seconds", "The last time proxy rules were successfully synced"),
    Metric("sync_proxy_rules_last_queued_timestamp_seconds", "The last time a sync of proxy rules was queued"),
    Metric(
        "sync_proxy_rules_no_local_endpoints_total",
        "Number of services with a Local traffic policy and no endpoints",
        ("ip_family", "traffic_policy"),
    ),
    Metric("nftproxy_elements", "Elements of the table's sets and maps, except those that packets add"),
    Metric(
        "nftproxy_affinity_entries", "Clients that session affinity remembers, at most 1048576", ("ip_family", "map")
    ),
    Metric("nftproxy_conflicts", "Addresses and ports that a Service claims and does not get", ()),
    Metric("nftproxy_services_quarantined", "Services without rules: refused by the kernel, or beyond a limit", ()),
    Metric("nftproxy_healthy", "1 if /healthz, or /livez, answers 200 at present", ("path",)),
    Metric("nftproxy_faults", "Warnings that hold at present, as `nftproxy status` has them, by code", ("code",)),
    Metric("nftproxy_waiting", "Always 1, for each event that the first load waits for", ("for",)),
    Metric(
        "nftproxy_last_word_age_seconds", "Seconds since the API server's last word about a resource", ("resource",)
    ),
    Metric(
        "nftproxy_unusable_listing_seconds",
        "Seconds for which the API server has answered with listings that can't be used, else 0",
        ("resource",),
    ),
    Metric(
        "nftproxy_oldest_change_age_seconds", "Seconds that the oldest change that isn't in the kernel has waited", ()
    ),
    Metric("nftproxy_services_postponed", "Services whose changes wait for their turn, as they cost much", ()),
    Metric("nftproxy_skipped_objects", "Objects, or parts of objects, that could not be used", ()),
    Metric("nftproxy_configuration_rejected", "1 while the configuration file has changed and can't be used", ()),
    Metric("nftproxy_other_proxies", "Traces of another service proxy on this node, at most 5", ("proxy",)),
    Metric("nftproxy_forwarding", "1 if the node forwards packets, for each family with Services"),
    Metric("nftproxy_conntrack_entries", "Entries of connection tracking", ()),
    Metric("nftproxy_conntrack_limit", "The most entries of connection tracking", ()),
    Metric(
        "nftproxy_build_info",
        "Always 1, with the versions and a digest of the configuration as labels",
        ("version", "libnftables", "kernel", "commit", "configuration"),
    ),
)

HISTOGRAMS = (
    Metric("sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds"),
    Metric("sync_full_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for full resyncs"),
    Metric("sync_partial_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for partial resyncs"),
    Metric(
        "network_programming_duration_seconds",
        "In Cluster Network Programming Latency in seconds",
        bounds=PROGRAMMING_BUCKETS,
    ),
    Metric("conntrack_reconciler_sync_duration_seconds", "ReconcileConntrackFlowsLatency latency in seconds"),
    Metric("nftproxy_sync_stage_duration_seconds", "Time of a sync, by stage", ("kind", "stage"), STAGE_BUCKETS),
    Metric(
        "rest_client_request_duration_seconds",
        "Request latency in seconds. Broken down by verb, and host.",
        ("verb", "host"),
        REQUEST_BUCKETS,
    ),
    Metric("nftproxy_transaction_bytes", "Length of transactions that the kernel accepted", ("kind",), SIZE_BUCKETS),
)

_PASSING = (
    "nftproxy_affinity_entries",
    "nftproxy_forwarding",
    "nftproxy_conntrack_entries",
    "nftproxy_conntrack_limit",
)
"""Gauges whose series may be missing at the next scrape: maps, Services and kernel modules come and go."""


class _Numbers(Collector):
    """A counter or a gauge, with its series by the values of its labels."""

    def __init__(self, family: type[CounterMetricFamily | GaugeMetricFamily], row: Metric) -> None:
        self._family = family
        self._row = row
        known = [(value,) for value in row.known if family is CounterMetricFamily] if row.labels else [()]
        self.values: dict[tuple[Label, ...], float] = dict.fromkeys(known, 0.0)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        made = self._family(*self._row.header, labels=self._row.labels)
        for labels, value in self.values.items():
            made.add_metric(_texts(labels), value)
        yield made


class _Histogram(Collector):
    """A histogram, with the counts of its buckets and the sum of its observations by the values of its labels."""

    def __init__(self, row: Metric) -> None:
        self._row = row
        self._counts: dict[tuple[Label, ...], list[int]] = defaultdict(lambda: [0] * (len(row.bounds) + 1))
        self._sums: dict[tuple[Label, ...], float] = defaultdict(float)

    def observe(self, value: float, labels: tuple[Label, ...]) -> None:
        self._counts[labels][bisect_left(self._row.bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        made = HistogramMetricFamily(*self._row.header, labels=self._row.labels)
        bounds = [*(f"{bound:g}" for bound in self._row.bounds), "+Inf"]
        for labels, counts in self._counts.items():
            made.add_metric(_texts(labels), list(zip(bounds, accumulate(counts), strict=True)), self._sums[labels])
        yield made


class Metrics:
    """All metrics of an agent, by their full names."""

    def __init__(self, measure: Callable[[Metrics], None] = lambda _: None, added: Iterable[MetricRows] = ()) -> None:
        """Start with the known series, also those of extensions.

        Args:
            measure: called at each scrape, to set metrics.
            added: the rows of extensions.
        """
        self._measure = measure
        rows = (MetricRows(COUNTERS, GAUGES), *added)
        self._numbers = {row.header[0]: _Numbers(CounterMetricFamily, row) for each in rows for row in each.counters}
        self._numbers |= {row.header[0]: _Numbers(GaugeMetricFamily, row) for each in rows for row in each.gauges}
        self._histograms = {row.header[0]: _Histogram(row) for row in HISTOGRAMS}
        self._registry = CollectorRegistry()
        for metric in (*self._numbers.values(), *self._histograms.values()):
            self._registry.register(metric)
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        for name in _PASSING:
            self._numbers[name].values.clear()
        self._measure(self)
        return generate_latest(self._registry)

    def count(self, name: str, *labels: Label, by: float = 1) -> None:
        """Add to a counter."""
        values = self._numbers[name].values
        values[labels] = values.get(labels, 0.0) + by

    def set(self, name: str, value: float, *labels: Label) -> None:
        """Set a gauge."""
        self._numbers[name].values[labels] = value

    def set_only(self, name: str, *labels: str) -> None:
        """Set a gauge to 1 for each of these values of its label, and drop its other series."""
        self.set_each(name, dict.fromkeys(labels, 1.0))

    def set_each(self, name: str, values: Mapping[str, float]) -> None:
        """Set a metric for each of these values of its label, and drop its other series."""
        self._numbers[name].values = {(label,): value for label, value in values.items()}

    def observe(self, name: str, value: float, *labels: Label) -> None:
        """Add an observation to a histogram."""
        self._histograms[name].observe(value, labels)

    def count_sweep(self, family: Family, seconds: float, deleted: int, ended: int) -> None:
        """Count a sweep of a family's stale conntrack entries, and the UDP and TCP entries that it deleted."""
        self.observe("kubeproxy_conntrack_reconciler_sync_duration_seconds", seconds, family)
        self.count("kubeproxy_conntrack_reconciler_deleted_entries_total", family, by=deleted)
        self.count("nftproxy_connections_ended_total", family, by=ended)

    def count_request(self, asked: RequestOutcome) -> None:
        """Count a request to the API that was answered, or failed."""
        self.count("rest_client_requests_total", asked.code, asked.method, asked.host)
        self.observe("rest_client_request_duration_seconds", asked.seconds, asked.method, asked.host)


def _texts(labels: Iterable[Label]) -> list[str]:
    """Return the values of labels as texts."""
    return [_text(label) for label in labels]


def _text(label: Label) -> str:
    if isinstance(label, str):
        return label
    return label.value if isinstance(label, Stage) else FAMILY_NAMES[label]
