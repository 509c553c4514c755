"""`.ci/due` gives each long suite its turn, and says when the tests of the tools are due."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SUITES = [line for line in (CHECKOUT / ".ci" / "suites").read_text().splitlines() if not line.startswith("#")]
DAY = 86400
NOON = 20_000 * DAY + DAY // 2
"""Some noon in UTC, in seconds of the epoch."""
OF_TOOLS = "make test-tools"


class History:
    """A repository with `.ci`, whose commits have the times that a test gives them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(CHECKOUT / ".ci", directory / ".ci")
        self._git("init", "--quiet")

    def commit(self, seconds: int, file: str = "README.md") -> None:
        """Change a file in a commit of that time."""
        (self.directory / file).parent.mkdir(exist_ok=True)
        with (self.directory / file).open("a") as written:
            written.write("a line\n")
        self._git("add", file)
        self._git("commit", "--quiet", "--message=a change", seconds=seconds)

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


def test_each_suite_has_its_turn_by_commits(history: History) -> None:
    """If each commit lands by itself, on one day, each suite is due once in as many landings as there are suites."""
    ran = []
    for _ in SUITES:
        history.commit(NOON)
        ran.append(history.due()[-1])
    assert len(set(ran)) >= len(SUITES) - 1, (
        "two of them may be the same, as the first suite of the day isn't due twice"
    )
    assert set(ran) | {history.due()[-2]} == set(SUITES)


def test_each_suite_has_its_turn_by_days(history: History) -> None:
    """If a landing a day has any number of commits, each suite is due once in as many days as there are suites."""
    ran = []
    for day in range(len(SUITES)):
        for number in range(1 + 5 * day % 7):
            history.commit(NOON + day * DAY + number)
        *_, first, second = history.due()
        assert first != second
        ran.append(first)
    assert sorted(ran) == sorted(SUITES)


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
