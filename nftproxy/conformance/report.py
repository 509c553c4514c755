"""The report of made-up clusters: a line for each feature, and the first counterexample as files and words."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import click
from hypothesis.configuration import set_hypothesis_home_dir

from nftproxy.conformance import suite
from nftproxy.conformance.features import FEATURES, Feature, Finding
from nftproxy.conformance.manifests import configuration, manifests
from nftproxy.conformance.oracle import Oracle
from nftproxy.conformance.rendered import Rendered
from nftproxy.conformance.suite import Result
from nftproxy.conformance.trial import Trial
from nftproxy.conformance.words import as_json, lines
from nftproxy.lab import LabError, obstacle
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem, Unavailable
from nftproxy.model.settings import Capabilities
from nftproxy.rules.render import Renderer

WIDTH = max(len(feature.name) for feature in FEATURES)


class Effort(NamedTuple):
    """What is tried: features, so many made-up clusters for each, and the seed of these."""

    features: Sequence[Feature] = FEATURES
    examples: int = 20
    seed: int = 0


def features_named(names: Sequence[str]) -> Sequence[Feature]:
    """The features of these names; all of them where none is named.

    Raises:
        BadInput: there is no feature of that name.
    """
    known = {each.name: each for each in FEATURES}
    if unknown := [name for name in names if name not in known]:
        there = ", ".join(known)
        why = [f"no feature {name!r}; there are: {there}" for name in unknown]
        raise BadInput([Problem("", "", "", each, Code.TRIAL_IMPOSSIBLE) for each in why])
    return [known[name] for name in names] or FEATURES


def conform(renderer: Renderer, capabilities: Capabilities, effort: Effort, *, in_json: bool) -> bool:
    """Try templates on made-up clusters and print what came of it; whether all is well.

    Raises:
        TemplateError: a template fails.
        Unavailable: there can be no lab here, or this machine is too busy for one.
    """
    if why := obstacle():
        raise Unavailable(why)
    loaded = suite.check_loading(renderer, capabilities)
    if not in_json or not loaded.ok:
        click.echo(loaded)
    if not loaded.ok:
        return False
    try:
        with Trial(Rendered(renderer, capabilities)) as trial:
            return try_features(trial, effort, in_json=in_json)
    except LabError as error:
        raise Unavailable(str(error)) from error


def try_features(trial: Trial, effort: Effort, *, in_json: bool) -> bool:
    """Try features and print what came of it; whether all is well.

    Raises: as `suite.run` does.
    """
    with tempfile.TemporaryDirectory() as home:
        set_hypothesis_home_dir(home)  # by default it leaves a directory behind where the command is run
        results = suite.run(
            trial, examples=effort.examples, start=effort.seed, features=effort.features, progress=show_progress
        )
        return (_print_json if in_json else _print)(results)


def _print(results: Iterable[Result]) -> bool:
    click.echo(f"{'feature':{WIDTH}}  result  clusters  connections")
    done = []
    for result in results:
        show_progress("", 0)
        verdict = "pass" if result.ok else "FAIL"
        counts = f"{result.clusters:8,}  {result.connections:11,}{_tally(result.deviations)}"
        click.echo(f"{result.feature:{WIDTH}}  {verdict:6}  {counts}")
        done.append(result)
    failed = [result for result in done if not result.ok]
    total = sum(result.connections for result in done)
    click.echo(f"{len(done) - len(failed)} of {len(done)} features pass, {total:,} connections")
    if failed:
        click.echo("\n" + counterexample(failed[0]), nl=False)
    return not failed


def _tally(deviations: Mapping[str, int]) -> str:
    """How many connections went as deviations explain, after the columns."""
    return "".join(f"  {name}: {count:,}" for name, count in sorted(deviations.items()))


def _print_json(results: Iterable[Result]) -> bool:
    done = []
    for result in results:
        show_progress("", 0)
        done.append(result)
    is_well = all(result.ok for result in done)
    click.echo(json.dumps({"verdict": "pass" if is_well else "fail", "features": list(map(_result, done))}, indent=2))
    return is_well


def _result(result: Result) -> dict[str, Any]:
    said: dict[str, Any] = {
        "name": result.feature,
        "result": "pass" if result.ok else "fail",
        "clusters": result.clusters,
        "connections": result.connections,
        "deviations": dict(result.deviations),
    }
    if result.refused:
        said["refused"] = result.refused
    if result.finding:
        last = result.finding.worlds[-1]
        said["counterexample"] = as_json(result.finding.difference, Oracle(last)) | dict(_files(result.finding))
    return said


def show_progress(feature: str, connections: int) -> None:
    """What is being tried, on a terminal, in a line that is written over; nothing clears it."""
    if sys.stderr.isatty():
        words = f"{feature}: {connections:,} connections" if feature else ""
        click.echo(f"\r\033[K{words}", nl=False, err=True)


def counterexample(result: Result) -> str:
    """What went wrong with a feature: a connection in words, then the files with which `render` shows its rules."""
    if result.finding is None:
        return f"{result.feature}: nothing could be tried: {result.refused}\n"
    finding = result.finding
    words = lines(finding.difference, Oracle(finding.worlds[-1]))
    files = "".join(f"# ---- {name}\n{text}" for name, text in _files(finding))
    return f"{result.feature}, a counterexample:\n{words}{files}"


def _files(finding: Finding) -> list[tuple[str, str]]:
    last = finding.worlds[-1]
    files = [("manifests.yaml", manifests(last)), ("config.yaml", configuration(last.config))]
    if len(finding.worlds) > 1:  # `nftproxy diff` shows the transaction from one to the other
        files.insert(0, ("before.yaml", manifests(finding.worlds[0])))
    return files
