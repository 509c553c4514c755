"""The account of what was tried: a tally for each module, printed at the end of the test run."""

from __future__ import annotations

import pytest

from tests.fuzz.effort import Tally

_TALLIES = pytest.StashKey[list[Tally]]()


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Tally:
    """Take note of what a module's tests try."""
    made = Tally(str(request.path.relative_to(request.config.rootpath)))
    request.config.stash.setdefault(_TALLIES, []).append(made)
    return made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the tallies."""
    if tallies := config.stash.get(_TALLIES, []):
        terminalreporter.section("what was tried")
        for tally in tallies:
            terminalreporter.line(str(tally))
