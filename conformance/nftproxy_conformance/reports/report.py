"""The report of made-up clusters: a line for each feature, and the first counterexample as files and words."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import click
from hypothesis.configuration import set_hypothesis_home_dir

from nftproxy.commands.output import STRUCTURED, structured
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput, Problem, Unavailable
from nftproxy.model.settings import Capabilities
from nftproxy.rules.renderer import Renderer
from nftproxy_conformance.lab import obstacle
from nftproxy_conformance.reports.words import as_json, lines
from nftproxy_conformance.specification.oracle import Oracle
from nftproxy_conformance.subjects.manifests import configuration, manifests
from nftproxy_conformance.subjects.rendered import Rendered
from nftproxy_conformance.trials import suite
from nftproxy_conformance.trials.features import FEATURES, Feature
from nftproxy_conformance.trials.finding import Finding
from nftproxy_conformance.trials.suite import Result
from nftproxy_conformance.trials.trial import Trial

WIDTH = max(len(feature.name) for feature in FEATURES)


class Effort(NamedTuple):
    """The features to try, the number of clusters for each, and their seed."""

    features: Sequence[Feature] = FEATURES
    examples: int = 20
    seed: int = 0


def features_named(names: Sequence[str]) -> Sequence[Feature]:
    """The features of these names, or all features without names.

    Raises:
        BadInput: a feature doesn't exist.
    """
    known = {each.name: each for each in FEATURES}
    if unknown := [name for name in names if name not in known]:
        there = ", ".join(known)
        why = [f"no feature {name!r}; there are: {there}" for name in unknown]
        raise BadInput(*(Problem("", "", "", each, Code.TRIAL_IMPOSSIBLE) for each in why))
    return [known[name] for name in names] or FEATURES


def conform(
    renderer: Renderer, capabilities: Capabilities, effort: Effort, *, output: str, with_fast_path: bool
) -> bool:
    """Try templates on made-up clusters and print the report.  True if all features pass.

    Raises:
        TemplateError: a template fails.
        Unavailable: this machine doesn't allow a lab, or is too busy.
    """
    if why := obstacle():
        raise Unavailable(why)
    loaded = suite.check_loading(renderer, capabilities)
    if output not in STRUCTURED or not loaded.ok:
        click.echo(loaded)
    if not loaded.ok:
        return False
    with Trial(Rendered(renderer, capabilities, with_fast_path=with_fast_path)) as trial:
        return try_features(trial, effort, output=output)


def try_features(trial: Trial, effort: Effort, *, output: str) -> bool:
    """Try features and print the report.  True if all pass.

    Raises: as `suite.run` does.
    """
    with tempfile.TemporaryDirectory() as home:
        set_hypothesis_home_dir(home)  # by default it leaves a directory behind where the command is run
        results = suite.run(
            trial, examples=effort.examples, start=effort.seed, features=effort.features, progress=show_progress
        )
        return _print_structured(results, output) if output in STRUCTURED else _print(results)


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
    """The number of connections that deviations explain, after the columns."""
    return "".join(f"  {name}: {count:,}" for name, count in sorted(deviations.items()))


def _print_structured(results: Iterable[Result], output: str) -> bool:
    done = []
    for result in results:
        show_progress("", 0)
        done.append(result)
    is_well = all(result.ok for result in done)
    found = {"verdict": "pass" if is_well else "fail", "features": list(map(_result, done))}
    click.echo(structured(found, output))
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
    """Show the progress on a terminal, in a line that is overwritten.  An empty feature clears it."""
    if sys.stderr.isatty():
        words = f"{feature}: {connections:,} connections" if feature else ""
        click.echo(f"\r\033[K{words}", nl=False, err=True)


def counterexample(result: Result) -> str:
    """The counterexample of a feature: a connection in words, then the files with which `render` shows the rules."""
    if result.finding is None:
        return f"{result.feature}: nothing could be tried: {result.refused}\n"
    finding = result.finding
    words = lines(finding.difference, Oracle(finding.worlds[-1]))
    files = "".join(f"# ---- {name}\n{text}" for name, text in _files(finding))
    return f"{result.feature}, a counterexample:\n{words}{files}"


def _files(finding: Finding) -> list[tuple[str, str]]:
    last = finding.worlds[-1]
    files = [("manifests.yaml", manifests(last)), ("config.yaml", configuration(last.config))]
    if len(finding.worlds) > 1:  # `nftproxy diff` shows the transaction between them
        files.insert(0, ("before.yaml", manifests(finding.worlds[0])))
    return files
