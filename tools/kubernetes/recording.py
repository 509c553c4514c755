"""The results of steps, for docs/support.json."""

from __future__ import annotations

import datetime
import platform
import re
from collections import Counter
from collections.abc import Sequence

from tools.kubernetes.binaries import Binaries
from tools.migration.switch import Account
from tools.support.results import SupportResult, record

DEFAULT_SIZE = (3, 1)
"""Nodes and zones."""


def note(binaries: Binaries, column: str, step: str, result: str, size: tuple[int, int] = DEFAULT_SIZE) -> None:
    """Record the result of a step, in place of an earlier one.

    Args:
        binaries: of the cluster.
        column: what was tried.
        step: its words on the command line.
        result: in words.
        size: nodes and zones.
    """
    version = binaries.version()
    options = "" if size == DEFAULT_SIZE else "--nodes {} --zones {} ".format(*size)
    linux = ".".join(re.findall(r"\d+", platform.release())[:2])
    record(
        SupportResult(
            topic="kubernetes",
            row=version.rpartition(".")[0],
            column=column,
            command=f"python -m tools.kubernetes {options}{step}",
            date=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
            result=result,
            details=f"v{version}, in namespaces, Linux {linux}",
        )
    )


def fate(accounts: Sequence[Account]) -> str:
    """The fate of the connections of some accounts, in words."""
    rows = [row for account in accounts for row in account.rows()]
    lost, new, ended = (sum(each) for each in zip(*((row.new_lost, row.new, row.ended) for row in rows), strict=True))
    why = ", ".join(f"{number} {fault}" for fault, number in sorted(faults(accounts).items()))
    told = f"{lost} of {new:,} connections lost" + (f" ({why})" if lost else "")
    return told + (f", {ended} kept ones ended" if ended else "")


def faults(accounts: Sequence[Account]) -> Counter[str]:
    """The number of new connections that were lost, by their fault."""
    return Counter(each.fault for account in accounts for each in account.tries if each.is_new and each.fault)
