"""The alerts and the dashboard of examples/monitoring, in a real Prometheus that scrapes a real agent.

All durations in rules and ranges are divided by `FACTOR`.  Thresholds that only a large cluster or a long outage would
reach are lowered.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import resource
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from nftproxy_conformance.apiserver import ApiServer
from nftproxy_conformance.apiserver.faults import EndWatch, Fault, Respond
from nftproxy_conformance.lab import Origin, endpoint

from nftproxy.extensions.counts.agent import service_counts
from nftproxy.installed import CODES
from tests.support.command import nftproxy
from tests.support.metrics import COUNTERS, GAUGES, HISTOGRAMS
from tests.support.prometheus import MONITORING, Prometheus, Rule, hastened, program, rules
from tests.system.faults.bench import PERMISSIONS, Bench, endpoints, pod, service, vip
from tests.system.faults.test_health import another_owner
from tests.system.incidents.night_rows import TAKEN, kubeconfig_damaged, leaving
from tests.system.incidents.partial_rows import policy_routed, port_squatted
from tests.system.incidents.rows import Harm

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

AGENT = "tests.system.faults.hasty"
FACTOR = 60
RULES = (MONITORING / "rules.yaml").read_text()
LOWERED = {"> 0.8 * 1048576": "> 0", ") > 30": ") > 0.5", "> 180": "> 5"}
KUBE_PROXY_DOWN = {"alert": "KubeProxyDown", "expr": 'absent(up{job="kube-proxy"} == 1)', "for": "15s"}
"""The rule of kube-prometheus-stack (kubernetes-mixin), with its 15 minutes divided like the durations of our rules."""
AFFINITY = "NftproxyAffinityFull"

TROUBLED = {
    "NftproxyServiceQuarantined",
    "NftproxyConflicts",
    "NftproxyObjectsSkipped",
    "NftproxyRulesDamaged",
    "NftproxyOtherProxy",
    "NftproxyConfigurationRejected",
    "NftproxyApiErrors",
    "NftproxyOutOfTouch",
    "NftproxySlowProgramming",
    "NftproxyNotForwarding",
}
"""The alerts that fire while a running agent meets all faults at once."""


class Imagined(NamedTuple):
    """An alert, the series by which it fires with these labels, and similar series by which it doesn't.

    A series has 40 samples, one each minute, in promtool's notation.
    """

    alert: str
    severity: str
    labels: str
    bad: dict[str, str]
    good: dict[str, str]

    def test(self, series: dict[str, str], labels: str | None) -> dict[str, Any]:
        """A test of promtool's: after 40 minutes the alert fires with these labels, or doesn't fire."""
        firing = f'ALERTS{{alertname="{self.alert}", alertstate="firing", severity="{self.severity}", {labels}}}'
        expected = [] if labels is None else [{"labels": firing, "value": 1}]
        query = f'ALERTS{{alertname="{self.alert}", alertstate="firing"}}'
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{"expr": query, "eval_time": "40m", "exp_samples": expected}],
        }


UNSERVED = 'nftproxy_service_unserved_packets_total{node="a", exported_namespace="shop", service="web", reason="%s"}'
WARNINGS = 'nftproxy_warnings_total{node="a", code="%s"}'
AGENT_UP = 'up{job="kube-proxy", container="nftproxy", node="a"}'
IMAGINED = [
    Imagined(
        "NftproxyNoAgent",
        "warning",
        'node="b"',
        {AGENT_UP: "1x40", 'kube_node_info{node="a"}': "1x40", 'kube_node_info{node="b"}': "1x40"},
        {
            AGENT_UP: "0x40",
            'kube_node_info{node="a"}': "1x40",
            'kube_node_info{node="w", os_image="Windows 11"}': "1x40",
        },
    ),
    Imagined(
        "NftproxyConntrackFull",
        "warning",
        'node="a"',
        {'nftproxy_conntrack_entries{node="a"}': "76x40", 'nftproxy_conntrack_limit{node="a"}': "100x40"},
        {'nftproxy_conntrack_entries{node="a"}': "75x40", 'nftproxy_conntrack_limit{node="a"}': "100x40"},
    ),
    Imagined(
        "NftproxyListingUnusable",
        "critical",
        'node="a", resource="services"',
        {'nftproxy_unusable_listing_seconds{node="a", resource="services"}': "0+60x40"},
        {'nftproxy_unusable_listing_seconds{node="a", resource="services"}': "0x36 0+60x4"},
    ),
    Imagined(
        "NftproxyUnhealthy",
        "warning",
        'node="a"',
        {'nftproxy_healthy{node="a", path="healthz"}': "0x40"},
        {'nftproxy_healthy{node="a", path="healthz"}': "1x40", 'nftproxy_healthy{node="a", path="livez"}': "0x40"},
    ),
    Imagined(
        "NftproxyFault",
        "warning",
        'node="a", code="NFT010"',
        {'nftproxy_faults{node="a", code="NFT010"}': "1x40"},
        {'nftproxy_faults{node="a", code="NFT509"}': "1x40"},
    ),
    Imagined(
        "NftproxyWarnings",
        "warning",
        'node="a", code="NFT014"',
        {WARNINGS % "NFT014": "_x35 1x4"},
        {WARNINGS % "NFT014": "1x40", WARNINGS % "NFT018": "0+1x40"},
    ),
    Imagined(
        "NftproxyWarnings",
        "warning",
        'node="a", code="NFT412"',
        {WARNINGS % "NFT412": "3x35 4x4"},
        {WARNINGS % "NFT412": "_x20 1x20"},
    ),
    Imagined(
        "NftproxySilentEndpoints",
        "warning",
        'node="a", ip_family="IPv4"',
        {'nftproxy_silent_endpoints{node="a", ip_family="IPv4"}': "1x40"},
        {'nftproxy_silent_endpoints{node="a", ip_family="IPv4"}': "1x35 0x5"},
    ),
    Imagined(
        "NftproxyPacketsUnserved",
        "warning",
        'node="a", exported_namespace="shop", service="web", reason="race"',
        {UNSERVED % "race": "0+1x40"},
        {UNSERVED % "race": "0x5 9x34", UNSERVED % "no_endpoint": "0+1x40"},
    ),
]


@pytest.fixture(scope="module")
def prometheus(shared_bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus beside the agent, with shortened durations."""
    text = hastened(RULES, FACTOR)
    for usual, lowered in LOWERED.items():
        assert usual in text
        text = text.replace(usual, lowered)
    groups = [{"name": "kube-prometheus-stack", "rules": [KUBE_PROXY_DOWN]}]
    with Prometheus(shared_bench.lab.node, tmp_path_factory.mktemp("prometheus"), text, groups) as made:
        yield made


def test_the_rules_are_good(tmp_path: Path) -> None:
    """Prometheus' own tool accepts the rules, and this file's tests provoke every alert, some with invented series."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": yaml.safe_load(RULES)["spec"]["groups"]}))
    subprocess.run([program("promtool"), "check", "rules", path], check=True, stdout=subprocess.PIPE)
    others = {"NftproxyKernelRefuses", "NftproxyRulesStale", "NftproxyFileDescriptors", "NftproxyDown"}
    tried = TROUBLED | others | {AFFINITY, "NftproxyNotReady"}
    assert {each.name for each in rules(RULES)} == tried | {each.alert for each in IMAGINED}


def test_alerts_by_invented_series(tmp_path: Path) -> None:
    """Alerts that take a larger cluster fire on series that promtool invents, and not on healthy series."""
    tests = [test for each in IMAGINED for test in (each.test(each.bad, each.labels), each.test(each.good, None))]
    assert promtool_finds(tmp_path, tests) == ""


def test_queries_by_invented_series(tmp_path: Path) -> None:
    """Of three agents the dashboard names the one that differs, and it has the packets that are dropped by reason."""
    agent, dropped = (
        'container="nftproxy", node="%s", version="%s"',
        'container="nftproxy", node="a", reason="no_endpoint"',
    )
    series = {f"nftproxy_build_info{{{agent % each}}}": "1x60" for each in (("a", "1"), ("b", "1"), ("c", "2"))}
    series[f"nftproxy_service_unserved_packets_total{{{dropped}}}"] = "0+3x60"
    (differs,) = (each for each in queries() if " unless " in each)
    (drops,) = (each for each in queries() if "unserved" in each)
    wanted = ((differs, f"nftproxy_build_info{{{agent % ('c', '2')}}}", 1), (drops, '{reason="no_endpoint"}', 3))
    test = {
        "interval": "1s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": "1m", "exp_samples": [{"labels": labels, "value": value}]}
            for query, labels, value in wanted
        ],
    }
    assert promtool_finds(tmp_path, [test]) == ""


def promtool_finds(directory: Path, tests: list[dict[str, Any]]) -> str:
    """What promtool finds wrong with the rules by these tests, "" for nothing."""
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": yaml.safe_load(RULES)["spec"]["groups"]}))
    (directory / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    command = [str(program("promtool")), "test", "rules", "tests.yaml"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.parametrize("half_minutes", [1, 20])
def test_the_alert_for_an_outage_fires_during_it(
    bench: Bench, server: ApiServer, tmp_path: Path, half_minutes: int
) -> None:
    """On the series of a real outage the alert fires while it lasts, never after it, and not for a short outage."""
    well = samples(bench)
    server.stop()
    bench.wait_until(lambda: bench.metric('nftproxy_faults{code="NFT509"}') == 1)
    away = samples(bench)
    server.start()
    bench.wait_until(lambda: bench.metric('nftproxy_faults{code="NFT509"}') == 0)
    phases = [(well, 20), (away, half_minutes), (samples(bench), 60)]
    expected = {"10m": False, "14m": half_minutes == 20, "21m": False, "25m": False, "35m": False}
    query = 'count(ALERTS{alertname=~"NftproxyApiErrors|NftproxyOutOfTouch", alertstate="firing"})'
    assert promtool_finds(tmp_path, [recorded(phases, query, expected)]) == ""


@pytest.mark.parametrize(
    ("fault", "damage", "alert", "code"),
    [
        ("NFT009", port_squatted, "NftproxyFault", "NFT009"),
        ("NFT010", TAKEN, "NftproxyFault", "NFT010"),
        ("NFT018", policy_routed, "NftproxyFault", "NFT018"),
        ("NFT107", kubeconfig_damaged, "NftproxyFault", "NFT107"),
        ("503", leaving, "NftproxyUnhealthy", ""),
    ],
)
def test_the_alert_for_a_fault_of_the_node_fires_during_it(
    bench: Bench, server: ApiServer, tmp_path: Path, fault: str, damage: Harm, alert: str, code: str
) -> None:
    """On the series of a real agent, recorded while it has a fault, the fault's alert fires, and only meanwhile."""
    routed = (service(30), endpoints(30, "10.1.78.5"))
    server.put(*routed)
    bench.wait_until_right()
    phases = [(samples(bench), 20)]
    with damage(bench):
        bench.wait_until(lambda: has_fault(bench, fault))
        phases.append((samples(bench), 40))
    bench.wait_until(lambda: not has_fault(bench, fault))
    phases.append((samples(bench), 40))
    for each in routed:
        server.delete(each["kind"], each["metadata"]["namespace"], each["metadata"]["name"])
    query = f'count(ALERTS{{alertname="{alert}", code="{code}", alertstate="firing"}})'
    expected = {"10m": False, "29m": True, "31m": False, "45m": False}
    assert promtool_finds(tmp_path, [recorded(phases, query, expected)]) == ""


def has_fault(bench: Bench, fault: str) -> bool:
    """Whether the agent's metrics have a fault at present: a code, or 503 for the status of /healthz."""
    with contextlib.suppress(ConnectionRefusedError):  # some damage starts the agent again
        if fault == "503":
            return bench.metric('nftproxy_healthy{path="healthz"}') == 0
        return bench.metric(f'nftproxy_faults{{code="{fault}"}}') > 0
    return False


def recorded(phases: list[tuple[dict[str, str], int]], query: str, expected: dict[str, bool]) -> dict[str, Any]:
    """A test of promtool's with the samples of each phase, repeated each half minute, so many times."""
    names = {name for phase, _ in phases for name in phase}
    series = [
        {"series": name, "values": " ".join(phase.get(name, "stale") for phase, count in phases for _ in range(count))}
        for name in sorted(names)
    ]
    checks = [
        {"expr": query, "eval_time": moment, "exp_samples": [{"value": 1}] if fires else []}
        for moment, fires in expected.items()
    ]
    return {"interval": "30s", "input_series": series, "promql_expr_test": checks}


def samples(bench: Bench) -> dict[str, str]:
    """The agent's present samples about requests and faults, as a scrape of node a has them."""
    wanted = ("rest_client_requests_total", "nftproxy_faults", "nftproxy_healthy", "nftproxy_last_word_age_seconds")
    lines = (line.rpartition(" ") for line in bench.ask("/metrics", 10249).body.decode().splitlines())
    return {f'{name[:-1]}, node="a"}}': value for name, _, value in lines if name.startswith(wanted)}


def test_the_rules_name_what_there_is() -> None:
    """Each metric of our own in the rules exists, and each code."""
    ours = {row.header[0] for row in (*COUNTERS, *GAUGES, *HISTOGRAMS)} | service_counts.HELP.keys()
    named = {name for rule in rules(RULES) for name in re.findall(r"\bnftproxy_\w+", rule.expr)}
    assert named
    assert named - ours == set()
    codes = set(re.findall(r"\bNFT\d+", RULES))
    assert "NFT624" in codes
    assert codes <= set(CODES)


def test_each_alert_has_a_command() -> None:
    """Each alert's runbook is a command that there is, and its code has an article."""
    alerts = [rule for group in yaml.safe_load(RULES)["spec"]["groups"] for rule in group["rules"]]
    for each in alerts:
        program, command, *arguments = each["annotations"]["runbook"].split()
        assert (program, nftproxy(command, "--help").status) == ("nftproxy", 0), each["alert"]
        if command == "explain" and arguments[0].startswith("NFT"):
            assert nftproxy(command, *arguments).status == 0, each["alert"]


def test_the_pod_monitor_finds_the_agents() -> None:
    """The PodMonitor selects the pods of `nftproxy manifests --monitoring`, by their labels and the port's name."""
    options = ["--for", "kubeadm", "--api-server", "https://api.example:6443", "--cluster-cidr", "10.244.0.0/16"]
    output = nftproxy("manifests", *options, "--monitoring").out
    (pods,) = [each["spec"]["template"] for each in yaml.safe_load_all(output) if each["kind"] == "DaemonSet"]
    monitor = yaml.safe_load((MONITORING / "podmonitor.yaml").read_text())["spec"]
    (container,) = pods["spec"]["containers"]
    assert monitor["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == ["metrics"]
    assert {each["name"]: each["containerPort"] for each in container["ports"]}["metrics"] == 10249
    assert container["name"] == "nftproxy"


def test_a_healthy_agent_fires_no_alert(prometheus: Prometheus) -> None:
    """No alert fires once the agent has been healthy for as long as rules look back."""
    prometheus.wait_until(lambda: not prometheus.alerts(), "no alert is left from the start")
    time.sleep(10 * 60 / FACTOR)
    assert prometheus.firing() == set()


def test_each_fault_fires_its_alert(prometheus: Prometheus, bench: Bench, server: ApiServer) -> None:
    """Each fault that an agent survives fires its alert and shows in the dashboard, and ends with its cause."""
    server.put(*TROUBLESOME)
    bench.lab.node.run(["nft", "add", "table", "ip", "kube-proxy"])
    bench.config_map.update("{")
    for action in (Respond(500), EndWatch()):
        server.faults.add(Fault(action, resource="servicecidrs", count=None))
    bench.wait_until(lambda: bench.lab.connect(Origin.POD, vip(STICKY), 80) == endpoint(pod(STICKY), 8080))
    prometheus.wait_until(lambda: prometheus.query("nftproxy_elements"), "there are figures of families")
    bench.lab.node.sysctl({"ipv4/ip_forward": "0"})
    troubled = TROUBLED | ({AFFINITY} if prometheus.query("nftproxy_affinity_entries") else set())

    def trouble() -> bool:
        bench.lab.node.run(["nft", "flush", "table", "ip", "nftproxy"])
        server.put(late_slice())
        time.sleep(1)
        return prometheus.firing() >= troubled

    prometheus.wait_until(trouble, f"these fire: {troubled}")
    assert [each for each in queries() if not is_of_others(each) and not prometheus.query(each)] == []
    assert "KubeProxyDown" not in prometheus.alerts()
    imagined = {selector for each in IMAGINED for selector in (*each.bad, *each.good)}
    assert [each for each in imagined if not is_exposed(prometheus, each)] == []
    assert [each.name for each in rules(RULES) if each.name in TROUBLED and not has_labels(prometheus, each)] == []
    server.faults.clear()
    bench.lab.node.sysctl({"ipv4/ip_forward": "1"})
    for each in TROUBLESOME:
        server.delete(each["kind"], each["metadata"]["namespace"], each["metadata"]["name"])
    bench.lab.node.run(["nft", "delete", "table", "ip", "kube-proxy"])
    bench.config_map.update(yaml.safe_dump(bench.configuration))
    bench.wait_until_right()
    prometheus.wait_until(lambda: not prometheus.alerts().keys() - {AFFINITY}, "all is well again")


def test_a_kernel_that_refuses_is_seen(prometheus: Prometheus, bench: Bench, server: ApiServer) -> None:
    """While another program owns the table, the alerts for kernel refusals and for stale rules fire."""
    wanted = {"NftproxyKernelRefuses", "NftproxyRulesStale"}
    numbers = itertools.count(300)

    def change() -> bool:
        server.put(service(next(numbers)))
        return prometheus.firing() >= wanted

    with another_owner(bench.lab):
        prometheus.wait_until(change, f"these fire: {wanted}")
    bench.wait_until_right()
    prometheus.wait_until(lambda: not prometheus.alerts().keys() & wanted, "the kernel takes it again")


def test_a_lack_of_files_is_seen(prometheus: Prometheus, bench: Bench) -> None:
    """The alert for file descriptors fires while an agent is close to its limit."""
    before = resource.prlimit(bench.process_id, resource.RLIMIT_NOFILE)
    few = math.ceil(len([*Path(f"/proc/{bench.process_id}/fd").iterdir()]) * 1.15)
    resource.prlimit(bench.process_id, resource.RLIMIT_NOFILE, (few, before[1]))
    prometheus.wait_until(lambda: "NftproxyFileDescriptors" in prometheus.firing(), "files are few")
    resource.prlimit(bench.process_id, resource.RLIMIT_NOFILE, before)
    prometheus.wait_until(lambda: "NftproxyFileDescriptors" not in prometheus.alerts(), "there are enough again")


def test_an_agent_that_is_gone_is_seen(prometheus: Prometheus, bench: Bench, server: ApiServer) -> None:
    """The alerts for a missing agent fire, then the alert for a waiting agent, and none once it is ready."""
    bench.stop()
    prometheus.wait_until(lambda: prometheus.firing() >= {"NftproxyDown", "KubeProxyDown"}, "the agent is missed")
    server.rbac = [each for each in PERMISSIONS if each[1] != "nodes"]
    bench.start()
    prometheus.wait_until(lambda: "NftproxyNotReady" in prometheus.firing(), "the agent waits for something")
    server.rbac = PERMISSIONS
    bench.wait_until_right()
    prometheus.wait_until(lambda: not prometheus.alerts().keys() - {AFFINITY}, "all is well again")


def is_exposed(prometheus: Prometheus, selector: str) -> bool:
    """Whether an imagined series has the labels of the agent's series, and otherwise some that Prometheus adds.

    An agent that doesn't use a feature lacks its series, which are compared with their declaration.
    """
    name, labels = selector.partition("{")[0], set(re.findall(r"(\w+)=", selector))
    declared = {row.header[0]: set(row.labels) for row in (*COUNTERS, *GAUGES)}
    added = {"__name__", "job", "instance", "node", "namespace", "pod", "container", "endpoint"}
    found = [set(each["metric"]) - added for each in prometheus.query(name)] or [declared.get(name, labels)]
    return any(each <= labels <= each | added for each in found)


def has_labels(prometheus: Prometheus, rule: Rule) -> bool:
    """Whether the agent's series have all labels by which an alert that fires is grouped."""
    (text,) = re.findall(r"by \(([^)]*)\)", rule.expr)
    labels = set(text.split(", ")) - {"le"}
    return all(labels <= each["metric"].keys() for each in prometheus.query(f'ALERTS{{alertname="{rule.name}"}}'))


STICKY = 20
TROUBLESOME = [
    service(STICKY, sessionAffinity="ClientIP"),
    endpoints(STICKY),
    service(21, externalIPs=["203.0.114.9"]),
    service(22, externalIPs=["203.0.114.9"]),
    service(23, type="LoadBalancer", loadBalancerSourceRanges=[f"10.{n // 256}.{n % 256}.0/24" for n in range(1001)]),
    service(24, ports="80"),
]
"""A Service with affinity, two Services with the same address, a Service beyond a limit, and an invalid Service."""


def late_slice() -> dict[str, Any]:
    """An EndpointSlice that differs at each call, and whose annotation dates its change 12 s ago."""
    changed = datetime.now(UTC) - timedelta(seconds=12)
    made = endpoints(1, f"10.1.1.{100 + changed.second}", pod(1))
    made["metadata"]["annotations"] = {"endpoints.kubernetes.io/last-change-trigger-time": changed.isoformat()}
    return made


def queries() -> list[str]:
    """The dashboard's queries, as Grafana sends them for all nodes."""
    known = {"$node": ".*", "$__rate_interval": "10s", "$__range": "1h"}
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [re.sub(r"\$\w+", lambda match: known[match[0]], expr) for expr in asked]


def is_of_others(query: str) -> bool:
    """Whether this agent gives no answer: a single agent differs from no other, and this agent counts no drops."""
    return " unless " in query or "unserved" in query
