"""The targets, and how far the figures meet them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tools.bench import changes, connections, loads, startup
from tools.bench.connections import DIRECT, SERVICE
from tools.bench.figures import Figures, slowness
from tools.bench.startup import COLD, QUIET, RELOAD

Unit = tuple[str, float]
MILLISECONDS, MICRO, SECONDS, MEBIBYTES = ("ms", 1e3), ("us", 1e6), ("s", 1.0), ("MB", 1 / (1 << 20))
RATIO, COUNT = ("x", 1.0), ("", 1.0)
NO_GROWTH = 1.1
"""As near to "no growth" as medians of two runs come."""


class Target(NamedTuple):
    """A figure, or the ratio of two, and its limit, None without a target.

    The limit of a time is for a quiet hour: the verdict is on the time at that speed of the machine.
    """

    text: str
    figure: str
    limit: float | None
    unit: Unit = MILLISECONDS
    base: str = ""

    def row(self, figures: Figures) -> tuple[str, str, str, str] | None:
        """Its text, the target, the figure, and how far that meets it.  None if it wasn't measured."""
        value = figures.get(self.figure)
        base = figures.get(self.base) if self.base else 1.0
        if value is None or base is None:
            return None
        value /= base
        is_time = self.unit in (MILLISECONDS, MICRO, SECONDS)
        verdict = self._verdict(value / slowness(figures) if is_time else value)
        target = "" if self.limit is None else f"<= {show(self.limit, self.unit)}"
        return self.text, target, show(value, self.unit), verdict

    def _verdict(self, value: float) -> str:
        if self.limit is None:
            return ""
        if value <= self.limit:
            return "met"
        if not self.limit:
            return "missed"
        ratio = value / self.limit
        return f"missed: {ratio:.2g} x" if ratio > 2 else f"missed by {ratio - 1:.0%}"


def show(value: float, unit: Unit) -> str:
    """A figure with its unit."""
    name, factor = unit
    scaled = value * factor
    digits = 0 if scaled == int(scaled) or scaled >= 100 else 1 if scaled >= 10 else 2
    return f"{scaled:,.{digits}f} {name}".rstrip()


def _latencies() -> Iterator[Target]:
    for what in (changes.ALL, *changes.KINDS):
        for part, limit in (("p50", 0.0015), ("p99", 0.003)):
            yield Target(f"{what}: to the commit, 10,000 x 10, {part}", f"latency/10000/{what}/{part}", limit)
    for size in (100, 1_000, 40_000):
        for part in ("p50", "p99"):
            name, base = (f"latency/{each}/{changes.ALL}/{part}" for each in (size, 10_000))
            yield Target(f"{changes.ALL}: to the commit, {size:,} Services, {part}", name, None)
            yield Target(f"the same, to that at 10,000, {part}", name, None if size == 100 else 1.5, RATIO, base)
    few = f"latency/100/{changes.CREATED}/p50"
    for size in (10_000, 40_000):
        name = f"latency/{size}/{changes.CREATED}/p50"
        yield Target(f"{changes.CREATED}, {size:,} Services, to that at 100, p50", name, NO_GROWTH, RATIO, few)
    for kind in (changes.CREATED, changes.REPLACED):
        yield Target(f"{kind}, 100,000 Services, p50", f"latency/100000/{kind}/p50", None)
    for size, bound in ((100, None), (10_000, 0.003), (40_000, 0.003)):
        yield Target(f"{loads.FIRST_OF_COUNT}, {size:,} Services, p50", f"new count/{size}/p50", bound)


def _costs() -> Iterator[Target]:
    for kind in (changes.REMOVED, changes.ADDED):
        yield Target(f"{kind}, of a Service of 1,000, p50", f"large/{kind}/p50", 0.004)
        yield Target("elements that this touches, p50", f"large elements/{kind}/p50", None, COUNT)
    for size in (100, 1_000, 10_000, 40_000):
        for what in (changes.REPLACED, changes.OTHERS):
            limit = 0.002 if size == 10_000 else None
            yield Target(f"CPU per change, {size:,} Services, {what}", f"cpu/{size}/{what}", limit)


DIRECTLY, THROUGH = (f"{connections.name(10_000, way)}/p50" for way in (DIRECT, SERVICE))
THROUGH_OF_FEW = f"{connections.name(100, SERVICE)}/p50"
PING_QUIET, PING_COLD, PING_RELOAD = (startup.ping(10_000, when) for when in (QUIET, COLD, RELOAD))

_OTHERS = (
    Target("process start to complete rules, cold, 10,000 x 10", "start/10000", 2.0, SECONDS),
    Target("the same at 100 Services", "start/100", None, SECONDS),
    Target("the same at 1,000 Services", "start/1000", None, SECONDS),
    Target("the same at 40,000 x 5", "start/40000", 5.0, SECONDS),
    Target("the same at 100,000 x 2", "start/100000", None, SECONDS),
    Target("restart with rules in place, 10,000 x 10", "restart/10000", 2.5, SECONDS),
    Target("connections made meanwhile", "restart/10000/connections", None, COUNT),
    Target("connections lost of these", "restart/10000/lost", 0, COUNT),
    Target("ping from pod to pod, nothing else going on, p50", f"{PING_QUIET}/p50", None, MICRO),
    Target("the same, greatest", f"{PING_QUIET}/max", None),
    Target("the same while everything is loaded cold, p50", f"{PING_COLD}/p50", None, MICRO),
    Target("the same, p99", f"{PING_COLD}/p99", None, MICRO),
    Target("the same, greatest", f"{PING_COLD}/max", None),
    Target("pings lost of these", f"{PING_COLD}/lost", 0, COUNT),
    Target("the same while everything is loaded over what is there, p99", f"{PING_RELOAD}/p99", None, MICRO),
    Target("the same, greatest", f"{PING_RELOAD}/max", None),
    Target("pings lost of these", f"{PING_RELOAD}/lost", 0, COUNT),
    Target("1,000 changes to 1,000 Services: writing them", "burst/writing", None, SECONDS),
    Target("the same: from the last answer until all are in the kernel", "burst/after the last", 1.5, SECONDS),
    Target("20 endpoints of each of 100 Services at once: writing them", "rollout/writing", None, SECONDS),
    Target("the same, p50", "rollout/p50", None),
    Target("the same, p99", "rollout/p99", 0.02),
    Target("the same, CPU per change", "rollout/cpu", None),
    Target("200 changes a second for 60 s: changes in a second", "sustained/rate", None, COUNT),
    Target("the same, p50", "sustained/p50", None),
    Target("the same, p99", "sustained/p99", 0.1),
    Target("the same, processor cores of the agent", "sustained/cores", 1.0, COUNT),
    Target("resident memory, settled, 100 Services", "memory/100/settled", 55 << 20, MEBIBYTES),
    Target("resident memory, settled, 10,000 x 10", "memory/10000/settled", 120 << 20, MEBIBYTES),
    Target("resident memory, greatest, 10,000 x 10", "memory/10000/peak", 250 << 20, MEBIBYTES),
    Target("resident memory, settled, 40,000 x 5", "memory/40000/settled", None, MEBIBYTES),
    Target("resident memory, greatest, 40,000 x 5", "memory/40000/peak", None, MEBIBYTES),
    Target("resident memory, settled, 100,000 x 2", "memory/100000/settled", None, MEBIBYTES),
    Target("resident memory, greatest, 100,000 x 2", "memory/100000/peak", None, MEBIBYTES),
    Target("offline `render`, 10,000 x 10, JSON", "render/10000/JSON", 3.0, SECONDS),
    Target("the same, YAML", "render/10000/YAML", 3.0, SECONDS),
    Target("new connection to a pod directly, 10,000 Services, p50", DIRECTLY, None, MICRO),
    Target("new connection through a Service, p50", THROUGH, None, MICRO),
    Target("the same, to that directly", THROUGH, 1.25, RATIO, DIRECTLY),
    Target("the same, to that with 100 Services", THROUGH, NO_GROWTH, RATIO, THROUGH_OF_FEW),
    Target("resident memory after 500 changes", "soak/after 500", None, MEBIBYTES),
    Target("resident memory after 5,000, to that", "soak/after 5000", 1.05, RATIO, "soak/after 500"),
)  # fmt: skip

TARGETS = (*_latencies(), *_costs(), *_OTHERS)
