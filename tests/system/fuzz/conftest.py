"""Time for the tests here, and a tally of their examples for each module, printed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nftproxy_conformance.strategies.extensions import algorithms

from nftproxy.extensions.algorithms import maglev
from nftproxy.extensions.algorithms.annotations import Algorithm
from tests.system.fuzz.effort import IS_LONG, IS_MIDDLE, Tally

LONGEST = 24 * 3600 if IS_LONG else 1200 if IS_MIDDLE else 400
"""Seconds that a test may take here: the longest take half a minute on a machine that has nothing else to do."""

_TALLIES = pytest.StashKey[list[Tally]]()


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Tally:
    """Count the examples of a module's tests."""
    made = Tally(str(request.path.relative_to(request.config.rootpath)))
    request.config.stash.setdefault(_TALLIES, []).append(made)
    return made


SMALL = (((20, 127), (1000, 509)), 1021)
"""Sizes of tables, primes too, with which thousands of clusters can be tried.  Real tables are thirty times as
large."""


@pytest.fixture(scope="module")
def small_tables() -> Iterator[None]:
    """Let Services be drawn that choose by a table, and let tables be small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maglev, "SIZES", SMALL[0])
        patch.setattr(maglev, "LARGEST", SMALL[1])
        patch.setattr(algorithms, "drawn_algorithms", tuple(Algorithm))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests here the time that they need."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(LONGEST))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the tallies."""
    if tallies := config.stash.get(_TALLIES, []):
        terminalreporter.section("what was tried")
        for tally in tallies:
            terminalreporter.line(str(tally))
