"""How many examples the properties here try, and a tally of them.

By default each tries so little that all of them take seconds.  NFTPROXY_TESTS=long makes it thousands of
examples, new each time (`tox run -e fuzz`).  NFTPROXY_TESTS=middle makes it a fortieth of these, in CI the same each
time.  Passing says little without a figure, so each test counts its examples, and the figures stand at the end of the
test run (conftest.py).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from hypothesis import HealthCheck, Phase, settings
from nftproxy_conformance.strategies.extensions.algorithms import TABLES

from nftproxy.extensions.algorithms.annotations import ALGORITHM
from nftproxy.model.objects import Service

IS_LONG = os.environ.get("NFTPROXY_TESTS") == "long"
IS_MIDDLE = os.environ.get("NFTPROXY_TESTS") == "middle"
LONG_PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
"""All phases but the last, which traces every line on Python 3.11."""


def effort(short: int, long: int, *, steps: int = 50) -> settings:
    """Settings for a property that is to try so many examples, with so many `steps` of a state machine.

    The long form looks for new faults, so it starts from other random numbers each time, in CI too.  It also
    looks for a small failing example, which takes Hypothesis up to five minutes.  The short form reports a failure at
    once, and how to try it again.
    """
    return settings(
        max_examples=long if IS_LONG else max(short, long // 40) if IS_MIDDLE else short,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=LONG_PHASES if IS_LONG else LONG_PHASES[:-1],
        print_blob=True,
        derandomize=not IS_LONG and settings().derandomize,
    )


class Tally:
    """Counts of examples, for a module of tests: `tally.count("clusters")`."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._counts = Counter[str]()

    def count(self, what: str, number: int = 1) -> None:
        """Add to a count.  `what` is its name, a plural, as it will be printed."""
        self._counts[what] += number

    def __str__(self) -> str:
        counts = ", ".join(f"{number:,} {what}" for what, number in self._counts.items())
        return f"{self.module}: {counts or 'nothing'}"


def by_table(services: Iterable[Service]) -> int:
    """How many of some Services choose by a table."""
    return sum(each.options[ALGORITHM] in TABLES for each in services)
