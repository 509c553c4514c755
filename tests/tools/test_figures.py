"""Figures on the pages come from tables that a program wrote, with their commit."""

from __future__ import annotations

import json
import os
import re
import subprocess
from html import unescape

import pytest

from tests.conftest import CHECKOUT
from tools.bench import plot, report
from tools.figures import DOCS, FiguresTable, read_tables, with_tables

TABLES = read_tables()
PAGES = sorted({table.page for table in TABLES.values()})
README = (CHECKOUT / "README.md").read_text()
SHOWN = README.partition("\n## Why\n")[2].partition("\n## ")[0]
"""The part of README.md that has figures."""

VERSION = re.compile(r"(?:kube-proxy|kube-apiserver|Linux|Kubernetes|Debian|IPv) ?\d[.\d]*")
FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?: (?:ms|s|MB|GB)\b)?")
"""A number, with its unit if there is one."""

GONE = re.compile(r"`([0-9a-f]{8}:[\w/.]+)`")
"""A tool that isn't here any more, as pages name it with a commit that has it."""
PAGES_WITH_TOOLS = [CHECKOUT / "README.md", *DOCS.rglob("*.md"), *(CHECKOUT / "examples").rglob("*.md")]


def figures(text: str) -> set[str]:
    """The figures of a text, without versions, and without links and names in code."""
    return set(FIGURE.findall(VERSION.sub("", re.sub(r"\]\([^)]*\)|`[^`]*`", "", text))))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_tables_of_the_file(page: str) -> None:
    """A page shows the tables that docs/figures.toml has for it.  With UPDATE_DOCS=1 it is written."""
    wanted = with_tables(page, (DOCS / page).read_text(), TABLES)
    if os.environ.get("UPDATE_DOCS"):
        (DOCS / page).write_text(wanted)
    assert (DOCS / page).read_text() == wanted


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_its_commit(name: str) -> None:
    """A table has the commit that was measured or that brought the figures, and the history has that commit."""
    table = TABLES[name]
    assert bool(table.commit) != bool(table.recorded)
    assert kind_of(table.commit or table.recorded) == "commit"


@pytest.mark.parametrize("name", sorted({name for page in PAGES_WITH_TOOLS for name in GONE.findall(page.read_text())}))
def test_a_tool_that_is_gone_is_in_the_commit_that_a_page_names(name: str) -> None:
    """A name such as 5f38d422:tools/bench/bounds.py is of a file or a folder in the history."""
    assert kind_of(name) in ("blob", "tree")


def kind_of(name: str) -> str:
    """The kind of an object of the history, as git says."""
    git = ("git", "-C", str(CHECKOUT))
    shallow = subprocess.run(
        [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("this is no clone with the whole history")
    return subprocess.run([*git, "cat-file", "-t", name], capture_output=True, text=True, check=False).stdout.strip()


def test_a_row_has_a_cell_for_each_column() -> None:
    """Each row of each table is as long as its header."""
    assert [name for name, table in TABLES.items() for row in table.rows if len(row) != len(table.columns)] == []


def lines_with_figures(text: str) -> list[str]:
    """The paragraphs, items and rows of a text, each as a line, if they have figures."""
    joined = re.sub(r"\n(?!\s*(?:[|*!]|\n))\s*", " ", text)
    return [line for line in joined.splitlines() if figures(line)]


def test_the_figures_of_a_line_of_the_readme_stand_in_a_table() -> None:
    """The figures of a row or a sentence of README.md stand together in a table of docs/figures.toml."""
    tables = [figures(f"{table.columns} {table.rows}") for table in TABLES.values()]
    found = lines_with_figures(SHOWN)
    assert len(found) >= 10
    assert [line for line in found if not any(figures(line) <= table for table in tables)] == []


def test_a_table_shows_its_commit_and_its_command() -> None:
    """The commit and the command stand above the table."""
    table = FiguresTable(page="a.md", command="try", columns=("a", "b"), rows=(("1", "2"),), recorded="abc")
    made = with_tables("a.md", "x\n<!-- figures: t -->\nold\n<!-- end: t -->\ny\n", {"t": table})
    shown = "Recorded by commit abc, `try`:\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert made == f"x\n<!-- figures: t -->\n{shown}<!-- end: t -->\ny\n"


def test_the_picture_has_the_points_of_the_tables() -> None:
    """docs/change-latency.svg was drawn from the tables of docs/performance.md, and no label is without points."""
    points = plot.latency_points(report.DOCUMENT.read_text())
    assert all(points.values())
    described = re.search(r"<dc:description>(.*?)</dc:description>", plot.PICTURE.read_text(), re.DOTALL)
    assert described
    assert json.loads(unescape(described[1])) == json.loads(json.dumps(points))
