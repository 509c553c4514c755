"""Writes the name of the column into each cell of a page's tables, for narrow windows, which show cells as blocks."""

from __future__ import annotations

import re
from html import escape, unescape

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEAD = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td(?=[ >])")
_TAG = re.compile(r"<[^>]*>")


def labelled(html: str) -> str:
    """Return a page's HTML with `data-column` in each cell but the first of its row, if its column has a name."""
    return _TABLE.sub(_labelled_table, html)


def _labelled_table(table: re.Match[str]) -> str:
    columns = [unescape(_TAG.sub("", head)) for head in _HEAD.findall(table[0])]

    def labelled_row(row: re.Match[str]) -> str:
        names = iter(["", *columns[1:]])
        return _CELL.sub(lambda _: _start(next(names, "")), row[0])

    return _ROW.sub(labelled_row, table[0])


def _start(column: str) -> str:
    return f'<td data-column="{escape(column)}"' if column else "<td"
