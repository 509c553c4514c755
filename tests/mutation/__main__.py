"""`python -m tests.mutation`: see the package."""

from __future__ import annotations

import argparse
import operator
import os
import random
import statistics
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from tests.mutation import python, template, trials
from tests.mutation.killers import STAGES, TARGETS, TEMPLATES, Stage, stages_for
from tests.mutation.mutant import Identity, Mutant, mutants_of
from tests.mutation.trials import CHECKOUT, Measured, Result, Tree, Trial

EXPLAINED = Path(__file__).with_name("explained.toml")


def all_mutants(only: str = "") -> list[Mutant]:
    """Every mutant of the targets whose path contains `only`."""
    texts = {file: (CHECKOUT / file).read_text() for file in TEMPLATES}
    names = template.Names(texts)
    made: list[Mutant] = []
    for file in (file for file in TARGETS if only in file):
        source = (CHECKOUT / file).read_bytes()
        found = template.faults(texts[file], names) if file in texts else python.faults(source)
        made += mutants_of(file, source, found)
    return made


def explanations(path: Path = EXPLAINED) -> dict[Identity, str]:
    """Why mutants may live, by identity.

    Raises:
        ValueError: a mutant is explained twice, or without a reason.
    """
    found: dict[Identity, str] = {}
    for entry in tomllib.loads(path.read_text()).get("mutant", []):
        for change in entry["changes"]:
            identity = Identity(entry["file"], entry.get("where", ""), entry["line"], change)
            if identity in found or not entry["reason"]:
                raise ValueError(f"{identity}: explained twice, or without a reason")
            found[identity] = entry["reason"]
    return found


class Report(NamedTuple):
    """What became of mutants; `stale` are explanations of none that lives."""

    results: Mapping[Identity, Result]
    explained: Mapping[Identity, str]
    stale: Sequence[Identity]

    @property
    def unexplained(self) -> list[Identity]:
        """The mutants that live and should not."""
        return [each for each in self.lived if each not in self.explained]

    @property
    def lived(self) -> list[Identity]:
        """The mutants that live."""
        return [identity for identity, result in self.results.items() if result.status == "passed"]


def judged(results: Mapping[Identity, Result], explained: Mapping[Identity, str], known: set[Identity]) -> Report:
    """Compare what lives with what is explained; `known` are all mutants that there are, tried or not."""
    stale = [each for each in explained if each not in known or (each in results and results[each].status != "passed")]
    return Report(results, explained, stale)


class Campaign:
    """Tries mutants, several at a time."""

    def __init__(
        self,
        mutants: Sequence[Mutant],
        stages: Sequence[Stage],
        directory: Path,
        jobs: int,
        log: Path | None,
        fast: bool,
    ) -> None:
        self._mutants = mutants
        self._fast = fast
        self._log = log
        self._stages = stages
        first = Tree(directory / "0", CHECKOUT)
        self._measured = trials.measure(first, stages, sorted({m.identity.file for m in mutants} - {*TEMPLATES}))
        self._trees = [first, *(Tree(directory / str(number), first.root) for number in range(1, jobs))]
        self._kills: Counter[str] = Counter()
        self.results: dict[Identity, Result] = {}

    def run(self) -> None:
        """Try all of them."""
        waiting = list(reversed(self._mutants))
        free = list(self._trees)
        busy: dict[Iterator[Trial], tuple[Trial, Tree]] = {}
        while waiting or busy:
            while waiting and free:
                mutant, tree = waiting.pop(), free.pop()
                course = self._course(mutant, tree)
                trial = next(course, None)
                if trial is None:
                    free.append(tree)
                else:
                    busy[course] = trial, tree
            trials.wait_for_any([trial for trial, _ in busy.values()], 1.0)
            for course, (trial, tree) in list(busy.items()):
                if trial.has_ended():
                    following = next(course, None)
                    if following is None:
                        del busy[course]
                        free.append(tree)
                        self._show(len(self._mutants))
                    else:
                        busy[course] = following, tree
        self._show(0)

    def _course(self, mutant: Mutant, tree: Tree) -> Iterator[Trial]:
        """The trials of one mutant, one after the other, until one kills it."""
        result = Result("passed")
        with tree.damaged(mutant):
            for stage in (each for each in stages_for(mutant.identity.file) if each in self._stages):
                for tests in self._batches(mutant, stage):
                    trial = self._trial(tree, tests, stage)
                    yield trial
                    if trial.outcome.status == "unknown":
                        trial = self._trial(tree, tests, stage)
                        yield trial
                    result = trial.outcome
                    if result.status != "passed":
                        self._kills[trials.file_of(result.killer)] += 1
                        self._note(mutant, result)
                        return
        self._note(mutant, result)

    def _note(self, mutant: Mutant, result: Result) -> None:
        self.results[mutant.identity] = result
        if self._log:
            with self._log.open("a") as log:
                killer = f" by {result.killer}" if result.killer else ""
                log.write(f"{result.status}{killer}: {mutant.identity}\n")

    def _trial(self, tree: Tree, tests: Sequence[str], stage: Stage) -> Trial:
        limit = 30 + 5 * sum(map(self._measured[stage.name].seconds.__getitem__, tests))
        return Trial(tree, list(dict.fromkeys(map(trials.file_of, tests))), tests, limit)

    def _batches(self, mutant: Mutant, stage: Stage) -> Iterator[list[str]]:
        """The tests to run, those of the module's own file first, as the fewest files are read for these."""
        measured = self._measured[stage.name]
        tests = self._ordered(stage, trials.selected(mutant, stage, measured), measured)
        if self._fast:
            longest = 20 * statistics.median(measured.seconds.values())
            tests = [test for test in tests if measured.seconds[test] < longest]
        own = f"tests/test_{Path(mutant.identity.file).stem}.py"
        is_own = [trials.file_of(test) == own for test in tests]
        for batch in (list(compress(tests, is_own)), list(compress(tests, map(operator.not_, is_own)))):
            if batch:
                yield batch

    def _ordered(self, stage: Stage, tests: list[str], measured: Measured) -> list[str]:
        """Tests that share fixtures by file, those first that killed most in the time that they take."""
        if not stage.shares_fixtures:
            return tests
        cost: dict[str, float] = {}
        for test in tests:
            file = trials.file_of(test)
            cost[file] = cost.get(file, 0) + measured.seconds[test]
        return sorted(tests, key=lambda test: -self._kills[trials.file_of(test)] / cost[trials.file_of(test)])

    def _show(self, total: int) -> None:
        if sys.stderr.isatty():
            lived = sum(result.status == "passed" for result in self.results.values())
            text = f"{len(self.results)} of {total} mutants, {lived} live" if total else ""
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def chosen(mutants: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    """The mutants to try: all, those that lived in another run, or a sample."""
    if options.lived:
        lived = {line.removeprefix("passed: ") for line in options.lived.read_text().splitlines()}
        mutants = [mutant for mutant in mutants if str(mutant.identity) in lived]
    if options.sample:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    return mutants


def show(report: Report) -> None:
    """Print what lives, as an entry of explained.toml less the reason, and the numbers."""
    for identity in report.unexplained:
        print("[[mutant]]")
        for name, value in (("file", identity.file), ("where", identity.where), ("line", identity.line)):
            print(f"{name} = {_toml(value)}")
        print(f"changes = [{_toml(identity.change)}]")
        print('reason = ""\n')
    for identity in report.stale:
        print(f"explained, but no mutant that lives: {identity}")
    counts = Counter(result.status for result in report.results.values())
    print("file: mutants, killed, timed out, explained, unexplained")
    for file in (*dict.fromkeys(each.file for each in report.results), "all"):
        own = {each: its for each, its in report.results.items() if file in (each.file, "all")}
        counts = Counter(result.status for result in own.values())
        killers = Counter(trials.file_of(result.killer) for result in own.values())
        print(killers, file=sys.stderr)
        unexplained = sum(each in own for each in report.unexplained)
        figures = len(own), counts["failed"], counts["timed out"], counts["passed"] - unexplained, unexplained
        print(f"{file}: {', '.join(map(str, figures))}")


def _toml(text: str) -> str:
    if "'" not in text:
        return f"'{text}'"
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutants; 0 if all that live are explained, and all explanations are of such."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Damage the code, run the tests.")
    parser.add_argument("--only", default="", metavar="FILE", help="only files whose path contains this")
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="draws the same sample again")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write what becomes of each mutant, as it does")
    parser.add_argument("--lived", type=Path, metavar="FILE", help="only those that lived, as such a log says")
    parser.add_argument("--stage", choices=[stage.name for stage in STAGES], help="only these tests, for a first look")
    parser.add_argument("--fast", action="store_true", help="only fast tests, for a first look")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at a time")
    options = parser.parse_args(arguments)
    explained = explanations()
    known = all_mutants()
    mutants = chosen([each for each in known if options.only in each.identity.file], options)
    if options.sample:
        print(f"{len(mutants)} of {len(known)} mutants: --sample {options.sample} --seed {options.seed}", flush=True)
    needed = {stage for mutant in mutants for stage in stages_for(mutant.identity.file)}
    stages = [stage for stage in STAGES if stage in needed and options.stage in (None, stage.name)]
    trials.preload()
    with tempfile.TemporaryDirectory(prefix="nftproxy-mutation-") as directory:
        campaign = Campaign(mutants, stages, Path(directory), options.jobs, options.log, options.fast)
        campaign.run()
    report = judged(campaign.results, explained, {mutant.identity for mutant in known})
    show(report)
    return 1 if report.unexplained or report.stale else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets decides whether some mutants live
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
