"""docs/support.md shows the results of runs, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


def test_a_row_without_a_result_says_so() -> None:
    """A row has the result, the day and the command, or it says that nothing was tried."""
    lines = tables([result(), result(topic="kubernetes", row="1.36", column="sig-network")]).splitlines()
    assert "| Linux 5.10 | packets: `try packets` | 9 passed, 2026-11-23 |" in lines
    assert "| 1.36 | sig-network: `try packets` | 9 passed, 2026-11-23 |" in lines
    assert "| 1.37 | | not tried |" in lines
    assert "| 1.36 | | not tried |" not in lines


def test_a_machine_is_named_once() -> None:
    """The machine of most commands of a row stands beside its name, if every command has a machine."""
    in_machine = [result(command="vm -- try packets"), result(command="vm -- try all", column="all")]
    in_another = result(command="other vm -- try more", column="more")
    assert [line for line in tables([*in_machine, in_another]).splitlines() if "try" in line] == [
        "| Linux 5.10, in `vm --` | packets: `try packets` | 9 passed, 2026-11-23 |",
        "|  | all: `try all` | 9 passed, 2026-11-23 |",
        "|  | more: `other vm -- try more` | 9 passed, 2026-11-23 |",
    ]
    mixed = tables([*in_machine, result(column="here")])
    assert "`vm -- try packets`" in mixed


def test_a_command_is_named_once() -> None:
    """The command of a trial stands in the first row that has it, and in no later row of the same trial and table."""
    rows = [result(), result(row="Linux 6.1"), result(row="Linux 6.12", command="try few packets")]
    rows.append(result(topic="kubernetes", row="1.36"))
    assert [line for line in tables(rows).splitlines() if "passed" in line] == [
        "| Linux 5.10 | packets: `try packets` | 9 passed, 2026-11-23 |",
        "| Linux 6.1 | packets | 9 passed, 2026-11-23 |",
        "| Linux 6.12 | packets: `try few packets` | 9 passed, 2026-11-23 |",
        "| 1.36 | packets: `try packets` | 9 passed, 2026-11-23 |",
    ]


def test_a_bar_in_a_cell_ends_no_cell() -> None:
    """Bars of regular expressions are escaped, also within a command (GitHub Flavored Markdown)."""
    line = "| Linux 5.10 | a\\|b: `try 'a\\|b'` | 9 passed, 2026-11-23 |"
    assert line in tables([result(column="a|b", command="try 'a|b'")]).splitlines()


def test_a_new_result_replaces_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file keeps one result of each command, the newest, and those of other commands."""
    monkeypatch.setattr(results, "FILE", tmp_path / "support.json")
    for each in (result(), result(column="examples"), result(result="1 failed, 8 passed", date="2026-11-24")):
        record(each)
    assert [(each.column, each.result) for each in read_results()] == [
        ("examples", "9 passed"),
        ("packets", "1 failed, 8 passed"),
    ]
