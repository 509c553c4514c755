"""A real Prometheus, Debian's, that scrapes an agent and evaluates the rules of examples/monitoring."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml
from nftproxy_conformance.lab import Namespace
from nftproxy_conformance.lab.topology import NODE_NAME

from tests.support.debian_packages import unpacked
from tests.support.processes import KilledAtEnd
from tests.support.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
MONITORING = CHECKOUT / "examples" / "monitoring"
PATIENCE = 120.0
"""Seconds for something that takes a few on an idle machine."""

PORT = 9090
SCRAPE = "1s"
"""How often it looks, and how long it waits for an answer: as much as rules in a hurry allow."""


def program(name: str) -> Path:
    """`prometheus` or `promtool`, unpacked when first asked for."""
    return unpacked("prometheus") / "usr" / "bin" / name


class Rule(NamedTuple):
    """An alert, as the file has it."""

    name: str
    expr: str
    pending: str
    severity: str


def rules(text: str) -> list[Rule]:
    """The alerts of a PrometheusRule."""
    (group,) = yaml.safe_load(text)["spec"]["groups"]
    return [Rule(each["alert"], each["expr"], each["for"], each["labels"]["severity"]) for each in group["rules"]]


def hastened(text: str, factor: int) -> str:
    """The rules with all their durations divided: for minutes there is no time."""

    def divided(match: re.Match[str]) -> str:
        milliseconds = int(match[1]) * 60_000 // factor
        return f"{milliseconds}ms"

    return re.sub(r"\b(\d+)m\b", divided, text)


class Prometheus(KilledAtEnd):
    """Prometheus as a process, which scrapes an agent.  A context manager.

    Args:
        namespace: the network of the process.
        directory: for its files.
        rule_text: a PrometheusRule.
        more: groups of rules beside it.
    """

    def __init__(
        self,
        namespace: Namespace,
        directory: Path,
        rule_text: str,
        more: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._namespace = namespace
        self._directory = directory
        groups = [*yaml.safe_load(rule_text)["spec"]["groups"], *more]
        (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
        (directory / "prometheus.yaml").write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
                    "rule_files": ["rules.yaml"],
                    "scrape_configs": [{"job_name": "any", "static_configs": [_target(NODE_NAME, "127.0.0.1")]}],
                }
            )
        )

    def __enter__(self) -> Self:
        command = [str(program("prometheus")), f"--config.file={self._directory}/prometheus.yaml"]
        command += [f"--storage.tsdb.path={self._directory}/data", f"--web.listen-address=127.0.0.1:{PORT}"]
        with (self._directory / "prometheus.log").open("w") as log:
            self._process = self._namespace.popen(command, stdout=log, stderr=log)
        self.wait_until(lambda: self.query("up == 1"), "it scrapes")
        return self

    def query(self, expr: str) -> list[Any]:
        """The result of a query in PromQL, empty while the server starts."""
        found: list[Any] = self._ask("query", query=expr).get("result", [])
        return found

    def alerts(self) -> dict[str, str]:
        """The alerts that are "pending" or "firing", by name: "firing" if any alert of a name is."""
        found = self._ask("alerts").get("alerts", [])
        return {
            each["labels"]["alertname"]: each["state"]
            for each in sorted(found, key=lambda each: each["state"] != "pending")
        }

    def firing(self) -> set[str]:
        """The alerts that fire."""
        return {name for name, state in self.alerts().items() if state == "firing"}

    def wait_until(self, condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        """Wait for something to be so.

        Raises:
            AssertionError: it isn't, after `patience` seconds.
        """
        wait_until(condition, lambda: f"not so: {what}; {self.alerts()}\n{self._log()}", patience=patience, pause=0.1)

    def _ask(self, what: str, **parameters: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{PORT}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"

        def get() -> Any:
            try:
                with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                    return json.load(answer)["data"]
            except OSError:
                return {}

        found = self._namespace.call(get)
        assert isinstance(found, dict)
        return found

    def _log(self) -> str:
        return (self._directory / "prometheus.log").read_text()[-3000:]


def _target(node: str, address: str) -> dict[str, Any]:
    """An agent, with the labels that the operator's PodMonitor gives it."""
    monitor = yaml.safe_load((MONITORING / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    found = {"__meta_kubernetes_pod_node_name": node}
    labels = {
        "namespace": "kube-system",
        "pod": "nftproxy-x7k2p",
        "container": "nftproxy",
        "endpoint": endpoint["port"],
    }
    for rule in endpoint["relabelings"]:
        labels[rule["targetLabel"]] = rule.get("replacement") or found["".join(rule["sourceLabels"])]
    return {"targets": [f"{address}:10249"], "labels": labels}
