"""What was promised, and how far what was measured meets it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.bench import changes, latency
from tests.bench.figures import Figures

MILLISECONDS, SECONDS, MEBIBYTES, RATIO, COUNT = ("ms", 1e3), ("s", 1.0), ("MB", 1 / (1 << 20)), ("x", 1.0), ("", 1.0)


class Target(NamedTuple):
    """A figure, or the ratio of two, and what it should at most be; None for what nothing was promised of."""

    text: str
    figure: str
    limit: float | None
    unit: tuple[str, float] = MILLISECONDS
    base: str = ""

    def line(self, figures: Figures) -> str | None:
        """The row of the table; None if it wasn't measured."""
        value = figures.get(self.figure)
        base = figures.get(self.base) if self.base else 1.0
        if value is None or base is None:
            return None
        value /= base
        target = "" if self.limit is None else f"<= {_text(self.limit, self.unit)}"
        return f"| {self.text} | {target} | {_text(value, self.unit)} | {self._verdict(value)} |"

    def _verdict(self, value: float) -> str:
        if self.limit is None:
            return ""
        return "met" if value <= self.limit else f"missed: {value / self.limit:.2g} times that"


def _text(value: float, unit: tuple[str, float]) -> str:
    name, factor = unit
    scaled = value * factor
    digits = 0 if scaled == int(scaled) or scaled >= 100 else 1 if scaled >= 10 else 2
    return f"{scaled:,.{digits}f} {name}".rstrip()


def _latencies() -> Iterator[Target]:
    everything = f"latency/10000/{latency.ALL}"
    yield Target("EndpointSlice written until committed, 10,000 Services, p50", f"{everything}/p50", 0.005)
    yield Target("the same, p99", f"{everything}/p99", 0.020)
    for kind in changes.KINDS:
        yield Target(f"- {kind}, p50", f"latency/10000/{kind}/p50", 0.005)
        yield Target(f"- {kind}, p99", f"latency/10000/{kind}/p99", 0.020)
    for size in (100, 1_000, 40_000):
        for part in ("p50", "p99"):
            limit = None if size == 100 else 1.5
            name = f"latency/{size}/{latency.ALL}/{part}"
            yield Target(f"at {size:,} Services, {part}", name, None)
            yield Target(f"- to that at 10,000, {part}", name, limit, RATIO, f"{everything}/{part}")
    for size in (100, 1_000, 10_000, 40_000):
        for what in (changes.REPLACED, "other changes"):
            limit = 0.005 if size == 10_000 else None
            yield Target(f"CPU per change, {size:,} Services, {what}", f"cpu/{size}/{what}", limit)


TARGETS = (*_latencies(),)


def table(figures: Figures) -> str:
    """All that was measured, as Markdown."""
    lines = filter(None, (target.line(figures) for target in TARGETS))
    return "\n".join(("| | target | measured | |", "| --- | --- | --- | --- |", *lines)) + "\n"
