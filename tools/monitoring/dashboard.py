"""The dashboard: rows of panels, each with its queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

FILE = Path(__file__).resolve().parents[2] / "examples" / "monitoring" / "dashboard.json"

OURS = 'container="nftproxy", node=~"$node"'
"""The series of our agents, on the nodes that are selected at the top."""

COLUMNS, HEIGHT = 24, 7
"""Grafana's grid is 24 wide, and a unit of height is 30 pixels."""


class Query(NamedTuple):
    """A query in PromQL, and how its series are named: `{{label}}` stands for a label's value."""

    expr: str
    legend: str


class Panel:
    """A chart over time.  `unit` is Grafana's name of it, `text` its description."""

    def __init__(self, title: str, unit: str, text: str, *queries: Query) -> None:
        self.title, self.unit, self.text, self.queries = title, unit, text, queries


def _quantile(quantile: float, metric: str, by: str = "node") -> str:
    rate = f"rate({metric}_bucket{{{OURS}}}[$__rate_interval])"
    return f"histogram_quantile({quantile}, sum by (le, {by}) ({rate}))"


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{OURS}}}[$__rate_interval]))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "The cluster at a glance": (
        Panel(
            "Well or not",
            "short",
            "Nodes whose /healthz answers 200, other nodes with an agent, and nodes by each warning that holds.",
            Query(f'sum(nftproxy_healthy{{path="healthz", {OURS}}})', "well"),
            Query(f'sum(1 - nftproxy_healthy{{path="healthz", {OURS}}})', "not well"),
            Query(f"count by (code) (nftproxy_faults{{{OURS}}} > 0)", "with {{code}}"),
        ),
        Panel(
            "Builds and kernels",
            "short",
            "Nodes by version, commit and kernel.  More than one line means that nodes differ.",
            Query(f"count by (version, commit, kernel) (nftproxy_build_info{{{OURS}}})", "{{version}}, {{kernel}}"),
        ),
        Panel(
            "The slowest nodes",
            "s",
            "The nodes whose oldest change has waited longest for the kernel.",
            Query(f"topk(5, max by (node) (nftproxy_oldest_change_age_seconds{{{OURS}}}))", "{{node}}"),
        ),
    ),
    "Is it well?": (
        Panel(
            "Nodes",
            "short",
            "Agents that answer, and agents that have not loaded all rules yet.",
            Query(f'count(up{{job="kube-proxy", {OURS}}} == 1)', "answering"),
            Query(f"count(nftproxy_waiting{{{OURS}}}) or vector(0)", "waiting"),
        ),
        Panel(
            "Services that are not served as they ask",
            "short",
            "In quarantine, or without an address or port that an older Service has.",
            Query(f"max(nftproxy_services_quarantined{{{OURS}}})", "in quarantine"),
            Query(f"max(nftproxy_conflicts{{{OURS}}})", "addresses and ports in conflict"),
            Query(f"max(nftproxy_skipped_objects{{{OURS}}})", "unusable parts of objects"),
        ),
        Panel(
            "Interference",
            "short",
            "Rules that another program has damaged, transactions that the kernel refused, traces of other proxies.",
            Query(f"sum by (node) (increase(nftproxy_repairs_total{{{OURS}}}[$__range]))", "repairs, {{node}}"),
            Query(
                "sum by (node) (increase(kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
                f"{{{OURS}}}[$__range]))",
                "refused, {{node}}",
            ),
            Query(f"sum by (node, proxy) (nftproxy_other_proxies{{{OURS}}}) > 0", "{{proxy}}, {{node}}"),
        ),
    ),
    "Following the cluster": (
        Panel(
            "From the change of an endpoint to the kernel (p99)",
            "s",
            "With everything in between: the endpoint controller, the API server, the network, the agent.",
            Query(_quantile(0.99, "kubeproxy_network_programming_duration_seconds"), "{{node}}"),
        ),
        Panel(
            "The agent's part of it",
            "s",
            "From what has come to the commit.  kube-proxy's charts have the same metric.",
            Query(_quantile(0.5, "kubeproxy_sync_proxy_rules_duration_seconds", "ip_family"), "p50, {{ip_family}}"),
            Query(_quantile(0.99, "kubeproxy_sync_proxy_rules_duration_seconds", "ip_family"), "p99, {{ip_family}}"),
        ),
        Panel(
            "Where its time goes",
            "s",
            "Seconds of each second, by stage.",
            Query(_rate("nftproxy_sync_stage_duration_seconds_sum", "stage"), "{{stage}}"),
        ),
        Panel(
            "Changes",
            "ops",
            "Objects that came, changed or went.",
            Query(_rate("kubeproxy_sync_proxy_rules_service_changes_total", "node"), "Services, {{node}}"),
            Query(_rate("kubeproxy_sync_proxy_rules_endpoint_changes_total", "node"), "EndpointSlices, {{node}}"),
        ),
        Panel(
            "Transactions",
            "ops",
            "Full ones are loads at the start, repairs and, now and then, a check's result.",
            Query(_rate("nftproxy_transactions_total", "kind"), "{{kind}}"),
        ),
        Panel(
            "Age of the rules",
            "s",
            "Since the kernel was last known to hold what it should; the agent checks at each syncPeriod.",
            Query(
                "time() - min by (node) (kubeproxy_sync_proxy_rules_last_timestamp_seconds" + f"{{{OURS}}})",
                "{{node}}",
            ),
        ),
    ),
    "The API": (
        Panel(
            "Requests, by what came of them",
            "reqps",
            "A healthy agent makes few: its watches last minutes.",
            Query(_rate("rest_client_requests_total", "code"), "{{code}}"),
        ),
        Panel(
            "Time to an answer (p99)",
            "s",
            "Until the answer begins.",
            Query(_quantile(0.99, "rest_client_request_duration_seconds", "verb"), "{{verb}}"),
        ),
    ),
    "The kernel and the process": (
        Panel(
            "Elements of sets and maps",
            "short",
            "They grow with Services and endpoints; chains and rules do not.",
            Query(f"sum by (node, ip_family) (nftproxy_elements{{{OURS}}})", "{{node}}, {{ip_family}}"),
        ),
        Panel(
            "Clients that session affinity remembers",
            "short",
            "At most 1,048,576 in each map.",
            Query(f"sum by (node) (nftproxy_affinity_entries{{{OURS}}})", "{{node}}"),
        ),
        Panel("CPU", "percentunit", "Of one core.", Query(_rate("process_cpu_seconds_total", "node"), "{{node}}")),
        Panel(
            "Memory",
            "bytes",
            "Resident.",
            Query(f"max by (node) (process_resident_memory_bytes{{{OURS}}})", "{{node}}"),
        ),
    ),
}


def dashboard_text() -> str:
    """The dashboard as Grafana imports it, with its data source and the nodes to be chosen at the top."""
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "node",
            "label": "Node",
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "$datasource"},
            "query": "label_values(nftproxy_build_info, node)",
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    dashboard = {
        "title": "nftproxy",
        "uid": "nftproxy",
        "tags": ["kubernetes", "nftproxy"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(), 1)],
    }
    return msgspec.json.format(msgspec.json.encode(dashboard)).decode() + "\n"


def _panels() -> Iterator[dict[str, Any]]:
    top = 0
    for title, panels in ROWS.items():
        yield {"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, top, COLUMNS, 1), "panels": []}
        top += 1
        across = min(len(panels), 3)
        width = COLUMNS // across
        for number, panel in enumerate(panels):
            row, column = divmod(number, across)
            yield _chart(panel) | {"gridPos": _place(column * width, top + row * HEIGHT, width, HEIGHT)}
        top += HEIGHT * -(-len(panels) // across)


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _chart(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "$datasource"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": query.expr, "legendFormat": query.legend}
            for number, query in enumerate(panel.queries)
        ],
    }
