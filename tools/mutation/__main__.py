"""`python -m tools.mutation`: see the package."""

from __future__ import annotations

import hashlib
import os
import random
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import click

from tools.mutation import python, template, trials
from tools.mutation.campaign import outcomes
from tools.mutation.killers import CHECKOUT, STAGES, TARGETS, TEMPLATES, stages_for
from tools.mutation.mutant import Identity, Mutant, mutants_of
from tools.mutation.trials import Result

EXPLAINED = Path(__file__).with_name("explained.toml")


def all_mutants(only: str = "") -> list[Mutant]:
    """Return every mutant of the targets whose path contains `only`."""
    texts = {file: (CHECKOUT / file).read_text() for file in TEMPLATES}
    names = template.Names(texts)
    made: list[Mutant] = []
    for file in (file for file in TARGETS if only in file):
        source = (CHECKOUT / file).read_bytes()
        found = template.faults(texts[file], names) if file in texts else python.faults(source)
        made += mutants_of(file, source, found)
    return made


def explanations(path: Path = EXPLAINED) -> dict[Identity, str]:
    """Return the reasons why mutants may live, by identity.

    Raises:
        ValueError: a mutant is explained twice, or without a reason.
    """
    found: dict[Identity, str] = {}
    for group in tomllib.loads(path.read_text())["explained"]:
        for file, where, line, *changes in group["mutants"]:
            for identity in (Identity(file, where, line, change) for change in changes):
                if identity in found or not group["reason"]:
                    raise ValueError(f"{identity}: explained twice, or without a reason")
                found[identity] = group["reason"]
    return found


class Report(NamedTuple):
    """The results of mutants and the explanations.  `known` has all mutants, tried or not."""

    results: Mapping[Identity, Result]
    explained: Collection[Identity]
    known: Collection[Identity]

    @property
    def lived(self) -> list[Identity]:
        """The mutants that live, or whose result is unknown."""
        return [identity for identity, result in self.results.items() if not result.is_kill]

    @property
    def unexplained(self) -> list[Identity]:
        """The mutants that live without an explanation."""
        return [each for each in self.lived if each not in self.explained]

    @property
    def stale(self) -> list[Identity]:
        """The explained mutants that are killed or don't exist."""
        killed = {each for each, result in self.results.items() if result.is_kill}
        return [each for each in self.explained if each not in self.known or each in killed]


def drawn(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw a sample.  A mutant's lot depends on the mutant alone, so that a sample keeps unchanged mutants."""
    return sorted(mutants, key=lambda each: hashlib.blake2b(f"{seed} {each.identity}".encode()).digest())[:count]


def show(report: Report) -> None:
    """Print the survivors as rows of explained.toml, and the numbers."""
    for identity in report.unexplained:
        print(f"  [{', '.join(map(_toml, identity))}],")
    for identity in report.stale:
        print(f"explained, but no mutant that lives: {identity}")
    print("file: mutants, killed, timed out, explained, unexplained")
    for file in (*dict.fromkeys(each.file for each in report.results), "all"):
        own = {each: its for each, its in report.results.items() if file in (each.file, "all")}
        counts = Counter(result.status for result in own.values())
        unexplained = sum(each in own for each in report.unexplained)
        lived = sum(not result.is_kill for result in own.values())
        figures = len(own), counts["failed"], counts["timed out"], lived - unexplained, unexplained
        print(f"{file}: {', '.join(map(str, figures))}")


def _toml(text: str) -> str:
    if "'" not in text:
        return f"'{text}'"
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


@click.command()
@click.option("--only", default="", metavar="FILE", help="Only files whose path contains this.")
@click.option("--sample", type=int, metavar="N", help="Only N mutants, drawn at random.")
@click.option("--seed", default=random.randrange(2**32), help="Draws the same sample again.")
@click.option("--jobs", default=os.cpu_count(), help="How many at a time.")
def main(only: str, sample: int | None, seed: int, jobs: int) -> None:
    """Damage the code, and run the tests.  Ends with 1 if survivors lack explanations, or explanations survivors."""
    explained = explanations()
    known = all_mutants()
    mutants = [each for each in known if only in each.identity.file]
    if sample:
        mutants = drawn(mutants, sample, seed)
        print(f"{len(mutants)} of {len(known)} mutants: --sample {sample} --seed {seed}", flush=True)
    needed = {stage for mutant in mutants for stage in stages_for(mutant.identity.file)}
    stages = [stage for stage in STAGES if stage in needed]
    trials.preload()
    results, flaky = dict[Identity, Result](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="nftproxy-mutation-") as directory:
        for outcome in outcomes(mutants, stages, Path(directory), jobs, explained):
            results[outcome.identity] = outcome.result
            flaky.update(outcome.flaky)
    report = Report(results, explained, {mutant.identity for mutant in known})
    show(report)
    for test, times in sorted(flaky.items()):
        print(f"flaky, failed and then passed on the same code, {times} times: {test}")
    sys.exit(bool(report.unexplained or report.stale))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets decides whether some mutants live
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    main()
