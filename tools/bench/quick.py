"""What CI asserts: counts, and ratios between clusters of different sizes; never times, as its machines differ.

Latencies are compared by the fastest, which a busy machine touches least.  The bound of a ratio leaves room
nevertheless: work in proportion to the cluster would be 10.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tools.bench import bystanders, changes, latency, loads, startup
from tools.bench.bystanders import COLD, RELOAD
from tools.bench.changes import KINDS
from tools.bench.cluster import Size
from tools.bench.dumps import Dumps, is_possible
from tools.bench.figures import Figures
from tools.bench.progress import tell
from tools.bench.world import World

FEW, MANY = Size(100, 10), Size(1_000, 10)
ROUNDS = 8
MOST_GROWTH = 4.0
SECONDS = 3  # of changes without pause
MOST_ELEMENTS = 2 * FEW.endpoints + 2 + 2
"""All slots of a Service with another endpoint in them, its verdict of before and of now, and an address."""


MOST_WAITS = 6
"""Turns of the agent's event loop for a change: the bytes come, they are read, the change is made, and it waits again.
Some more if the machine is so busy that what belongs together comes at different times: the fewest of all series
count."""

SERIES = 3
"""How often changes are made while the kernel's answers are counted: the series in the middle counts, since in one of
them the agent may look at its tables, as it does every 30 s (nftables.syncPeriod)."""

MOST_DUMPS = 0
"""Elements alone are sent without asking (kernel/element_batch.py).  libnftables 1.0.6 asks for 8 dumps before each
transaction, 1.1.3 for half of that."""


class Check(NamedTuple):
    """Something that was counted, and what it may be at most."""

    what: str
    found: float
    most: float

    @property
    def is_good(self) -> bool:
        """Whether it is not more."""
        return self.found <= self.most

    def __str__(self) -> str:
        verdict = "ok" if self.is_good else "FAILED"
        return f"{verdict}: {self.what}: {self.found:g}, at most {self.most:g}"


def run(figures: Figures) -> list[Check]:
    """Measure, and return what was found."""
    return [*_changes(figures), *_growth(figures), *_restart(figures), *_bystanders(figures)]


def _changes(figures: Figures) -> Iterator[Check]:
    for size in (FEW, MANY):
        with World(size) as world:
            world.start_agent()
            world.settle()
            lists = world.api_requests("LIST")
            latency.measure_rounds(world, figures, ROUNDS)
            for kind in KINDS:
                name = f"{size.services}/{kind}"
                yield Check(f"elements touched, {size}, {kind}", figures[f"elements/{name}/max"], MOST_ELEMENTS)
            rules = max(figures[f"rules/{size.services}/{kind}"] for kind in KINDS)
            yield Check(f"rules touched, {size}", rules, 0)
            yield from _dumps(world)
            loads.measure_sustained(world, figures, SECONDS)  # raises if any change gets lost
            yield Check(f"lists asked of the API meanwhile, {size}", world.api_requests("LIST") - lists, 0)


def _dumps(world: World) -> Iterator[Check]:
    if not is_possible():
        tell("no strace, so nobody counts what the agent has the kernel list")
        return
    counted = []
    for _ in range(SERIES):
        with Dumps(world.agent.pid) as dumps, world.listener() as listener:
            made = changes.series(world, listener, changes.rounds(world.size, 1))
        counted.append((dumps, made))
    dumps, made = sorted(counted, key=lambda each: each[0].counts.total())[SERIES // 2]
    yield Check(f"changes made without a netlink request, {world.size}", max(0, len(made) - dumps.requests), 0)
    turns = min(each.waits / len(its) for each, its in counted)
    yield Check(f"turns of the event loop per change, {world.size}", turns, MOST_WAITS)
    yield Check(f"rules listed while things change, {world.size}", dumps.counts["GETRULE"], 0)
    yield Check(f"netlink dumps per change, {world.size}", dumps.counts.total() / len(made), MOST_DUMPS)


def _growth(figures: Figures) -> Iterator[Check]:
    few, many = FEW.services, MANY.services
    for what in (f"latency/{{}}/{latency.ALL}/min", f"cpu/{{}}/{changes.REPLACED}", f"cpu/{{}}/{latency.OTHERS}"):
        ratio = figures[what.format(many)] / figures[what.format(few)]
        yield Check(f"growth with ten times the Services, {what.format(many)}", ratio, MOST_GROWTH)


def _restart(figures: Figures) -> Iterator[Check]:
    startup.measure_restart(MANY, figures, times=1)
    name = f"restart/{MANY.services}"
    yield Check("a restart without connections", float(not figures[f"{name}/connections"]), 0)
    yield Check("connections lost in a restart", figures[f"{name}/lost"], 0)


def _bystanders(figures: Figures) -> Iterator[Check]:
    bystanders.measure_bystanders(MANY, figures)
    for when in (COLD, RELOAD):
        name = bystanders.name(MANY.services, when)
        yield Check(f"a load without pings, {when}", float(not figures[f"{name}/count"]), 0)
        yield Check(f"pings from pod to pod lost meanwhile, {when}", figures[f"{name}/lost"], 0)
