"""`nftproxy conformance`: our templates pass, and damaged templates fail, with files that show the damage."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import yaml
from hypothesis import given
from msgspec import structs
from nftproxy_conformance.lab import DROPPED, TCP_RESET, Lab, LabError, Origin, Outcome, Probe, is_even, obstacle
from nftproxy_conformance.reports import report
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.specification.rules import Rule, rule_of
from nftproxy_conformance.specification.world import World
from nftproxy_conformance.strategies import focused, quick, worlds
from nftproxy_conformance.strategies.probes import MORE_IPS
from nftproxy_conformance.subjects.manifests import configuration, manifests, objects, settings
from nftproxy_conformance.subjects.plane import marker
from nftproxy_conformance.subjects.proxy import suited
from nftproxy_conformance.subjects.rendered import Rendered
from nftproxy_conformance.trials import features, suite
from nftproxy_conformance.trials.features import FEATURES, NOTHING_REACHED
from nftproxy_conformance.trials.finding import Finding
from nftproxy_conformance.trials.suite import Result
from nftproxy_conformance.trials.trial import Difference, Trial, but_for_sources

from nftproxy.commands import cli
from nftproxy.extensions.external_addresses.fields import Ping
from nftproxy.installed_fields import FIELDS
from nftproxy.kernel.capabilities import probe as probe_capabilities
from nftproxy.kernel.ruleset_check import CheckResult
from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.objects import Node, Service
from nftproxy.model.settings import Config, NodePortAddresses
from nftproxy.rules.renderer import Renderer
from nftproxy.sources.config_documents import load_config
from nftproxy.sources.files import load
from nftproxy.templates_dir import templates_dir
from tests.support.command import nftproxy
from tests.support.factories import INSTALLED_KINDS, config_of, full_config, networks, renderer, templates
from tests.system.fuzz.effort import IS_LONG

needs_lab = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

# Files


@pytest.mark.slow
@quick()
@given(worlds.blind_worlds)
def test_manifests_say_all_of_a_world(tmp_path_factory: pytest.TempPathFactory, world: World) -> None:
    """The manifests of a world parse to the same world, without warnings."""
    directory = tmp_path_factory.mktemp("world")
    read = written(directory, manifests(world), configuration(world.config))
    assert read == world


@pytest.mark.parametrize(
    ("asked", "given_to_proxies"),
    [
        (NodePortAddresses(localhost=frozenset(Family)), ["primary"]),
        (NodePortAddresses(primary=False, localhost=frozenset(Family)), ["primary"]),
        (NodePortAddresses(networks=networks(["203.0.113.0/24"]), localhost=frozenset(Family)), ["203.0.113.0/24"]),
    ],
)
def test_a_proxy_gets_only_what_kube_proxy_takes(asked: NodePortAddresses, given_to_proxies: list[str]) -> None:
    """Its validation of 1.36 wants "primary" alone, or CIDRs.  It knows nothing of nftproxy's own settings."""
    world = focused.sample()
    config = config_of(world.config, node_port_addresses=asked, ping=Ping.ANSWER, service_counts=True)
    shown = settings(suited(world._replace(config=config)).config)
    assert shown["nodePortAddresses"] == given_to_proxies
    assert shown["nftproxy"] == settings(Config())["nftproxy"]


def test_services_have_the_families_of_their_addresses() -> None:
    """Each Service names the families of its ClusterIPs, as an API server does: kube-proxy serves no other family."""
    services = [each["spec"] for each in (*objects(focused.sample()), *marker(1024)) if each["kind"] == "Service"]
    assert len(services) > 2
    for spec in services:
        assert spec["ipFamilies"] == ["IPv6" if ":" in each else "IPv4" for each in spec["clusterIPs"]]


def written(directory: Path, manifest: str, config: str) -> World:
    """The world that files tell of, as `render` reads them."""
    (directory / "manifests.yaml").write_text(manifest)
    (directory / "config.yaml").write_text(config)
    found = load([directory / "manifests.yaml"], INSTALLED_KINDS)
    notes = {Code.ONE_FAMILY_GUARDED}  # a note about a world that was meant so
    assert [each for each in found.problems if each.code not in notes] == []
    assert found.ignored == []
    (node,) = (each for each in found.objects if isinstance(each, Node))
    parsed, warnings = load_config(directory / "config.yaml", FIELDS)
    assert warnings == []
    objects = [structs.replace(each, faults=()) if isinstance(each, Service) else each for each in found.objects]
    return worlds.world_of(node, parsed, objects, knows_interfaces=False)


# Damage


class Damage(NamedTuple):
    """A damage of a template: every match of a pattern is replaced."""

    template: str
    pattern: str
    replacement: str

    def texts(self) -> dict[str, str]:
        """All templates, one of them damaged."""
        text = templates()[self.template]
        damaged = re.sub(self.pattern, self.replacement, text, flags=re.MULTILINE)
        assert damaged != text, "nothing was damaged"
        return {**templates(), self.template: damaged}

    def write_to(self, directory: Path) -> None:
        """Write all templates as files."""
        for template, text in self.texts().items():
            (directory / template).parent.mkdir(parents=True, exist_ok=True)
            (directory / template).write_text(text)


TABLE, ENDPOINTS, DRAW = "table.nft.j2", "endpoints.nft.j2", "draw.nft.j2"
SCREEN = "extensions/client_limits/shared.nft.j2"
EXTERNAL = "extensions/external_addresses/table.nft.j2"
DAMAGES = {
    "ClusterIP": Damage(TABLE, "map @services goto draw comment", "map @short-circuit goto draw comment"),
    "no endpoints: rejected": Damage(TABLE, "^    reject comment", "    drop comment"),
    "loadBalancerSourceRanges": Damage(TABLE, r"\{\{ endings\.not_admitted.*", "accept"),
    "session affinity": Damage(ENDPOINTS, "meta l4proto {{ protocol }} update .*", ""),
    "hairpin": Damage(TABLE, ".* @hairpin goto.*", ""),
    "pings": Damage(EXTERNAL, ".* goto ping-inside comment.*", ""),
    "closed external addresses": Damage(EXTERNAL, ".*daddr @{{ set }} fib.*", ""),
    "uniform choice": Damage(DRAW, "{{ draw }}", "{{ draw | replace('mod ' ~ count, 'mod ' ~ (count + 1)) }}"),
}
"""Damages by the feature that must show them."""
if IS_LONG:
    DAMAGES |= {
        "node ports, nodePortAddresses": Damage(TABLE, "{{ match }} jump nodeports .*", ""),
        "internalTrafficPolicy Local": Damage(TABLE, r"@fronts \{\{ endings.unserved.*", "@fronts accept"),
        "externalTrafficPolicy Local": Damage(TABLE, "fib saddr type local (.* map @)", r"\1"),
        "denied and source ranges": Damage(SCREEN, "@denied goto drop-denied", "@denied accept"),
        "masquerading, detectLocalMode": Damage(TABLE, ".*daddr @cluster-ips {{ source }} meta mark.*", ""),
        "unused ClusterIPs and ports": Damage(TABLE, ".*daddr @service-cidrs drop .*", ""),
    }


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab to try counterexamples in."""
    if why := obstacle():
        pytest.skip(why)
    with Lab() as made:
        yield made


SLOW = {"pings", "session affinity", "uniform choice", "hairpin", "closed external addresses"}
"""The damage that takes many connections to find, or that the tests of packets find too."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in DAMAGES]
)
def test_damage_is_found_and_shown(name: str, lab: Lab, tmp_path: Path) -> None:
    """The damaged feature fails, and the files of its counterexample, rendered and tried, show the fault."""
    DAMAGES[name].write_to(tmp_path)
    (result,) = results(Renderer(DAMAGES[name].texts()), name)
    assert result.finding, "the damage was not found"
    *_, manifest, config = re.split(r"^# ---- .*\n", report.counterexample(result), flags=re.MULTILINE)
    written(tmp_path, manifest, config)
    files = tmp_path / "manifests.yaml", "--config", tmp_path / "config.yaml"
    done = nftproxy("render", *files, "--node", "node-a", "--templates", tmp_path)
    assert [line for line in done.err.splitlines() if str(Code.ONE_FAMILY_GUARDED) not in line] == []
    lab.reset()
    for address in MORE_IPS:
        lab.add_address(address)
    lab.load(done.out)
    assert shows(result.finding.difference, lab.connect_many([result.finding.difference.probe] * 1000))


def results(renderer: Renderer, *names: str) -> list[Result]:
    """The results of some features."""
    chosen = [feature for feature in FEATURES if feature.name in names]
    with Trial(Rendered(renderer, probe_capabilities().capabilities)) as trial:
        return list(suite.run(trial, examples=10, features=chosen))


def shows(difference: Difference, outcomes: list[Outcome]) -> bool:
    """Whether connections go wrong in the way that was found."""
    expected = difference.expected
    if wrong := difference.seen - expected:
        return any(outcome in wrong or but_for_sources(outcome) in wrong for outcome in outcomes)
    if difference.what == "was not remembered":
        return len(set(outcomes)) > 1
    return not is_even(outcomes, [each.endpoint for each in expected if each.endpoint])


@pytest.mark.slow
def test_damage_shows_where_it_is_only() -> None:
    """Undamaged features pass."""
    if why := obstacle():
        pytest.skip(why)
    damaged = Renderer(DAMAGES["hairpin"].texts())
    found = results(damaged, "ClusterIP", "masquerading, detectLocalMode", "hairpin", "topology hints")
    assert [result.feature for result in found if not result.ok] == ["hairpin"]


def test_refusals_are_judged_only_of_endpoints_that_are_reached() -> None:
    """If no connection reaches an endpoint, the feature about refusals fails."""
    if why := obstacle():
        pytest.skip(why)
    damage = Damage(TABLE, "jump services comment", "drop comment")
    (result,) = results(Renderer(damage.texts()), "failover after refusals")
    assert result.finding
    assert result.finding.difference.what == NOTHING_REACHED


@pytest.mark.slow
def test_a_silent_endpoint_that_is_not_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that goes on sending clients to a silent endpoint breaks a rule of its own."""
    if why := obstacle():
        pytest.skip(why)
    monkeypatch.setattr(Rendered, "leave_out", lambda *_: None)
    monkeypatch.setattr(features, "DETECTION_SECONDS", 0.0)
    (result,) = results(renderer(), "failover from silent endpoints")
    assert result.finding
    difference, world = result.finding.difference, result.finding.worlds[-1]
    assert rule_of(Oracle(world), difference.probe, difference.seen, difference.what) is Rule.SILENT


def test_a_lab_that_fails_by_chance_is_no_pass(lab: Lab) -> None:
    """An error of the machine that doesn't come again ends the run, rather than the feature's search."""
    errors = iter([LabError("too busy")])

    def judge(_trial: Trial, _world: World) -> None:
        for error in errors:
            raise error

    feature = FEATURES[0]._replace(judge=judge)
    with Trial(mock.Mock(lab=lab)) as trial, pytest.raises(LabError, match="too busy"):
        list(suite.run(trial, examples=3, features=[feature]))


# The command


@needs_lab
def test_our_templates_pass() -> None:
    """Each feature has its line, with its counts.  All pass, and standard error stays empty in a pipe."""
    done = nftproxy("conformance", "--examples", "1")
    assert done.status == 0, done.out
    assert done.err == ""
    lines = done.out.splitlines()
    assert re.fullmatch(r"loaded in .*: \d+ sets, .*", lines[0])
    assert lines[1].split() == ["feature", "result", "clusters", "connections"]
    for feature, line in zip(FEATURES, lines[2:-1], strict=True):
        assert re.fullmatch(rf"{re.escape(feature.name)} +pass +1 +[1-9][\d,]*", line), line
    assert re.fullmatch(rf"{len(FEATURES)} of {len(FEATURES)} features pass, [\d,]+ connections", lines[-1])


@needs_lab
def test_a_failure_is_a_line_and_a_counterexample(tmp_path: Path) -> None:
    """Status 1, the failed features, and a counterexample of the first with expected and seen outcomes."""
    DAMAGES["ClusterIP"].write_to(tmp_path)
    with mock.patch.object(suite, "SHRINKING", 3.0):
        features = "--feature", "ClusterIP", "--feature", "external IPs"
        done = nftproxy("conformance", "--examples", "1", *features, "--templates", tmp_path)
    assert done.status == 1
    assert done.err == ""
    assert re.search(r"^ClusterIP +FAIL +1 ", done.out, re.MULTILINE)
    shown = done.out.partition("ClusterIP, a counterexample:\n")[2]
    assert re.match(
        r"  connection: (tcp|udp) from \S+ \([a-z ]+\) to \S+ port \d+\n"
        r"  expected:   reaches \S+.*\n"
        r"  seen:       is dropped\n"
        r"  in short:   went elsewhere\n"
        r"  rule:       semantics.md#virtual-addresses: .*\n"
        r"# ---- manifests.yaml\napiVersion: v1\n",
        shown,
    ), shown


@needs_lab
def test_the_report_may_be_json(tmp_path: Path) -> None:
    """With --output json the report is a document with verdict, features, and a counterexample with its files."""
    DAMAGES["ClusterIP"].write_to(tmp_path)
    options = "--output", "json", "--examples", "1", "--feature", "ClusterIP", "--feature", "external IPs"
    with mock.patch.object(suite, "SHRINKING", 1.0):
        done = nftproxy("conformance", *options, "--templates", tmp_path)
    assert (done.status, done.err) == (1, "")
    said = json.loads(done.out)
    assert said["verdict"] == "fail"
    assert [each["name"] for each in said["features"]] == ["ClusterIP", "external IPs"]
    wrong = said["features"][0]["counterexample"]
    assert wrong["seen"] == ["is dropped"]
    assert all(each.startswith("reaches ") for each in wrong["expected"])
    assert wrong["rule"]["section"] == "semantics.md#virtual-addresses"
    assert wrong["manifests.yaml"].startswith("apiVersion: v1\n")
    in_yaml = nftproxy("conformance", "--output", "yaml", *options[2:6])
    document = yaml.safe_load(in_yaml.out)
    assert (in_yaml.status, document["verdict"], [each["name"] for each in document["features"]]) == (
        0,
        "pass",
        ["ClusterIP"],
    )


@needs_lab
@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("{% endfor %}", "", 2, r"error: NFT108: table.nft.j2: .*"),
        ("    reject comment", "    reject it comment", 1, r"NFT413: refused by libnftables .*reject it"),
    ],
    ids=["no template", "no nft"],
)
def test_broken_templates_are_said_to_be(tmp_path: Path, old: str, new: str, code: int, message: str) -> None:
    """A broken template, or broken nft, is reported once before any trial."""
    shutil.copytree(templates_dir(), tmp_path, dirs_exist_ok=True)
    (tmp_path / TABLE).write_text(templates()[TABLE].replace(old, new, 1))
    done = nftproxy("conformance", "--templates", tmp_path)
    assert done.status == code
    assert re.match(message, done.out or done.err, re.DOTALL), done
    assert "feature" not in done.out


@needs_lab
def test_rules_that_only_some_clusters_make_refused_are_a_failure() -> None:
    """If the kernel refuses rules during a trial, the feature fails and reports the refused text."""
    damage = Damage(DRAW, "goto translate-{{ list }}", "{{ 'nonsense' if count == 2 else 'goto translate-' ~ list }}")
    (result,) = results(Renderer(damage.texts()), "ClusterIP")
    assert not result.ok
    assert "nonsense" in report.counterexample(result)


def test_a_change_that_went_wrong_is_two_sets_of_manifests(tmp_path: Path) -> None:
    """If a change is needed to show a fault, the files fit `nftproxy diff`."""
    before = focused.sample()
    after = before._replace(services=before.services[1:])
    probe = Probe(Origin.POD, "10.96.1.1", 80, "tcp", "10.1.0.200")
    wrong = Difference(probe, frozenset({TCP_RESET}), frozenset({DROPPED}), "went elsewhere")
    text = report.counterexample(Result("changes", 1, 2, Finding((before, after), wrong)))
    words, *files = re.split(r"^# ---- (.*)\n", text, flags=re.MULTILINE)
    assert words == (
        "changes, a counterexample:\n"
        "  connection: tcp from 10.1.0.200 (pod) to 10.96.1.1 port 80\n"
        "  expected:   is rejected (tcp-reset)\n"
        "  seen:       is dropped\n"
        "  in short:   went elsewhere\n"
        "  rule:       semantics.md#virtual-addresses: Packets to an address of a ServiceCIDR that is no Service's "
        "ClusterIP are dropped\n"
    )
    assert files[::2] == ["before.yaml", "manifests.yaml", "config.yaml"]
    assert written(tmp_path, files[1], files[5]) == before._replace(config=full_config(before.config))
    assert written(tmp_path, files[3], files[5]) == after._replace(config=full_config(after.config))


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Say that the stream is a terminal."""
        return True


def test_a_terminal_is_told_how_far_it_is() -> None:
    """On a terminal a line is overwritten, and elsewhere nothing is printed."""
    for stream, shown in ((Terminal(), "\r\033[Khairpin: 1,200 connections\r\033[K"), (io.StringIO(), "")):
        with contextlib.redirect_stderr(stream):
            report.show_progress("hairpin", 1200)
            report.show_progress("", 0)
        assert stream.getvalue() == shown


def test_where_there_can_be_no_lab_it_says_why() -> None:
    """Without root nothing is tried, and the message tells why."""
    with mock.patch.object(report, "obstacle", return_value="root is needed"):
        done = nftproxy("conformance")
    assert (done.status, done.out, done.err) == (1, "", "error: NFT414: root is needed\n")


def test_a_machine_that_loses_packets_is_said_to() -> None:
    """Lost packets are an error of the machine, not a failure of the rules."""
    with (
        mock.patch.object(report, "obstacle", return_value=""),
        mock.patch.object(suite, "check_loading", return_value=CheckResult(ok=True)),
        mock.patch.object(suite, "run", side_effect=LabError("too busy")),
    ):
        done = nftproxy("conformance")
    assert (done.status, done.err) == (1, "error: NFT414: too busy\n")


def test_without_its_package_the_command_says_what_to_install() -> None:
    """The judge is a package of its own, which registers the command by an entry point."""
    with mock.patch("importlib.metadata.entry_points", return_value=[]), mock.patch.dict(cli._commands.commands):
        cli._commands.commands.pop("conformance", None)
        done = nftproxy("conformance", "--proxy", "p {config}")
    assert (done.status, done.out) == (1, "")
    text = "`nftproxy conformance` is in a package of its own: in a checkout, `pip install ./conformance` installs it"
    assert done.err == f"error: NFT414: {text}\n"
