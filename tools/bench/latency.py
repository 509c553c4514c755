"""Single changes: how long each takes to get into the kernel, what it costs the agent, and what the kernel gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tools.bench import changes
from tools.bench.changes import ADDED, FILLED, KINDS, READY, REMOVED, REPLACED, UNREADY, Change, Sample
from tools.bench.figures import Figures, note
from tools.bench.listener import Listener
from tools.bench.world import World

SLICE_WRITES = frozenset({REPLACED, REMOVED, ADDED, UNREADY, READY, FILLED})
ALL = "EndpointSlice write"
"""The name of all kinds of changes together that are writes of EndpointSlices."""
OTHERS = "all other kinds"
WARM_UP = 5  # rounds: each new number of endpoints makes a new chain once


def measure(world: World, figures: Figures) -> None:
    """Make changes of all kinds, of each as many as its 99th percentile needs where that has been promised."""
    measure_rounds(world, figures, 100 if world.size.services == 10_000 else 40)


def measure_rounds(world: World, figures: Figures, rounds: int) -> None:
    """Make so many changes of each kind."""
    with world.listener() as listener:
        changes.series(world, listener, changes.rounds(world.size, WARM_UP))
        replacements = changes.replacements(world.size, rounds)
        samples = _costed(world, figures, listener, REPLACED, replacements)
        samples += _costed(world, figures, listener, OTHERS, changes.rounds(world.size, rounds))
    summarise(world, figures, samples)


def _costed(world: World, figures: Figures, listener: Listener, what: str, made: Iterable[Change]) -> list[Sample]:
    before = world.agent.cpu
    samples = changes.series(world, listener, made)
    figures[f"cpu/{world.size.services}/{what}"] = (world.agent.cpu - before) / len(samples)
    return samples


def summarise(world: World, figures: Figures, samples: Sequence[Sample]) -> None:
    """Note what the samples show, for each kind and for all writes of EndpointSlices."""
    name = f"latency/{world.size.services}"
    note(figures, f"{name}/{ALL}", (each.seconds for each in samples if each.kind in SLICE_WRITES))
    for kind in KINDS:
        of_kind = [each for each in samples if each.kind == kind]
        note(figures, f"{name}/{kind}", (each.seconds for each in of_kind))
        note(figures, f"elements/{world.size.services}/{kind}", (each.elements for each in of_kind))
        figures[f"rules/{world.size.services}/{kind}"] = max(each.rules for each in of_kind)
