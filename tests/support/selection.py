"""Rows of a long table of tests: the default run tries some of them, and `tox run -e slow` the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations

import pytest

FEW = 5
"""Of so many rows all are in the default run."""


def every(step: int, ids: Sequence[str], *rows: Sequence[object]) -> list[object]:
    """Parameters of which the first of each `step` is in the default run, and the others are marked slow.

    Args:
        step: how many rows have one in the default run.
        ids: the names of the rows.
        rows: the values of each argument by row, the ids alone if there are none.
    """
    values = zip(*rows, strict=True) if rows else ((each,) for each in ids)
    return [
        pytest.param(*row, id=name, marks=[pytest.mark.slow] * bool(number % step))
        for number, (name, row) in enumerate(zip(ids, values, strict=True))
    ]


def mark_repetitions(items: Iterable[pytest.Item]) -> None:
    """Mark rows of products of parameters as slow.

    The rows that stay have each value of two parameters, and each pair of values of more (pairwise testing).  A fault
    that takes more values at once is found by the slow suite, and by the tests of whole matrices.
    """
    rows: defaultdict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not item.get_closest_marker("slow"):
            rows[item.nodeid.partition("::")[0], item.originalname].append(item)
    for function in rows.values():
        for number in _repetitions([_values(row) for row in function]) if len(function) > FEW else ():
            function[number].add_marker(pytest.mark.slow)


def _values(row: pytest.Function) -> list[Hashable]:
    """The value of each table of a row's parameters.  It is the same object in all rows."""
    ids = {name: id(value) for name, value in row.callspec.params.items()}
    tables = [mark.args[0] for mark in row.iter_markers("parametrize")]
    names = [re.split(r",\s*", table) if isinstance(table, str) else table for table in tables]
    return [*(tuple(ids.pop(name) for name in each) for each in names), *ids.values()]


def _repetitions(rows: Sequence[Sequence[Hashable]]) -> Iterator[int]:
    """Yield the numbers of the rows that have nothing that the rows before them lack, chosen greedily."""
    columns = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
    size = min(2, len(columns) - 1)
    if size < 1:
        return
    had = [set(combinations(enumerate(values), size)) for values in zip(*columns, strict=True)]
    missing, left = set().union(*had), list(range(len(had)))
    while missing:
        chosen = max(left, key=lambda number: len(had[number] & missing))
        missing -= had[chosen]
        left.remove(chosen)
    yield from left
