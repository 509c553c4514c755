"""Rows of a long table of tests: the default run tries some of them, and `tox run -e slow` the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


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
