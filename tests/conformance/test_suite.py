"""`nftproxy conformance`: our templates pass, damaged ones fail where they must, with files that show the damage."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import given

from nftproxy.conformance import focused_worlds, report, strategies, suite, worlds
from nftproxy.conformance.features import FEATURES, Finding
from nftproxy.conformance.manifests import configuration, manifests
from nftproxy.conformance.oracle import World
from nftproxy.conformance.probes import INTERFACES, MORE_IPS
from nftproxy.conformance.rendered import Rendered
from nftproxy.conformance.suite import Result
from nftproxy.conformance.trial import Difference, Trial, but_for_sources
from nftproxy.kernel.capabilities import probe as probe_capabilities
from nftproxy.kernel.check import CheckResult
from nftproxy.lab import DROPPED, TCP_RESET, Lab, LabError, Origin, Outcome, Probe, is_even, obstacle
from nftproxy.model.objects import EndpointSlice, Node, Service, ServiceCIDR
from nftproxy.rules.render import Renderer
from nftproxy.sources.files import load, load_config
from nftproxy.templates_dir import templates_dir
from tests.support.command import nftproxy
from tests.support.factories import templates
from tests.system.fuzz.effort import IS_LONG

needs_lab = pytest.mark.skipif(bool(obstacle()), reason=obstacle())

# Files


@strategies.quick()
@given(worlds.blind_worlds)
def test_manifests_say_all_of_a_world(tmp_path_factory: pytest.TempPathFactory, world: World) -> None:
    """What is written of a world reads as the same world, without a complaint."""
    directory = tmp_path_factory.mktemp("world")
    read = written(directory, manifests(world), configuration(world.config))
    assert read == world


def written(directory: Path, manifest: str, config: str) -> World:
    """The world that files tell of, as `render` reads them."""
    (directory / "manifests.yaml").write_text(manifest)
    (directory / "config.yaml").write_text(config)
    found = load([directory / "manifests.yaml"])
    assert found.problems == []
    assert found.ignored == []
    (node,) = (each for each in found.objects if isinstance(each, Node))
    parsed, warnings = load_config(directory / "config.yaml")
    assert warnings == []
    return World(
        node,
        parsed,
        tuple(each for each in found.objects if isinstance(each, Service)),
        tuple(each for each in found.objects if isinstance(each, EndpointSlice)),
        tuple(each for each in found.objects if isinstance(each, ServiceCIDR)),
        INTERFACES,
        knows_interfaces=False,
    )


# Damage


class Damage(NamedTuple):
    """Something wrong with one template: every match of a pattern is replaced."""

    template: str
    pattern: str
    replacement: str

    def texts(self) -> dict[str, str]:
        """All templates, the damaged one among them."""
        text = templates()[self.template]
        damaged = re.sub(self.pattern, self.replacement, text, flags=re.MULTILINE)
        assert damaged != text, "nothing was damaged"
        return {**templates(), self.template: damaged}


TABLE, ENDPOINTS, DRAW, SCREEN = "table.nft.j2", "endpoints.nft.j2", "draw.nft.j2", "screen.nft.j2"
DAMAGES = {
    "ClusterIP": Damage(TABLE, "map @services goto draw$", "map @short-circuit goto draw"),
    "no endpoints: rejected": Damage(TABLE, "^    reject$", "    drop"),
    "loadBalancerSourceRanges": Damage(TABLE, r"!= @allowed \{\{.*", "!= @allowed accept"),
    "session affinity": Damage(ENDPOINTS, "meta l4proto {{ protocol }} update .*", ""),
    "hairpin": Damage(TABLE, ".* @hairpin goto.*", ""),
    "uniform choice": Damage(DRAW, "{{ draw }}", "{{ draw | replace('mod ' ~ count, 'mod ' ~ (count + 1)) }}"),
}
"""What is damaged, by the feature that must show it."""
if IS_LONG:
    DAMAGES |= {
        "node ports, nodePortAddresses": Damage(TABLE, "{{ match }} jump nodeports$", ""),
        "internalTrafficPolicy Local": Damage(TABLE, r"@fronts \{\{ endings.unserved.*", "@fronts accept"),
        "externalTrafficPolicy Local": Damage(TABLE, "fib saddr type local (.* map @)", r"\1"),
        "denied and source ranges": Damage(SCREEN, "@denied goto drop-denied", "@denied accept"),
        "masquerading, detectLocalMode": Damage(TABLE, ".*daddr @cluster-ips {{ source }} meta mark.*", ""),
        "unused ClusterIPs and ports": Damage(TABLE, ".*daddr @service-cidrs drop", ""),
    }


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A lab to try counterexamples in."""
    if why := obstacle():
        pytest.skip(why)
    with Lab() as made:
        yield made


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_shown(name: str, lab: Lab, tmp_path: Path) -> None:
    """The feature that was damaged fails; its counterexample's files, rendered and tried, show the fault."""
    for template, text in DAMAGES[name].texts().items():
        (tmp_path / template).write_text(text)
    (result,) = results(Renderer(DAMAGES[name].texts()), name)
    assert result.finding, "the damage was not found"
    *_, manifest, config = re.split(r"^# ---- .*\n", report.counterexample(result), flags=re.MULTILINE)
    written(tmp_path, manifest, config)
    files = tmp_path / "manifests.yaml", "--config", tmp_path / "config.yaml"
    done = nftproxy("render", *files, "--node", "node-a", "--templates", tmp_path)
    assert done.err == ""
    lab.reset()
    for address in MORE_IPS:
        lab.add_address(address)
    lab.load(done.out)
    assert shows(result.finding.difference, lab.connect_many([result.finding.difference.probe] * 1000))


def results(renderer: Renderer, *names: str) -> list[Result]:
    """What comes of some features."""
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


def test_damage_shows_where_it_is_only() -> None:
    """What isn't damaged passes."""
    if why := obstacle():
        pytest.skip(why)
    damaged = Renderer(DAMAGES["hairpin"].texts())
    found = results(damaged, "ClusterIP", "masquerading, detectLocalMode", "hairpin", "topology hints")
    assert [result.feature for result in found if not result.ok] == ["hairpin"]


# The command


@needs_lab
def test_our_templates_pass() -> None:
    """Each feature has its line, with how much was tried; all pass, and nothing goes to standard error in a pipe."""
    done = nftproxy("conformance", "--examples", "2")
    assert done.status == 0, done.out
    assert done.err == ""
    lines = done.out.splitlines()
    assert re.fullmatch(r"loaded in .*: \d+ sets, .*", lines[0])
    assert lines[1].split() == ["feature", "result", "clusters", "connections"]
    for feature, line in zip(FEATURES, lines[2:-1], strict=True):
        assert re.fullmatch(rf"{re.escape(feature.name)} +pass +2 +[1-9][\d,]+", line), line
    assert re.fullmatch(rf"{len(FEATURES)} of {len(FEATURES)} features pass, [\d,]+ connections", lines[-1])


@needs_lab
def test_a_failure_is_a_line_and_a_counterexample(tmp_path: Path) -> None:
    """Exit 1, the features that fail, and of the first a connection with what must and what did become of it."""
    shutil.copytree(templates_dir(), tmp_path / "mine")
    table = tmp_path / "mine" / TABLE
    table.write_text(DAMAGES["ClusterIP"].texts()[TABLE])
    with mock.patch.object(suite, "SHRINKING", 3.0):
        done = nftproxy("conformance", "--examples", "1", "--templates", tmp_path / "mine")
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
    """With --output json there is one document: the verdict, each feature, and a counterexample with its files."""
    shutil.copytree(templates_dir(), tmp_path / "mine")
    table = tmp_path / "mine" / TABLE
    table.write_text(DAMAGES["ClusterIP"].texts()[TABLE])
    options = "--output", "json", "--examples", "1", "--feature", "ClusterIP", "--feature", "external IPs"
    with mock.patch.object(suite, "SHRINKING", 1.0):
        done = nftproxy("conformance", *options, "--templates", tmp_path / "mine")
    assert (done.status, done.err) == (1, "")
    said = json.loads(done.out)
    assert said["verdict"] == "fail"
    assert [each["name"] for each in said["features"]] == ["ClusterIP", "external IPs"]
    wrong = said["features"][0]["counterexample"]
    assert wrong["seen"] == ["is dropped"]
    assert all(each.startswith("reaches ") for each in wrong["expected"])
    assert wrong["rule"]["section"] == "semantics.md#virtual-addresses"
    assert wrong["manifests.yaml"].startswith("apiVersion: v1\n")
    assert nftproxy("conformance", *options[:-2]).status == 0


@needs_lab
@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("{% endfor %}", "", 2, r"error: NFT108: table.nft.j2: .*"),
        ("    reject\n", "    reject it\n", 1, r"NFT413: refused by libnftables .*reject it"),
    ],
    ids=["no template", "no nft"],
)
def test_broken_templates_are_said_to_be(tmp_path: Path, old: str, new: str, code: int, message: str) -> None:
    """What is no template, or no nft, is said once before anything is tried."""
    shutil.copytree(templates_dir(), tmp_path / "mine")
    table = tmp_path / "mine" / TABLE
    table.write_text(table.read_text().replace(old, new, 1))
    done = nftproxy("conformance", "--templates", tmp_path / "mine")
    assert done.status == code
    assert re.match(message, done.out or done.err, re.DOTALL), done
    assert "feature" not in done.out


@needs_lab
def test_rules_that_only_some_clusters_make_refused_are_a_failure() -> None:
    """If the kernel refuses rules in the course of it, the feature fails and says what was refused."""
    damage = Damage(DRAW, "goto translate-{{ list }}", "{{ 'nonsense' if count == 2 else 'goto translate-' ~ list }}")
    (result,) = results(Renderer(damage.texts()), "ClusterIP")
    assert not result.ok
    assert "nonsense" in report.counterexample(result)


def test_a_change_that_went_wrong_is_two_sets_of_manifests(tmp_path: Path) -> None:
    """Where it takes a change to show a fault, the files are those that `nftproxy diff` takes."""
    before = focused_worlds.sample()
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
        "  rule:       semantics.md#virtual-addresses: packets to an address of a ServiceCIDR that is no Service's "
        "ClusterIP are dropped\n"
    )
    assert files[::2] == ["before.yaml", "manifests.yaml", "config.yaml"]
    assert written(tmp_path, files[1], files[5]) == before
    assert written(tmp_path, files[3], files[5]) == after


class Terminal(io.StringIO):
    """What looks like one."""

    def isatty(self) -> bool:
        """It does."""
        return True


def test_a_terminal_is_told_how_far_it_is() -> None:
    """On a terminal one line is written over and over; elsewhere there is none."""
    for stream, shown in ((Terminal(), "\r\033[Khairpin: 1,200 connections\r\033[K"), (io.StringIO(), "")):
        with contextlib.redirect_stderr(stream):
            report.show_progress("hairpin", 1200)
            report.show_progress("", 0)
        assert stream.getvalue() == shown


def test_where_there_can_be_no_lab_it_says_why() -> None:
    """Without root nothing is tried; that is no failure of the rules, and the message says so."""
    with mock.patch.object(report, "obstacle", return_value="the lab needs root"):
        done = nftproxy("conformance")
    assert (done.status, done.out, done.err) == (1, "", "error: NFT414: the lab needs root\n")


def test_a_machine_that_loses_packets_is_said_to() -> None:
    """What the lab can't know is no failure of the rules either."""
    with (
        mock.patch.object(report, "obstacle", return_value=""),
        mock.patch.object(suite, "check_loading", return_value=CheckResult(ok=True)),
        mock.patch.object(suite, "run", side_effect=LabError("too busy")),
    ):
        done = nftproxy("conformance")
    assert (done.status, done.err) == (1, "error: NFT414: too busy\n")


def test_without_hypothesis_it_says_what_to_install() -> None:
    """Hypothesis comes by an extra, and without it the command says by which."""
    with mock.patch.dict(sys.modules, {"hypothesis": None}):
        del sys.modules["nftproxy.conformance.report"], sys.modules["hypothesis.configuration"]
        done = nftproxy("conformance")
    assert (done.status, done.out) == (1, "")
    assert done.err == "error: NFT414: this needs Hypothesis: pip install 'nftproxy[conformance]'\n"
