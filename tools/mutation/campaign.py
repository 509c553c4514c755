"""Trying mutants in parallel: each mutant goes through its tests until a test kills it."""

from __future__ import annotations

import operator
import sys
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from itertools import compress
from pathlib import Path

from tools.mutation import trials
from tools.mutation.killers import CHECKOUT, TEMPLATES, Stage, stages_for
from tools.mutation.mutant import Identity, Mutant
from tools.mutation.trials import Measured, Result, Tree, Trial


class Campaign:
    """A run of many mutants, several at a time."""

    log: Path | None = None
    """A file that gets a line for each mutant as soon as its result is known."""

    doubted: Collection[Identity] = frozenset()
    """Mutants that no test is expected to kill.  For these a test must fail twice to count."""

    def __init__(self, mutants: Sequence[Mutant], stages: Sequence[Stage], directory: Path, jobs: int) -> None:
        self._mutants = mutants
        first = Tree(directory / "0", CHECKOUT)
        self._measured = trials.measure(first, stages, sorted({m.identity.file for m in mutants} - {*TEMPLATES}))
        self._trees = [first, *(Tree(directory / str(number), first.root) for number in range(1, jobs))]
        self._kills: Counter[str] = Counter()
        self.results: dict[Identity, Result] = {}
        self.flaky: Counter[str] = Counter()
        """The number of times that each test failed and then passed on the same code."""

    def run(self) -> None:
        """Try all mutants."""
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
        """Yield the trials of a mutant in turn, until a trial kills it."""
        result = Result("passed")
        with tree.damaged(mutant):
            trying = self._repeated if mutant.identity in self.doubted else self._tried
            for stage, tests in self._batches(mutant):
                result = yield from trying(tree, tests, stage)
                if result.status != "passed":
                    break
        self._note(mutant, result)

    def _tried(self, tree: Tree, tests: Sequence[str], stage: Stage) -> Generator[Trial, None, Result]:
        """Run some tests, once more if the machine was too busy, and return the result."""
        trial = self._trial(tree, tests, stage)
        yield trial
        if trial.outcome.status == "unknown":
            trial = self._trial(tree, tests, stage)
            yield trial
        return trial.outcome

    def _repeated(self, tree: Tree, tests: Sequence[str], stage: Stage) -> Generator[Trial, None, Result]:
        """Run some tests and return the result.  A test that fails once, then passes, is noted as flaky only."""
        result = yield from self._tried(tree, tests, stage)
        while result.is_kill:
            suspects, rest = _split(tests, result.killer)
            again = yield from self._tried(tree, suspects, stage)
            if again.is_kill and again.killer == result.killer:
                return again
            self.flaky[result.killer or "a run that took too long"] += 1
            tests, result = rest, Result("passed")
            if tests:
                result = yield from self._tried(tree, tests, stage)
        return result

    def _note(self, mutant: Mutant, result: Result) -> None:
        self.results[mutant.identity] = result
        self._kills[trials.file_of(result.killer)] += result.is_kill
        if self.log:
            with self.log.open("a") as log:
                killer = f" by {result.killer}" if result.killer else ""
                log.write(f"{result.status}{killer}: {mutant.identity}\n")

    def _trial(self, tree: Tree, tests: Sequence[str], stage: Stage) -> Trial:
        limit = 30 + 5 * sum(map(self._measured[stage.name].seconds.__getitem__, tests))
        return Trial(tree, list(dict.fromkeys(map(trials.file_of, tests))), tests, limit)

    def _batches(self, mutant: Mutant) -> Iterator[tuple[Stage, list[str]]]:
        """Yield the tests to run by stage, first the module's own test file, as this imports the fewest files."""
        own = f"/test_{Path(mutant.identity.file).stem}.py"
        for stage in (each for each in stages_for(mutant.identity.file) if each.name in self._measured):
            tests = self._tests(mutant, stage)
            is_own = [trials.file_of(test).endswith(own) for test in tests]
            for batch in (list(compress(tests, is_own)), list(compress(tests, map(operator.not_, is_own)))):
                if batch:
                    yield stage, batch

    def _tests(self, mutant: Mutant, stage: Stage) -> list[str]:
        measured = self._measured[stage.name]
        return self._ordered(stage, trials.selected(mutant, stage, measured), measured)

    def _ordered(self, stage: Stage, tests: list[str], measured: Measured) -> list[str]:
        """Order tests that share fixtures by file, with the most kills per second of run time first."""
        if not stage.shares_fixtures:
            return tests
        cost: dict[str, float] = {}
        for test in tests:
            file = trials.file_of(test)
            cost[file] = cost.get(file, 0) + measured.seconds[test]
        return sorted(tests, key=lambda test: -self._kills[trials.file_of(test)] / cost[trials.file_of(test)])

    def _show(self, total: int) -> None:
        if sys.stderr.isatty():
            lived = sum(not result.is_kill for result in self.results.values())
            text = f"{len(self.results)} of {total} mutants, {lived} live" if total else ""
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


def _split(tests: Sequence[str], killer: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the tests to repeat (the failed test and the tests before it in its file), and all later tests.

    The earlier tests share its fixtures.  If no single test failed, all tests are repeated, and there is no rest.
    """
    if killer not in tests:
        return tests, []
    end = tests.index(killer) + 1
    return [test for test in tests[:end] if trials.file_of(test) == trials.file_of(killer)], tests[end:]
