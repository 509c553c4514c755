"""`.ci/due` gives each long suite its turn, and says when the tests of the tools are due."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SUITES = [line for line in (CHECKOUT / ".ci" / "suites").read_text().splitlines() if not line.startswith("#")]
DAY = 86400
NOON = 20_000 * DAY + DAY // 2
"""Some noon in UTC, in seconds of the epoch."""
OF_TOOLS = "make test-tools"


MAIN, BRANCH = "refs/heads/main", "refs/heads/branch"


class Commit(NamedTuple):
    """A commit of the first-parent line, at seconds of the epoch, and how many commits it merges."""

    seconds: int
    merged: int = 0


class History:
    """A repository with `.ci`, whose commits have the times that a test gives them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(CHECKOUT / ".ci", directory / ".ci")
        self._git("init", "--quiet", "--initial-branch=main")
        self._has_landed = False

    def commit(self, seconds: int, file: str = "README.md") -> None:
        """Change a file in a commit of that time."""
        (self.directory / file).parent.mkdir(exist_ok=True)
        with (self.directory / file).open("a") as written:
            written.write("a line\n")
        self._git("add", file)
        self._git("commit", "--quiet", "--message=a change", seconds=seconds)

    def land(self, commits: Iterable[Commit]) -> None:
        """Add commits that change no file."""
        lines = []
        for number, (seconds, merged) in enumerate(commits):
            who = f"committer a <a> {seconds} +0000\ndata 0\n"
            before = f"from {MAIN}^0\n" if number == 0 and self._has_landed else ""
            if merged:
                lines += [f"reset {BRANCH}\n{before}", *[f"commit {BRANCH}\n{who}"] * merged]
            lines += [f"commit {MAIN}\n{who}{before}", f"merge {BRANCH}\n" * bool(merged)]
        stream = "".join(lines)
        subprocess.run(["git", "fast-import", "--quiet"], cwd=self.directory, input=stream, text=True, check=True)
        self._has_landed = True

    def due(self) -> list[str]:
        """The commands that are due."""
        done = subprocess.run([self.directory / ".ci" / "due"], check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.splitlines()

    def _git(self, *arguments: str, seconds: int = NOON) -> None:
        names = {f"GIT_{role}_{what}": "a" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        times = {f"GIT_{role}_DATE": f"{seconds} +0000" for role in ("AUTHOR", "COMMITTER")}
        subprocess.run(["git", *arguments], cwd=self.directory, env=os.environ | names | times, check=True)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A repository without commits."""
    return History(tmp_path)


def test_a_clone_without_history_runs_the_tests_of_the_tools(history: History) -> None:
    """Without commits to judge by, the tests of the tools are due, and two suites."""
    shutil.rmtree(history.directory / ".git")
    assert history.due() == [OF_TOOLS, *SUITES[:2]]


WITHIN = 10
"""CI runs in which each suite has its turn."""


def a_merge_each_landing(random: Random) -> list[list[Commit]]:
    """Landings at any rate, each of them a merge of any number of commits (or, squashed, a single commit)."""
    hours = accumulate(random.choice((1, 2, 7, 30)) for _ in range(40))
    return [[Commit(NOON + 3600 * hour, merged=random.choice((0, 1, 7, 30)))] for hour in hours]


def a_landing_each_day(random: Random) -> list[list[Commit]]:
    """A landing for each day that has commits, of any number of commits, without a merge."""
    days = accumulate(random.randint(1, 3) for _ in range(30))
    return [[Commit(NOON + DAY * day + number) for number in range(random.choice((1, 7, 14, 30)))] for day in days]


@pytest.mark.parametrize("landings", [a_merge_each_landing, a_landing_each_day])
@pytest.mark.parametrize("seed", range(3))
def test_each_suite_has_its_turn_within_ten_runs(
    history: History, landings: Callable[[Random], list[list[Commit]]], seed: int
) -> None:
    """In made-up histories each ten runs in a row have every suite.

    Each landing is a single commit of the first-parent line, or a day with commits has a single landing.
    """
    runs = []
    for landing in landings(Random(seed)):
        history.land(landing)
        runs.append(set(history.due()) - {OF_TOOLS})
    for first in range(len(runs) - WITHIN + 1):
        assert set().union(*runs[first : first + WITHIN]) == set(SUITES), (seed, first)


def test_tests_of_tools_are_due_for_a_day_after_a_change(history: History) -> None:
    """A change of a tool makes them due, whatever else lands within a day of it, and nothing else does."""
    history.commit(NOON)
    assert OF_TOOLS not in history.due()
    history.commit(NOON + 10, "tools/bench.py")
    assert OF_TOOLS in history.due()
    history.commit(NOON + 20)
    assert OF_TOOLS in history.due()
    history.commit(NOON + 20 + DAY)
    assert OF_TOOLS not in history.due()
