"""The tables of figures that no test can repeat: docs/figures.toml has them, and the pages show them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

import msgspec

from tools.bench.figures import markdown
from tools.project import CHECKOUT

DOCS = CHECKOUT / "docs"
FILE = DOCS / "figures.toml"
MARKED = re.compile(r"(<!-- (?:figures|bench): ([-\w]+) -->\n)(.*?)(<!-- end: \2 -->\n)", re.DOTALL)
"""A table that a program wrote into a page: from figures.toml, or from a run of the bench."""


class FiguresTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of docs/figures.toml.

    Attributes:
        page: shows the table, a file of docs/.
        command: repeats the figures.
        columns: the header.
        rows: the cells, in Markdown.
        commit: the commit that was measured, "" if that wasn't noted.
        recorded: else the commit that brought the figures.
    """

    page: str
    command: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    commit: str = ""
    recorded: str = ""

    def text(self) -> str:
        """Return the text between the markers of the page."""
        commit = f"Commit {self.commit}" if self.commit else f"Recorded by commit {self.recorded}"
        return f"{commit}, `{self.command}`:\n\n{markdown(self.columns, self.rows)}"


def read_tables() -> dict[str, FiguresTable]:
    """Return the tables of docs/figures.toml by name."""
    return msgspec.convert(tomllib.loads(FILE.read_text()), dict[str, FiguresTable])


def marked_tables(page: str) -> dict[str, str]:
    """Return the texts of a page that stand between markers, by name."""
    return {name: text for _, name, text, _ in MARKED.findall(page)}


def with_texts(page: str, texts: Mapping[str, str]) -> str:
    """Return a page with other texts between the markers of these names, which it has."""
    assert texts.keys() <= marked_tables(page).keys(), f"no markers: {texts.keys() - marked_tables(page).keys()}"
    return MARKED.sub(lambda found: found[1] + texts.get(found[2], found[3]) + found[4], page)


def with_tables(name: str, page: str, tables: dict[str, FiguresTable]) -> str:
    """Return the text of a page, whose file has this name, with its tables."""
    return with_texts(page, {title: table.text() for title, table in tables.items() if table.page == name})
