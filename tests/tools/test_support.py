"""docs/support.md shows the results of runs, and nothing else."""

from __future__ import annotations

import os
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from tools.kubernetes.__main__ import main as kubernetes
from tools.support import results
from tools.support.page import PAGE, page, tables
from tools.support.results import SupportResult, read_results, record


def result(**changes: str) -> SupportResult:
    """A result on some kernel."""
    fields = {"topic": "kernels", "row": "Linux 5.10", "column": "packets", "command": "try packets"}
    return SupportResult(**fields | {"date": "2026-11-23", "result": "9 passed"} | changes)


def test_the_page_has_the_results() -> None:
    """docs/support.md has the results of docs/support.json, and with UPDATE_DOCS=1 it is written."""
    wanted = page(read_results())
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted


def test_a_command_that_is_gone_has_its_commit() -> None:
    """A command is of programs and steps of today, or the result has the commit that has it, which the page names."""
    commands = [(each.command, each.commit) for each in read_results()]
    assert [command for command, commit in commands if not commit and not is_here(shlex.split(command))] == []
    gone = result(topic="kubernetes", row="1.36", commit="5f38d422")
    assert "| packets: `5f38d422: try packets` | 1.36: 9 passed | 2026-11-23 |" in tables([gone]).splitlines()


def is_here(words: list[str]) -> bool:
    """Whether the checkout has all programs of a command, and its step of tools/kubernetes."""
    triples = zip(words, words[1:], words[2:], strict=False)
    modules = {word for program, option, word in triples if program.endswith("python") and option == "-m"}
    has_step = "tools.kubernetes" not in modules or set(words) & set(kubernetes.commands)
    return bool(has_step) and all(find_spec(each) for each in modules)


def test_a_row_without_a_result_says_so() -> None:
    """A table names the rows of which nothing was tried, and each trial with its command, result and day."""
    lines = tables([result(topic="kubernetes", row="1.36", column="sig-network")]).splitlines()
    assert "| sig-network: `try packets` | 1.36: 9 passed | 2026-11-23 |" in lines
    assert f"| not tried | {', '.join(f'1.{minor}' for minor in (*range(28, 36), 37))} |  |" in lines


def test_a_machine_has_a_row() -> None:
    """A kernel's row has the way to the machine of most commands, and all results with their first and last day."""
    rows = [
        result(command="vm -- python -m tools.support packets", details="Debian"),
        result(command="vm -- python -m tools.support all", column="all", date="2026-11-25", details="Debian"),
        result(row="Linux 6.18", command="python -m tools.support packets"),
    ]
    assert [line for line in tables(rows).splitlines() if line.startswith("| Linux")] == [
        "| Linux 5.10 (Debian), in `vm` | packets: 9 passed; all: 9 passed | 2026-11-23 to 2026-11-25 |",
        "| Linux 6.18 | packets: 9 passed | 2026-11-23 |",
    ]


def test_equal_results_of_a_trial_are_joined() -> None:
    """Rows with the same result share it, neighbouring versions as a range, and a row has the first command."""
    versions = {"1.28": "9 passed", "1.29": "9 passed", "1.30": "8 failed", "1.31": "9 passed"}
    rows = [result(topic="kubernetes", row=row, result=text) for row, text in versions.items()]
    rows += [result(topic="kubernetes", row=row, column="all") for row in ("1.30", "1.31", "1.32")]
    assert [line for line in tables(rows).splitlines() if "passed" in line] == [
        "| packets: `try packets` | 1.28, 1.29, 1.31: 9 passed; 1.30: 8 failed | 2026-11-23 |",
        "| all: `try packets` | 1.30 to 1.32: 9 passed | 2026-11-23 |",
    ]


def test_results_that_differ_in_a_number_share_their_words() -> None:
    """The numbers stand in the place of the only word that differs, each with its row."""
    lost = {"1.28": "0 of 1,200 connections lost", "1.29": "0 of 900 connections lost"}
    rows = [result(topic="kubernetes", row=row, result=text) for row, text in lost.items()]
    line = "| packets: `try packets` | 0 of (1.28: 1,200, 1.29: 900) connections lost | 2026-11-23 |"
    assert line in tables(rows).splitlines()


def test_versions_are_named_once() -> None:
    """Exact versions stand in a row of their own, joined where the rest of their machine is the same."""
    details = {"1.28": "v1.28.3, in namespaces", "1.29": "v1.29.1, in namespaces", "1.30": "v1.30.1"}
    rows = [result(topic="kubernetes", row=row, details=text) for row, text in details.items()]
    assert "| versions | v1.28.3, v1.29.1: in namespaces; v1.30.1 |  |" in tables(rows).splitlines()


def test_a_bar_in_a_cell_ends_no_cell() -> None:
    """Bars of regular expressions are escaped, also within a command (GitHub Flavored Markdown)."""
    line = "| a\\|b: `try 'a\\|b'` | 1.36: 9 passed | 2026-11-23 |"
    trial = result(topic="kubernetes", row="1.36", column="a|b", command="try 'a|b'")
    assert line in tables([trial]).splitlines()


def test_a_new_result_replaces_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file keeps one result of each command, the newest, and those of other commands."""
    monkeypatch.setattr(results, "FILE", tmp_path / "support.json")
    for each in (result(), result(column="examples"), result(result="1 failed, 8 passed", date="2026-11-24")):
        record(each)
    assert [(each.column, each.result) for each in read_results()] == [
        ("examples", "9 passed"),
        ("packets", "1 failed, 8 passed"),
    ]
