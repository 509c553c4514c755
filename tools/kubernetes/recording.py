"""The results of steps, for docs/support.json."""

from __future__ import annotations

import datetime
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from tools.kubernetes.binaries import END_TO_END, Binaries
from tools.migration.switch import Account
from tools.support.page import grouped
from tools.support.results import SupportResult, record

DEFAULT_SIZE = (3, 1)
"""Nodes and zones."""
VERSIONED = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", END_TO_END)
"""Programs of a cluster that have Kubernetes' version.  A row has the version of the first."""


def note(
    binaries: Binaries, size: tuple[int, int], column: str, step: str, result: str, programs: Sequence[str] = VERSIONED
) -> None:
    """Record the result of a step, in place of an earlier one.

    Args:
        binaries: of the cluster.
        size: nodes and zones.
        column: what was tried.
        step: its words on the command line.
        result: in words.
        programs: that were tried.
    """
    versions = {each: binaries.version(each) for each in programs if binaries.has(each)}
    options = "" if size == DEFAULT_SIZE else "--nodes {} --zones {} ".format(*size)
    linux = ".".join(re.findall(r"\d+", platform.release())[:2])
    record(
        SupportResult(
            topic="kubernetes",
            row=versions[programs[0]].rpartition(".")[0],
            column=column,
            command=f"python -m tools.kubernetes {options}{step}",
            date=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
            result=result,
            details=f"{told(versions)}, in namespaces, Linux {linux}",
        )
    )


def told(versions: Mapping[str, str]) -> str:
    """The version of the first program, and each other version with its programs, in words."""
    (first, _), *others = grouped(versions.items())
    return ", ".join([f"v{first}", *(f"{' and '.join(programs)} of v{version}" for version, programs in others)])


def fate(account: Account) -> str:
    """The fate of the connections of an account, in words."""
    rows = list(account.rows())
    lost, new, ended = (sum(each) for each in zip(*((row.new_lost, row.new, row.ended) for row in rows), strict=True))
    faults = Counter(each.fault for each in account.tries if each.is_new and each.fault)
    why = ", ".join(f"{number} {fault}" for fault, number in sorted(faults.items()))
    told = f"{lost} of {new:,} connections lost" + (f" ({why})" if lost else "")
    return told + (f", {ended} kept ones ended" if ended else "")
