"""Trying mutants in parallel: each mutant goes through its tests until a test kills it."""

from __future__ import annotations

import multiprocessing
import operator
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from tools.mutation import trials
from tools.mutation.killers import CHECKOUT, TEMPLATES, Stage, stages_for
from tools.mutation.mutant import Identity, Mutant
from tools.mutation.trials import Measured, Result, Tree


class Outcome(NamedTuple):
    """The result of a mutant, and the tests that failed and then passed on the same code."""

    identity: Identity
    result: Result
    flaky: tuple[str, ...]


def outcomes(
    mutants: Sequence[Mutant], stages: Sequence[Stage], directory: Path, jobs: int, doubted: Collection[Identity]
) -> Iterator[Outcome]:
    """Try mutants, several at a time, and yield the outcome of each as soon as it is known.

    Args:
        mutants: the mutants to try.
        stages: the stages of their tests.
        directory: for copies of the checkout.
        jobs: how many mutants at a time.
        doubted: mutants that no test is expected to kill.  For these a test must fail twice to count.
    """
    original = Tree(directory / "original", CHECKOUT)
    files = sorted({each.identity.file for each in mutants} - {*TEMPLATES})
    measured = trials.measure(original, stages, files)
    fork = multiprocessing.get_context("fork")  # the processes have all modules that trials need
    with ProcessPoolExecutor(jobs, fork, _begin, (directory, original.root, measured, doubted)) as pool:
        for each in as_completed([pool.submit(_tried, mutant) for mutant in mutants]):
            yield each.result()


def _begin(directory: Path, original: Path, measured: Mapping[str, Measured], doubted: Collection[Identity]) -> None:
    """Begin a process that tries mutants."""
    global _worker
    trials.die_with_parent()
    _worker = Worker(Tree(directory / str(os.getpid()), original), measured, doubted)


def _tried(mutant: Mutant) -> Outcome:
    return _worker.tried(mutant)


class Worker:
    """Tries one mutant after the other on a tree of its own."""

    def __init__(self, tree: Tree, measured: Mapping[str, Measured], doubted: Collection[Identity]) -> None:
        self._tree = tree
        self._measured = measured
        self._doubted = doubted
        self._kills: Counter[str] = Counter()

    def tried(self, mutant: Mutant) -> Outcome:
        """Run the tests of a mutant until a test kills it."""
        result, flaky = Result("passed"), list[str]()
        with self._tree.damaged(mutant):
            for stage, tests in self._batches(mutant):
                result = self._run(stage, tests)
                while result.is_kill and mutant.identity in self._doubted:
                    again = self._run(stage, tests)
                    if again == result:
                        break
                    flaky.append(result.killer or "a run that took too long")
                    result = again
                if result.status != "passed":
                    break
        self._kills[trials.file_of(result.killer)] += result.is_kill
        return Outcome(mutant.identity, result, tuple(flaky))

    def _run(self, stage: Stage, tests: Sequence[str]) -> Result:
        """Run some tests, once more if the machine was too busy, and return the result."""
        limit = 30 + 5 * sum(map(self._measured[stage.name].seconds.__getitem__, tests))
        result = trials.run(self._tree, tests, limit)
        return trials.run(self._tree, tests, limit) if result.status == "unknown" else result

    def _batches(self, mutant: Mutant) -> Iterator[tuple[Stage, list[str]]]:
        """Yield the tests to run by stage, first the module's own test file, as this imports the fewest files."""
        own = f"/test_{Path(mutant.identity.file).stem}.py"
        for stage in (each for each in stages_for(mutant.identity.file) if each.name in self._measured):
            measured = self._measured[stage.name]
            tests = self._ordered(stage, trials.selected(mutant, stage, measured), measured)
            is_own = [trials.file_of(test).endswith(own) for test in tests]
            for batch in (list(compress(tests, is_own)), list(compress(tests, map(operator.not_, is_own)))):
                if batch:
                    yield stage, batch

    def _ordered(self, stage: Stage, tests: list[str], measured: Measured) -> list[str]:
        """Order tests that share fixtures by file, with the most kills per second of run time first."""
        if not stage.shares_fixtures:
            return tests
        cost = defaultdict[str, float](float)
        for test in tests:
            cost[trials.file_of(test)] += measured.seconds[test]
        return sorted(tests, key=lambda test: -self._kills[trials.file_of(test)] / cost[trials.file_of(test)])


_worker: Worker
