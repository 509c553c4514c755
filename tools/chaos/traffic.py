"""Connections all the time, in a thread of their own, each held against what it may become at that moment."""

from __future__ import annotations

import math
import threading
import time
from random import Random
from types import TracebackType
from typing import NamedTuple, Self

from nftproxy.lab import Lab, LabError, Outcome, Probe
from tools.chaos.cluster import ANCHORS, CHANGING, Cluster, probe

BATCH = 20
"""Connections that are tried between two looks at the clock."""
REST = 0.02
"""Seconds between two batches: traffic is not to be what keeps the machine busy."""


class Wrong(NamedTuple):
    """A connection that became what it may not; `at` is the time by `time.monotonic`."""

    at: float
    probe: Probe
    outcome: Outcome
    allowed: frozenset[Outcome]

    def __str__(self) -> str:
        return f"{self.probe} became {self.outcome}; allowed: {sorted(map(repr, self.allowed))}"


class Traffic:
    """Tries connections while it is entered.

    Args:
        lab: where.
        cluster: says what each may become.
        seed: which connections.

    Attributes:
        judged: how many were held against what they may become.
        excused: how many came while the rules were known to be harmed.
        unknown: how many the machine was too busy for, so that what became of them isn't known.
        wrong: those that went wrong.
    """

    def __init__(self, lab: Lab, cluster: Cluster, seed: str) -> None:
        self.judged = self.excused = self.unknown = 0
        self.wrong: list[Wrong] = []
        self._lab = lab
        self._cluster = cluster
        self._random = Random(f"{seed}/traffic")
        self._harmed: list[list[float]] = []
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error:
            raise self._error

    def harmed(self) -> None:
        """Somebody is about to harm the rules: until `mended` nothing is asked of connections."""
        self._harmed.append([time.monotonic(), math.inf])

    def mended(self) -> None:
        """The rules are right again."""
        for window in self._harmed:
            window[1] = min(window[1], time.monotonic())

    def _run(self) -> None:
        try:
            while not self._stop.wait(REST):
                self._try_some()
        except BaseException as error:  # noqa: BLE001 -- raised again by whoever waits for this thread
            self._error = error

    def _try_some(self) -> None:
        numbers = [self._random.choice(self._random.choice((ANCHORS, CHANGING))) for _ in range(BATCH)]
        probes = [probe(number, self._random) for number in numbers]
        began = time.monotonic()
        try:
            outcomes = self._lab.connect_many(probes)
        except LabError:
            self.unknown += BATCH
            return
        ended = time.monotonic()
        if any(since <= ended and began <= until for since, until in self._harmed):
            self.excused += BATCH
            return
        for number, asked, outcome in zip(numbers, probes, outcomes, strict=True):
            self.judged += 1
            allowed = self._cluster.allowed(number, asked, began, ended)
            if outcome not in allowed:
                self.wrong.append(Wrong(ended, asked, outcome, allowed))
