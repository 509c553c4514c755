"""Processor time of tests: `python -m pytest -p tools.suite_cost --cost FILE`, then `python -m tools.suite_cost FILE`.

The plugin appends a line to FILE for each test that ran.  The program sums the lines up by folder and by kind, in
seconds of processor time (user and system), with that of the processes that the tests waited for.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

# The kind of a test is the first of these of which it has a fixture, else it depends on where its time went.
KINDS = {
    "packets through kernels": {"shared_lab", "network"},
    "nft in a namespace": {"namespace"},
}
OTHER_PROCESSES, PYTHON = "other processes", "Python alone"


class Cost(NamedTuple):
    """Seconds of processor time of a test, its kind, and its node id."""

    seconds: float
    kind: str
    test: str

    @property
    def file(self) -> str:
        """The path of its file."""
        return self.test.partition("::")[0]

    @property
    def folder(self) -> str:
        """The room that it is about: `tests/agent`, or `tests` for a file that is in none."""
        return "/".join(self.file.split("/")[:-1][:2])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--cost`."""
    parser.addoption("--cost", metavar="FILE", type=Path, help="append the processor time of each test to FILE")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None]:
    """Write a line for a test after its teardown."""
    own, others = _spent()
    yield
    own, others = (after - before for after, before in zip(_spent(), (own, others), strict=True))
    fixtures = set(getattr(item, "fixturenames", ()))
    kinds = (kind for kind, names in KINDS.items() if names & fixtures)
    kind = next(kinds, OTHER_PROCESSES if others > own else PYTHON)
    if file := item.config.getoption("--cost"):
        with Path(file).open("a") as lines:
            lines.write(f"{own + others:.3f}\t{kind}\t{item.nodeid.encode('unicode_escape').decode()}\n")


def _spent() -> tuple[float, float]:
    """Seconds of this process, and of those that it waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own, others = (usage.ru_utime + usage.ru_stime for usage in usages)
    return own, others


def read(file: Path) -> Iterator[Cost]:
    """Parse the lines that the plugin wrote."""
    for line in file.read_text().splitlines():
        seconds, kind, test = line.split("\t", 2)
        yield Cost(float(seconds), kind, test)


def table(costs: list[Cost]) -> Iterator[list[str]]:
    """Yield rows: a folder a row, a kind a column, each with seconds.  The most expensive folder comes first."""
    kinds = [*KINDS, OTHER_PROCESSES, PYTHON]
    yield ["folder", "tests", *kinds, "seconds"]
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    tests = Counter(cost.folder for cost in costs)
    for cost in costs:
        for folder in (cost.folder, "all"):
            sums[folder, cost.kind] += cost.seconds
    tests["all"] = len(costs)
    totals = {folder: sum(sums[folder, kind] for kind in kinds) for folder in tests}
    for folder in sorted(tests, key=lambda folder: -totals[folder]):
        cells = (f"{sums[folder, kind]:.0f}" if sums[folder, kind] else "" for kind in kinds)
        yield [folder, f"{tests[folder]:,}", *cells, f"{totals[folder]:.0f}"]


def lines(rows: list[list[str]]) -> Iterator[str]:
    """Yield the rows as text, with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([name.ljust(widths[0]), *numbers]).rstrip()


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines(list(table(list(read(Path(sys.argv[1])))))))
