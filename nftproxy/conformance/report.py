"""The report of `nftproxy conformance`: a line for each feature, and the first counterexample as files and words."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable

import click
from hypothesis.configuration import set_hypothesis_home_dir

from nftproxy.conformance import suite
from nftproxy.conformance.features import FEATURES, Finding
from nftproxy.conformance.manifests import configuration, manifests
from nftproxy.conformance.suite import Result
from nftproxy.lab import Kind, LabError, Outcome, Probe, obstacle
from nftproxy.model.errors import Unavailable
from nftproxy.model.settings import Capabilities
from nftproxy.rules.render import Renderer

WIDTH = max(len(feature.name) for feature in FEATURES)
PHRASES = {
    Kind.ENDPOINT: "reaches {0.endpoint}",
    Kind.NODE: "is delivered to the node",
    Kind.UNTOUCHED: "leaves the node as it came",
    Kind.REJECTED: "is rejected ({0.how})",
    Kind.DROPPED: "is dropped",
}


def conform(renderer: Renderer, capabilities: Capabilities, *, examples: int, seed: int) -> bool:
    """Try everything and print what came of it; whether all is well.

    Raises:
        TemplateError: a template fails.
        Unavailable: there can be no lab here, or this machine is too busy for one.
    """
    if why := obstacle():
        raise Unavailable(why)
    loaded = suite.check_loading(renderer, capabilities)
    click.echo(loaded)
    if not loaded.ok:
        return False
    with tempfile.TemporaryDirectory() as home:
        set_hypothesis_home_dir(home)  # by default it leaves a directory behind where the command is run
        try:
            return _report(suite.run(renderer, capabilities, examples=examples, start=seed, progress=show_progress))
        except LabError as error:
            raise Unavailable(str(error)) from error


def _report(results: Iterable[Result]) -> bool:
    click.echo(f"{'feature':{WIDTH}}  result  clusters  connections")
    done = []
    for result in results:
        show_progress("", 0)
        verdict = "pass" if result.ok else "FAIL"
        click.echo(f"{result.feature:{WIDTH}}  {verdict:6}  {result.clusters:8,}  {result.connections:11,}")
        done.append(result)
    failed = [result for result in done if not result.ok]
    total = sum(result.connections for result in done)
    click.echo(f"{len(done) - len(failed)} of {len(done)} features pass, {total:,} connections")
    if failed:
        click.echo("\n" + counterexample(failed[0]), nl=False)
    return not failed


def show_progress(feature: str, connections: int) -> None:
    """What is being tried, on a terminal, in a line that is written over; nothing clears it."""
    if sys.stderr.isatty():
        words = f"{feature}: {connections:,} connections" if feature else ""
        click.echo(f"\r\033[K{words}", nl=False, err=True)


def counterexample(result: Result) -> str:
    """What went wrong with a feature: a connection in words, then the files with which `render` shows its rules."""
    if result.finding is None:
        return f"{result.feature}: the kernel refuses rules: {result.refused}\n"
    return f"{result.feature}, a counterexample:\n{_words(result.finding)}{_files(result.finding)}"


def _words(finding: Finding) -> str:
    wrong = finding.difference
    lines = {
        "connection": _connection(wrong.probe),
        "expected": " or ".join(sorted(map(describe, wrong.expected))),
        "seen": " or ".join(sorted(map(describe, wrong.seen))),
        "in short": wrong.what,
    }
    return "".join(f"  {name + ':':12}{words}\n" for name, words in lines.items())


def _connection(probe: Probe) -> str:
    return f"{probe.protocol} from {probe.source} ({probe.origin.value}) to {probe.address} port {probe.port}"


def describe(outcome: Outcome) -> str:
    """An outcome in words."""
    hidden = ", its source hidden" if outcome.masqueraded else ""
    return PHRASES[outcome.kind].format(outcome) + hidden


def _files(finding: Finding) -> str:
    last = finding.worlds[-1]
    files = [("manifests.yaml", manifests(last)), ("config.yaml", configuration(last.config))]
    if len(finding.worlds) > 1:  # `nftproxy diff` shows the transaction from one to the other
        files.insert(0, ("before.yaml", manifests(finding.worlds[0])))
    return "".join(f"# ---- {name}\n{text}" for name, text in files)
