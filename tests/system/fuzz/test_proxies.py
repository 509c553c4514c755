"""`nftproxy conformance --proxy`: nftproxy as a process passes, and proxies that are broken on purpose are found out.

The cluster is small and has a Service for each thing that may be broken.  Every fault must be found, with the rule of
docs/semantics.md that it breaks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nftproxy_conformance import session
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.reports.comparison import Comparison, compare, document
from nftproxy_conformance.reports.report import counterexample
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.rules import Rule, rule_of
from nftproxy_conformance.strategies.focused import PLAIN_CONFIG, PLAIN_NODE
from nftproxy_conformance.strategies.worlds import world_of
from nftproxy_conformance.subjects import proxy
from nftproxy_conformance.subjects.plane import ControlPlane
from nftproxy_conformance.subjects.proxy import Proxy, made_up, suited
from nftproxy_conformance.trials.against import OURS, Against
from nftproxy_conformance.trials.features import FEATURES, after_changes
from nftproxy_conformance.trials.own import own_cluster
from nftproxy_conformance.trials.suite import Result
from nftproxy_conformance.trials.trial import Trial, exactly

from nftproxy.config.parse_config import EMPTY_CONFIG
from nftproxy.model.events import Put
from nftproxy.sources.documents import to_yaml
from tests.support import objects
from tests.support.command import nftproxy
from tests.support.factories import service, slice_of, templates
from tests.system.fuzz.effort import IS_LONG

pytestmark = [pytest.mark.skipif(bool(obstacle()), reason=obstacle()), pytest.mark.slow]

CHECKOUT = Path(__file__).resolve().parents[3]
CONFIG = dict(EMPTY_CONFIG) | {"mode": "nftables", "clusterCIDR": "10.1.0.0/16,fd00:1::/48"}
HERE, AWAY = "10.1.0.4@node-a", "10.1.1.4@node-b"

CLUSTER = [
    objects.node("node-a", "192.168.0.2", "fd00:c0a8::2") | {"spec": {"podCIDRs": ["10.1.0.0/24", "fd00:1::/64"]}},
    objects.service("web", {"type": "NodePort"}, vips=["10.96.0.1"], ports=["80:30080"]),
    objects.endpoint_slice("web-1", HERE, AWAY, "10.1.1.5@node-b unready", service="web", ports=["8080"]),
    objects.service("dns", vips=["10.96.0.2"], ports=["53/UDP"]),
    objects.endpoint_slice("dns-1", HERE, AWAY, service="dns", ports=["5353/UDP"]),
    objects.service(
        "local",
        {"type": "LoadBalancer", "externalTrafficPolicy": "Local"},
        vips=["10.96.0.3"],
        ports=["80:30081"],
        status=objects.balancer("203.0.113.3"),
    ),
    objects.endpoint_slice("local-1", HERE, AWAY, service="local", ports=["8080"]),
    objects.service(
        "guarded",
        {"type": "LoadBalancer", "loadBalancerSourceRanges": ["198.51.101.0/24"]},
        vips=["10.96.0.4"],
        ports=["80:30082"],
        status=objects.balancer("203.0.113.4"),
    ),
    objects.endpoint_slice("guarded-1", HERE, AWAY, service="guarded", ports=["8080"]),
    objects.service("sticky", {"sessionAffinity": "ClientIP"}, vips=["10.96.0.5"]),
    objects.endpoint_slice(
        "sticky-1", *(f"10.1.1.{number}@node-b" for number in range(10, 30)), service="sticky", ports=["8080"]
    ),
    objects.service("empty", vips=["10.96.0.6"]),
    objects.endpoint_slice("empty-1", service="empty", ports=["8080"]),
]
"""A Service for each thing that a proxy may do wrong."""


def flawed(fault: str) -> str:
    """The command of nftproxy with a fault (tests/support/flawed.py)."""
    return f"env PYTHONPATH={CHECKOUT} {sys.executable} -m tests.support.flawed {fault} run --config {{config}}"


def damaged(directory: Path, pattern: str, replacement: str) -> str:
    """The command of nftproxy with templates in which every match of a pattern in the table's is replaced."""
    for name, text in templates().items():
        changed = re.sub(pattern, replacement, text, flags=re.MULTILINE) if name == "table.nft.j2" else text
        assert name != "table.nft.j2" or changed != text, "nothing was damaged"
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(changed)
    return f"{session.OURS} --templates {directory}"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server for all proxies here."""
    made = ControlPlane(tmp_path_factory.mktemp("plane"))
    yield made
    made.close()


def tried(plane: ControlPlane, command: str, directory: Path) -> Comparison:
    """The comparison of the cluster with a proxy."""
    cluster = own_cluster(CLUSTER, CONFIG)
    with Trial(Proxy(command, plane, cluster.presentation(), directory)) as trial:
        return compare(trial, cluster)


def broken(comparison: Comparison) -> set[tuple[Rule, str]]:
    """The rules that a proxy has broken and no deviation explains, each with the name of a Service."""
    world = comparison.cluster.world
    oracle = Oracle(world)
    names: dict[str | int, str] = {}
    for each in world.services:
        names |= dict.fromkeys((*each.cluster_ips, *each.load_balancer_ips), each.key.name)
        names |= {port.node_port: each.key.name for port in each.ports}
    return {
        (rule_of(oracle, each.probe, each.seen, each.what), names.get(each.probe.address) or names[each.probe.port])
        for each in comparison.unexplained
    }


FAULTS = {
    "ignores-external-policy": (Rule.POLICY, "local"),
    "forgets-udp": (Rule.PROTOCOLS, "dns"),
    "ignores-source-ranges": (Rule.SOURCE_RANGES, "guarded"),
    "ignores-affinity": (Rule.AFFINITY, "sticky"),
    "serves-the-unready": (Rule.USABLE, "web"),
}
"""Faults with the rule that each breaks, and the Service that shows it."""


def test_faults_are_found_and_named_beside_ours(plane: ControlPlane, tmp_path: Path) -> None:
    """A proxy with five faults breaks these five rules, each with its Service, and nftproxy beside it breaks none."""
    cluster = own_cluster(CLUSTER, CONFIG)
    (tmp_path / "ours").mkdir()
    theirs = Proxy(flawed(",".join(FAULTS)), plane, cluster.presentation(), tmp_path)
    ours = Proxy(session.OURS, plane, cluster.presentation(), tmp_path / "ours", may_deviate=False)
    with Against(theirs, ours) as trial:
        found = compare(trial, cluster)
    assert broken(found) == set(FAULTS.values())
    assert not [each for each in found.differences if each.what.startswith(OURS)]
    assert all(each.ours <= each.expected for each in found.unexplained)
    said = document(found)
    assert said["verdict"] == "fail"
    assert {each["service"] for each in said["differences"]} == {f"shop/{name}" for _, name in FAULTS.values()}
    assert all(each["nftproxy"] != each["seen"] for each in said["differences"] if each["what"] == "went elsewhere")


ALONE = {"ignores-node-ports": (Rule.NODE_PORTS, "web")} | (FAULTS if IS_LONG else {})
"""Faults that are tried alone: by default a fault that the rest would hide."""


@pytest.mark.parametrize("fault", ALONE)
def test_a_fault_alone_breaks_one_rule(plane: ControlPlane, fault: str, tmp_path: Path) -> None:
    """A proxy with a single fault breaks that rule and no other."""
    rule, name = ALONE[fault]
    found = broken(tried(plane, flawed(fault), tmp_path))
    assert (rule, name) in found
    assert {rule for rule, _ in found} == {rule}


def test_a_proxy_that_hides_no_source_and_rejects_nothing_is_found(plane: ControlPlane, tmp_path: Path) -> None:
    """Where nothing is masqueraded and nothing rejected, exactly the rules about these are broken."""
    pattern = r"^    \{\{ match \}\} \{\{ statement \}\}.*$|^    (?:meta l4proto tcp )?reject.*$"
    found = {rule for rule, _ in broken(tried(plane, damaged(tmp_path, pattern, ""), tmp_path))}
    assert found == {Rule.EXTERNAL_MASQUERADING, Rule.MASQUERADING, Rule.HAIRPIN, Rule.REJECTED}


def test_a_deviation_explains_and_is_no_fault(plane: ControlPlane, tmp_path: Path) -> None:
    """A proxy that rejects TCP by an ICMP error, as kube-proxy does, differs by D4 and is not at fault."""
    found = tried(plane, damaged(tmp_path, "^    meta l4proto tcp reject with tcp reset.*$", ""), tmp_path)
    assert found.unexplained == []
    assert {each.deviation for each in found.differences} == {"D4"}
    assert {each.probe.address for each in found.differences} == {"10.96.0.6"}


def test_a_proxy_that_keeps_what_is_gone_is_found(plane: ControlPlane, tmp_path: Path) -> None:
    """Endpoints that are gone and still reached are a change that was not followed.  Before and after are shown."""
    web = service("shop/web")
    before = suited(world_of(PLAIN_NODE, PLAIN_CONFIG, [web, slice_of("shop/web", [HERE, AWAY])]))
    with Trial(Proxy(flawed("keeps-what-is-gone"), plane, made_up(CONFIG), tmp_path)) as trial:
        found = after_changes(exactly, trial, (before, [Put(slice_of("shop/web", [AWAY]))]))
    assert found
    words, *files = re.split(r"^# ---- (.*)\n", counterexample(Result("changes", 1, 1, found)), flags=re.MULTILINE)
    assert "rule:       semantics.md#when-rules-change: " in words
    assert "10.1.0.4:" in words.partition("seen:")[2].partition("\n")[0]
    assert files[::2] == ["before.yaml", "manifests.yaml", "config.yaml"]
    assert ["10.1.0.4" in text for text in files[1:4:2]] == [True, False]


def test_ours_passes(tmp_path: Path) -> None:
    """Nftproxy as any other proxy, on made-up clusters: every feature has its line, and exit 0."""
    (tmp_path / "config.yaml").write_text(to_yaml([CONFIG]))
    chosen = [each.name for each in FEATURES] if IS_LONG else ["ClusterIP"]
    examples = "20" if IS_LONG else "3"
    options = [option for name in chosen for option in ("--feature", name)]
    done = nftproxy(
        "conformance", "--proxy", session.OURS, "--config", tmp_path / "config.yaml", "--examples", examples, *options
    )
    assert (done.status, done.err) == (0, ""), done.out
    for name, line in zip(chosen, done.out.splitlines()[1:-1], strict=True):
        assert re.fullmatch(rf"{re.escape(name)} +pass +{examples} +[1-9][\d,]+", line), line


def test_a_proxy_that_ends_or_never_serves_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A proxy that can't be tried leads to exit status 1, and a message with its last output."""
    monkeypatch.setattr(proxy, "PATIENCE", 0.3)
    (tmp_path / "cluster.yaml").write_text(to_yaml(CLUSTER))
    manifests = "--manifests", tmp_path / "cluster.yaml"
    for command, message in {
        "sh -c 'echo no {config}; exit 3'": r"the proxy ends again and again; .*\n  no /.*config.yaml",
        "sh -c 'echo idle {config}; exec sleep 600'": r"after 0.3 s the proxy does not serve .*198.18.0.1.*\n  idle .*",
    }.items():
        done = nftproxy("conformance", "--proxy", command, *manifests)
        assert (done.status, done.out) == (1, "")
        assert re.fullmatch(rf"error: NFT417: {message}\n", done.err), done.err
