"""What Prometheus scrapes: kube-proxy's metrics, so that charts and alerts keep working, and a few of our own.

Names, labels, help texts and buckets are those of kube-proxy 1.36 in nftables mode (pkg/proxy/metrics/metrics.go, and
for requests to the API component-base's metrics/prometheus/restclient/metrics.go); the mark [ALPHA] is Kubernetes' own,
by which it may still change them.

Series are kept here and not by prometheus_client's own types, which only write them out: its histograms write the
bound 1 as "1.0" where Go writes "1", which is another label and so another series, and each of its counters brings one
more series with its time of creation.  Counting is an addition in a dict, without locks, since everything runs on one
loop; a value that would cost time to keep up to date is looked up when a scrape asks for it (`text`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from nftproxy.kernel.other_proxies import PROXIES
from nftproxy.model.addresses import FAMILY_NAMES, Family
from nftproxy.model.events import Event, Listed, Put
from nftproxy.model.objects import ClusterObject, EndpointSlice, Service
from nftproxy.model.stages import Stage
from nftproxy.sources.api_connection import Asked

# Upper bounds.  Seconds, 1 ms to 16 s: ExponentialBuckets(0.001, 2, 15).
SYNC_BUCKETS = tuple(0.001 * 2**n for n in range(15))
# Seconds, to 5 minutes.  The bound 0 comes from a slip in component-base's MergeBuckets, and is in every chart.
PROGRAMMING_BUCKETS = (0, 0.25, 0.5, *range(1, 60), *range(60, 120, 5), *range(120, 301, 30))
# Seconds, 0.1 ms to 6.6 s: a stage of one endpoint's change takes about 1 ms, loading 40,000 Services seconds.
STAGE_BUCKETS = tuple(0.0001 * 4**n for n in range(9))
# Seconds, as client-go's.
REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
# Bytes: one endpoint's change takes some 100, loading 40,000 Services some 10 million.
SIZE_BUCKETS = tuple(10**n for n in range(2, 9))


_FAMILIES = tuple(FAMILY_NAMES.values())


class _Row(NamedTuple):
    """How a metric is defined; `name` is without prefix where it is kube-proxy's own, `bounds` are a histogram's.

    `known` are values of a counter's only label that are known beforehand.  A counter has these series from the start,
    at 0: of a series that begins with 1, `increase` sees nothing.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ("ip_family",)
    bounds: Sequence[float] = SYNC_BUCKETS
    known: tuple[str, ...] = _FAMILIES

    @property
    def header(self) -> tuple[str, str]:
        """Name and help text in full."""
        if self.name.startswith("nftproxy_"):
            return self.name, self.text
        is_shared = self.name.startswith("rest_client_")
        return self.name if is_shared else f"kubeproxy_{self.name}", f"[ALPHA] {self.text}"


_STATUSES = ("200", "503")

_COUNTERS = (
    _Row("sync_proxy_rules_endpoint_changes_total", "Cumulative proxy rules Endpoint changes", ()),
    _Row("sync_proxy_rules_service_changes_total", "Cumulative proxy rules Service changes", ()),
    _Row("sync_proxy_rules_nftables_sync_failures_total", "Cumulative proxy nftables sync failures"),
    _Row("sync_proxy_rules_nftables_cleanup_failures_total", "Cumulative proxy nftables cleanup failures"),
    _Row("proxy_healthz_total", "Cumulative proxy healthz HTTP status", ("code",), known=_STATUSES),
    _Row("proxy_livez_total", "Cumulative proxy livez HTTP status", ("code",), known=_STATUSES),
    _Row("conntrack_reconciler_deleted_entries_total", "Cumulative conntrack flows deleted by conntrack reconciler"),
    _Row(
        "nftables_localhost_nodeport_listener_creation_failures_total",
        "Cumulative node ports that could not be listened on at localhost",
    ),
    _Row(
        "nftproxy_localhost_connections_total",
        "Connections to node ports at localhost",
        ("outcome",),
        known=("forwarded", "unreachable", "limit"),
    ),
    _Row(
        "rest_client_requests_total",
        "Number of HTTP requests, partitioned by status code, method, and host.",
        ("code", "method", "host"),
        known=(),
    ),
    _Row(
        "nftproxy_transactions_total",
        "Transactions that the kernel took, by what they are",
        ("kind",),
        known=("full", "change"),
    ),
    _Row("nftproxy_warnings_total", "Warnings and errors that were logged, by their codes", ("code",), known=()),
    _Row("nftproxy_silences_total", "Times that an endpoint stopped answering, where such are left out"),
    _Row(
        "nftproxy_silence_checks_total",
        "Connections of the agent to endpoints that seem silent",
        ("answered",),
        known=("true", "false"),
    ),
    _Row("nftproxy_connections_moved_total", "Unanswered connections that were made to go to another endpoint", ()),
    _Row("nftproxy_repairs_total", "Times that a table was not as it was left, and so was loaded again"),
)

_GAUGES = (
    _Row("sync_proxy_rules_endpoint_changes_pending", "Pending proxy rules Endpoint changes", ()),
    _Row("sync_proxy_rules_service_changes_pending", "Pending proxy rules Service changes", ()),
    _Row("sync_proxy_rules_last_timestamp_seconds", "The last time proxy rules were successfully synced"),
    _Row("sync_proxy_rules_last_queued_timestamp_seconds", "The last time a sync of proxy rules was queued"),
    _Row(
        "sync_proxy_rules_no_local_endpoints_total",
        "Number of services with a Local traffic policy and no endpoints",
        ("ip_family", "traffic_policy"),
    ),
    _Row("nftables_localhost_nodeport_listeners", "Node ports that are listened on at localhost"),
    _Row("nftproxy_elements", "Elements of the table's sets and maps, except those that packets add"),
    _Row("nftproxy_affinity_entries", "Clients that session affinity remembers, at most 1048576", ("ip_family", "map")),
    _Row("nftproxy_conflicts", "Addresses and ports that a Service claims and does not get", ()),
    _Row("nftproxy_services_quarantined", "Services without rules: refused by the kernel, or beyond a limit", ()),
    _Row("nftproxy_silent_endpoints", "Endpoints that don't answer this node, where such are left out"),
    _Row("nftproxy_waiting", "Always 1; what must happen before all rules are loaded for the first time", ("for",)),
    _Row("nftproxy_skipped_objects", "Objects, or parts of objects, that could not be used", ()),
    _Row("nftproxy_configuration_rejected", "1 while the configuration file has changed and can't be used", ()),
    _Row("nftproxy_other_proxies", "Traces of another service proxy on this node, at most 5", ("proxy",)),
    _Row("nftproxy_build_info", "Always 1; the labels are what matters", ("version", "libnftables", "kernel")),
)

_HISTOGRAMS = (
    _Row("sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds"),
    _Row("sync_full_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for full resyncs"),
    _Row("sync_partial_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for partial resyncs"),
    _Row(
        "network_programming_duration_seconds",
        "In Cluster Network Programming Latency in seconds",
        bounds=PROGRAMMING_BUCKETS,
    ),
    _Row("conntrack_reconciler_sync_duration_seconds", "ReconcileConntrackFlowsLatency latency in seconds"),
    _Row("nftproxy_sync_stage_duration_seconds", "Where a sync's time goes", ("kind", "stage"), STAGE_BUCKETS),
    _Row(
        "rest_client_request_duration_seconds",
        "Request latency in seconds. Broken down by verb, and host.",
        ("verb", "host"),
        REQUEST_BUCKETS,
    ),
    _Row("nftproxy_transaction_bytes", "Length of transactions that the kernel took", ("kind",), SIZE_BUCKETS),
)


class FamilyFigures(NamedTuple):
    """What is counted in one family.

    `clients` are those that session affinity remembers, by map; `without_local_endpoints` are Service ports by traffic
    policy.
    """

    elements: int
    clients: Mapping[str, int]
    without_local_endpoints: Mapping[str, int]


class Figures(NamedTuple):
    """What is looked up when metrics are asked for, as they are then.

    `warnings` are those that have been logged, by code; of codes that never were there is no series, as there are many.
    """

    families: Mapping[Family, FamilyFigures] = MappingProxyType({})
    conflicts: int = 0
    quarantined: int = 0
    warnings: Mapping[str, int] = MappingProxyType({})


class _Numbers(Collector):
    """A counter or a gauge: its series by the values of its labels."""

    def __init__(self, family: type[CounterMetricFamily | GaugeMetricFamily], row: _Row) -> None:
        self._family = family
        self._row = row
        known = [(value,) for value in row.known if family is CounterMetricFamily] if row.labels else [()]
        self._values: dict[tuple[str, ...], float] = dict.fromkeys(known, 0.0)

    def add(self, amount: float, *labels: str) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def set(self, value: float, *labels: str) -> None:
        self._values[labels] = value

    def clear(self) -> None:
        self._values.clear()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        made = self._family(*self._row.header, labels=self._row.labels)
        for labels, value in self._values.items():
            made.add_metric(labels, value)
        yield made


class _Histogram(Collector):
    """A histogram: by the values of its labels, how many observations each bucket has, and their sum."""

    def __init__(self, row: _Row) -> None:
        self._row = row
        self._counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * (len(row.bounds) + 1))
        self._sums: dict[tuple[str, ...], float] = defaultdict(float)

    def observe(self, value: float, *labels: str) -> None:
        self._counts[labels][bisect_left(self._row.bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        made = HistogramMetricFamily(*self._row.header, labels=self._row.labels)
        bounds = [*(f"{bound:g}" for bound in self._row.bounds), "+Inf"]
        for labels, counts in self._counts.items():
            made.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), self._sums[labels])
        yield made


_CHANGES: dict[type[ClusterObject], str] = {Service: "service", EndpointSlice: "endpoint"}


class Metrics:
    """All metrics of one agent.  Points in time are in seconds since the epoch, durations in seconds."""

    def __init__(
        self, families: Iterable[Family], look: Callable[[], Figures] = Figures, *, started: float = 0.0
    ) -> None:
        """Begin to count.

        Args:
            families: those that are served.
            look: called by `text` for what it costs too much to keep up to date.
            started: when this process began to look around, in seconds since the epoch.
        """
        self._look = look
        self._families = [FAMILY_NAMES[family] for family in families]
        self._started = started
        self._pending: dict[type[ClusterObject], int] = dict.fromkeys(_CHANGES, 0)
        self._taken: dict[type[ClusterObject], int] = {}
        self._counters = {row.header[0]: _Numbers(CounterMetricFamily, row) for row in _COUNTERS}
        self._gauges = {row.header[0]: _Numbers(GaugeMetricFamily, row) for row in _GAUGES}
        self._histograms = {row.header[0]: _Histogram(row) for row in _HISTOGRAMS}
        self._registry = CollectorRegistry()
        for metric in (*self._counters.values(), *self._gauges.values(), *self._histograms.values()):
            self._registry.register(metric)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All of it in Prometheus' text format, version 0.0.4."""
        figures = self._look()
        self._gauges["nftproxy_affinity_entries"].clear()  # maps come and go
        for family, found in figures.families.items():
            name = FAMILY_NAMES[family]
            self._gauges["nftproxy_elements"].set(found.elements, name)
            for container, count in found.clients.items():
                self._gauges["nftproxy_affinity_entries"].set(count, name, container)
            for policy, count in found.without_local_endpoints.items():
                self._gauges["kubeproxy_sync_proxy_rules_no_local_endpoints_total"].set(count, name, policy)
        for code, count in figures.warnings.items():
            self._counters["nftproxy_warnings_total"].set(count, code)
        self._gauges["nftproxy_conflicts"].set(figures.conflicts)
        self._gauges["nftproxy_services_quarantined"].set(figures.quarantined)
        for kind, name in _CHANGES.items():
            self._gauges[f"kubeproxy_sync_proxy_rules_{name}_changes_pending"].set(self._pending[kind])
        return generate_latest(self._registry)

    def queued(self, events: Iterable[Event], at: float) -> None:
        """Changes have come; in a listing each object counts, as it does when kube-proxy lists."""
        for kind, name in _CHANGES.items():
            count = sum(_told(event, kind) for event in events)
            self._counters[f"kubeproxy_sync_proxy_rules_{name}_changes_total"].add(count)
            self._pending[kind] += count
        for family in self._families:
            self._gauges["kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"].set(at, family)

    def taken(self) -> None:
        """All that has come so far is being applied now."""
        self._taken = dict(self._pending)

    def synced(self, families: Iterable[Family], seconds: float, at: float, *, full: bool, size: int) -> None:
        """What was taken is in these families' tables, by a transaction of `size` bytes (0: no rule had to change)."""
        for of_kind, count in self._taken.items():
            self._pending[of_kind] -= count
        self._taken.clear()
        self._took(families, seconds, full=full)
        self.checked(families, at)
        if size:
            kind = "full" if full else "change"
            self._counters["nftproxy_transactions_total"].add(1, kind)
            self._histograms["nftproxy_transaction_bytes"].observe(size, kind)

    def spent(self, stages: Mapping[Stage, float], *, full: bool) -> None:
        """A sync has spent so many seconds on each of these stages."""
        histogram = self._histograms["nftproxy_sync_stage_duration_seconds"]
        for stage, seconds in stages.items():
            histogram.observe(seconds, "full" if full else "change", stage.value)

    def sync_failed(self, families: Iterable[Family], seconds: float, *, full: bool) -> None:
        """What was taken could not be applied to these families' tables."""
        self._took(families, seconds, full=full)
        for family in families:
            self._counters["kubeproxy_sync_proxy_rules_nftables_sync_failures_total"].add(1, FAMILY_NAMES[family])

    def checked(self, families: Iterable[Family], at: float) -> None:
        """The kernel holds what it should, as the periodic check has found or a transaction has made sure."""
        for family in families:
            self._gauges["kubeproxy_sync_proxy_rules_last_timestamp_seconds"].set(at, FAMILY_NAMES[family])

    def programmed(self, family: Family, triggered: float, at: float) -> None:
        """An EndpointSlice is in the rules; `triggered` is its endpoints.kubernetes.io/last-change-trigger-time."""
        if triggered > self._started:  # how long it took to start is another matter
            seconds = self._histograms["kubeproxy_network_programming_duration_seconds"]
            seconds.observe(at - triggered, FAMILY_NAMES[family])

    def reconciled(self, family: Family, seconds: float, deleted: int) -> None:
        """Stale conntrack entries of a family were looked for, and so many deleted."""
        name = FAMILY_NAMES[family]
        self._histograms["kubeproxy_conntrack_reconciler_sync_duration_seconds"].observe(seconds, name)
        self._counters["kubeproxy_conntrack_reconciler_deleted_entries_total"].add(deleted, name)

    def requested(self, asked: Asked) -> None:
        """A request to the API was answered, or failed."""
        self._counters["rest_client_requests_total"].add(1, asked.code, asked.method, asked.host)
        self._histograms["rest_client_request_duration_seconds"].observe(asked.seconds, asked.method, asked.host)

    def waits_for(self, waiting: Iterable[str]) -> None:
        """This must happen before all rules are loaded for the first time."""
        self._gauges["nftproxy_waiting"].clear()
        for what in waiting:
            self._gauges["nftproxy_waiting"].set(1, what)

    def probed(self, what: str, status: int) -> None:
        """A probe, "healthz" or "livez", was answered with this HTTP status."""
        self._counters[f"kubeproxy_proxy_{what}_total"].add(1, str(status))

    def localhost_listeners(self, family: Family, count: int) -> None:
        """So many node ports are listened on at localhost."""
        self._gauges["kubeproxy_nftables_localhost_nodeport_listeners"].set(count, FAMILY_NAMES[family])

    def localhost_listener_failed(self, family: Family) -> None:
        """A node port can't be listened on at localhost."""
        name = "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total"
        self._counters[name].add(1, FAMILY_NAMES[family])

    def localhost_connection(self, outcome: str) -> None:
        """A connection to a node port at localhost was "forwarded", or reset: "unreachable" or beyond a "limit"."""
        self._counters["nftproxy_localhost_connections_total"].add(1, outcome)

    def silence(self, counts: Mapping[Family, int]) -> None:
        """So many endpoints of each family don't answer now."""
        for family, count in counts.items():
            self._gauges["nftproxy_silent_endpoints"].set(count, FAMILY_NAMES[family])

    def fell_silent(self, family: Family) -> None:
        """An endpoint doesn't answer any more."""
        self._counters["nftproxy_silences_total"].add(1, FAMILY_NAMES[family])

    def tried_silent(self, *, has_answered: bool) -> None:
        """A connection of our own to an endpoint that seems silent was answered, or not."""
        self._counters["nftproxy_silence_checks_total"].add(1, str(has_answered).lower())

    def moved_unanswered(self, count: int) -> None:
        """So many connections will be translated anew."""
        self._counters["nftproxy_connections_moved_total"].add(count)

    def repaired(self, family: Family) -> None:
        """A table was not as it was left."""
        self._counters["nftproxy_repairs_total"].add(1, FAMILY_NAMES[family])

    def skipped(self, count: int) -> None:
        """The input has so many problems at present."""
        self._gauges["nftproxy_skipped_objects"].set(count)

    def configured(self, *, is_good: bool) -> None:
        """The configuration file has changed: to one that can be used, or not."""
        self._gauges["nftproxy_configuration_rejected"].set(float(not is_good))

    def neighbours(self, traces: Mapping[str, Sequence[str]]) -> None:
        """The traces of other service proxies, by the proxies' names."""
        for proxy in PROXIES:
            self._gauges["nftproxy_other_proxies"].set(len(traces.get(proxy, ())), proxy)

    def built(self, version: str, libnftables: str, kernel: str) -> None:
        """Which versions these are: our own, the library's, the machine's."""
        self._gauges["nftproxy_build_info"].set(1, version, libnftables, kernel)

    def _took(self, families: Iterable[Family], seconds: float, *, full: bool) -> None:
        also = "kubeproxy_sync_full_proxy_rules" if full else "kubeproxy_sync_partial_proxy_rules"
        for name in map(FAMILY_NAMES.__getitem__, families):
            self._histograms["kubeproxy_sync_proxy_rules_duration_seconds"].observe(seconds, name)
            self._histograms[f"{also}_duration_seconds"].observe(seconds, name)


def _told(event: Event, kind: type[ClusterObject]) -> int:
    """How many objects of a kind an event is about."""
    if isinstance(event, Put):
        return 1 if isinstance(event.object, kind) else 0
    count = len(event.objects) if isinstance(event, Listed) else 1
    return count if event.kind is kind else 0
