"""The assertions of CI: counts, and ratios between clusters of different sizes, but no times, as its machines differ.

Processor times are compared, which a busy machine touches least.  The bound of a ratio leaves room nevertheless: work
in proportion to the cluster would be 10.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import NamedTuple

from tools.bench import changes, loads, startup, work
from tools.bench.changes import KINDS
from tools.bench.cluster import Size
from tools.bench.dumps import traced
from tools.bench.figures import Figures, progress
from tools.bench.rig import Rig, assembled

FEW, HALF, MANY = Size(100, 10), Size(500, 10), Size(1_000, 10)
ROUNDS = 8
MOST_GROWTH = 4.0
MOST_FOR_TWICE, MOST_FOR_CHANGE = 2.2, 1.2
"""Bounds of counts of lines.  Unlike processor times they need no room for a busy machine."""
MOST_OF_LARGE = 0.1
"""Endpoints in the order of their addresses would touch all elements on average."""
SECONDS = 3  # of changes without pause
MOST_ELEMENTS = 2 * FEW.endpoints + 2 + 2
"""All slots of a Service with another endpoint in them, its verdict of before and of now, and an address."""

MOST_IN_RESTART = 10
"""Elements of sets that can't be compared, which the agent writes anew: ranges."""

MOST_WAITS = 6
"""Turns of the agent's event loop for a change: the bytes come, they are read, the change is made, and it waits again.
Some more on a machine so busy that parts of a change come at different times.  The fewest of all
series count."""

SERIES = 3
"""How often changes are made while the kernel's answers are counted: the median series counts, since during
another the agent may look at its tables, as it does every 30 s (nftables.syncPeriod)."""

MOST_DUMPS = 0
"""Elements alone are sent without asking (kernel/nfnetlink/element_batch.py).  libnftables 1.0.6 asks for 8 dumps
before each transaction, 1.1.3 for half of that."""


class Check(NamedTuple):
    """A figure, and its limit."""

    what: str
    found: float
    most: float

    @property
    def is_good(self) -> bool:
        """Whether the figure is within its limit."""
        return self.found <= self.most

    def __str__(self) -> str:
        verdict = "ok" if self.is_good else "FAILED"
        return f"{verdict}: {self.what}: {self.found:g}, at most {self.most:g}"


def run() -> list[Check]:
    """Measure, and return all checks."""
    figures: Figures = {}
    return [*_work(figures), *_changes(figures), *_growth(figures), *_restart(figures), *_bystanders()]


def _work(figures: Figures) -> Iterator[Check]:
    work.measure_lines(HALF, {})  # imports, caches and compiled templates
    for size in (HALF, MANY):
        work.measure_lines(size, figures)
    for name, most in ((work.LOAD, MOST_FOR_TWICE), (work.RENDER, MOST_FOR_TWICE), (work.CHANGE, MOST_FOR_CHANGE)):
        few, many = (figures[f"lines/{size.services}/{name}"] for size in (HALF, MANY))
        yield Check(f"growth with twice the Services, lines of Python, {name}", many / few, most)
    work.measure_large(figures)
    for way in work.WAYS:
        yield Check(
            f"share of 1,000 endpoints' elements, one goes, {way}", figures[f"large share/{way}"], MOST_OF_LARGE
        )
    work.measure_rollout(FEW, figures)
    yield Check("elements per change of a rollout, mean", figures["rolled/elements/mean"], FEW.endpoints)
    yield Check("elements per change of a rollout, most", figures["rolled/elements/max"], MOST_ELEMENTS)
    yield Check("declarations in a rollout", figures["rolled/declarations"], 0)


def _changes(figures: Figures) -> Iterator[Check]:
    for size in (FEW, MANY):
        with assembled(size) as rig:
            rig.start_agent()
            rig.settle()
            lists = rig.api_requests("LIST")
            changes.measure_rounds(rig, figures, ROUNDS)
            for kind in KINDS:
                name = f"{size.services}/{kind}"
                yield Check(f"elements touched, {size}, {kind}", figures[f"elements/{name}/max"], MOST_ELEMENTS)
            rules = max(figures[f"rules/{size.services}/{kind}"] for kind in KINDS)
            yield Check(f"rules touched, {size}", rules, 0)
            yield from _dumps(rig)
            loads.measure_sustained(rig, figures, SECONDS)  # raises if any change gets lost
            yield Check(f"lists asked of the API meanwhile, {size}", rig.api_requests("LIST") - lists, 0)
            rig.stop_agent()
            with rig.listener() as listener:
                rig.start_agent()
                rig.settle()
                touched = sum(commit.elements for commit in listener.take())
            yield Check(f"elements touched in a restart, {size}", touched, MOST_IN_RESTART)


def _dumps(rig: Rig) -> Iterator[Check]:
    if not shutil.which("strace"):
        progress("no strace: not counting what the agent has the kernel list")
        return
    counted = []
    for _ in range(SERIES):
        with traced(rig.agent.process_id) as found, rig.listener() as listener:
            made = changes.series(rig, listener, changes.rounds(rig.size, 1))
        counted.append((found, made))
    found, made = sorted(counted, key=lambda each: each[0].dumps)[SERIES // 2]
    yield Check(f"changes made without a netlink request, {rig.size}", max(0, len(made) - found.requests), 0)
    turns = min(each.waits / len(its) for each, its in counted)
    yield Check(f"turns of the event loop per change, {rig.size}", turns, MOST_WAITS)
    yield Check(f"netlink dumps per change, {rig.size}", found.dumps / len(made), MOST_DUMPS)


def _growth(figures: Figures) -> Iterator[Check]:
    few, many = FEW.services, MANY.services
    for what in (f"cpu/{{}}/{changes.REPLACED}", f"cpu/{{}}/{changes.OTHERS}"):
        ratio = figures[what.format(many)] / figures[what.format(few)]
        yield Check(f"growth with ten times the Services, {what.format(many)}", ratio, MOST_GROWTH)


def _restart(figures: Figures) -> Iterator[Check]:
    startup.measure_restart(MANY, figures, times=1)
    name = f"restart/{MANY.services}"
    yield Check("a restart without connections", float(not figures[f"{name}/connections"]), 0)
    yield Check("connections lost in a restart", figures[f"{name}/lost"], 0)


def _bystanders() -> Iterator[Check]:
    for when, asked in startup.measure_bystanders(MANY).items():
        yield Check(f"a load without questions between pods, {when}", float(not asked.answered), 0)
        yield Check(f"questions from pod to pod lost meanwhile, {when}", asked.lost, 0)
