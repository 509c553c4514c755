"""Connections all the time, in a thread of their own, each held against its allowed outcomes at that moment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from random import Random

from nftproxy_conformance.lab import Lab, LabError

from tools.chaos.cluster import ANCHORS, CHANGING, Cluster, probe
from tools.chaos.watcher import Suspect

BATCH = 20
"""Connections that are tried between two looks at the clock."""
REST = 0.02
"""Seconds between two batches: traffic itself must not keep the machine busy."""


class Traffic:
    """Tries connections while it is entered.

    Args:
        lab: where.
        cluster: says which outcomes are allowed.
        seed: which connections.
        suspect: takes each connection that the present objects don't explain.

    Attributes:
        judged: how many were held against their allowed outcomes.
        excused: how many came while the rules were known to be harmed.
        unknown: how many the machine was too busy for, so that their outcome isn't known.
        wrong: a sentence for each connection whose outcome isn't allowed.
    """

    def __init__(self, lab: Lab, cluster: Cluster, seed: str, suspect: Callable[[Suspect], None]) -> None:
        self.judged = self.excused = self.unknown = 0
        self.wrong: list[str] = []
        self._lab = lab
        self._suspect = suspect
        self._cluster = cluster
        self._random = Random(f"{seed}/traffic")
        self._harmed: list[list[float]] = []

    def harmed(self) -> None:
        """Somebody is about to harm the rules: until `mended` nothing is asked of connections."""
        self._harmed.append([time.monotonic(), math.inf])

    def harms(self) -> list[float]:
        """The times at which the rules were harmed."""
        return [since for since, _ in self._harmed]

    def mended(self) -> None:
        """The rules are right again."""
        for window in self._harmed:
            window[1] = min(window[1], time.monotonic())

    def try_some(self) -> None:
        """Try some connections, and judge them."""
        numbers = [self._random.choice(self._random.choice((ANCHORS, CHANGING))) for _ in range(BATCH)]
        probes = [probe(number, self._random) for number in numbers]
        began = time.monotonic()
        try:
            outcomes = self._lab.connect_many(probes)
        except LabError:
            self.unknown += BATCH
            return
        ended = time.monotonic()
        is_harmed = any(since <= ended and began <= until for since, until in self._harmed)
        self.excused += BATCH * is_harmed
        self.judged += BATCH * (not is_harmed)
        for number, asked, outcome in zip(numbers, probes, outcomes, strict=True):
            if outcome in self._cluster.explained(number, asked, began, ended):
                continue
            self._suspect(Suspect(number, asked, outcome, began, ended))
            allowed = self._cluster.allowed(number, asked, began, ended)
            if not is_harmed and outcome not in allowed:
                self.wrong.append(f"{asked} became {outcome}; allowed: {sorted(map(repr, allowed))}")
