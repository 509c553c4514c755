"""The rows: what can be measured, in which cluster, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.bench import bystanders, connections, latency, loads, offline, shapes, stages, startup, steering
from tools.bench.cluster import Size
from tools.bench.figures import Figures
from tools.bench.progress import others, tell
from tools.bench.world import World

HUNDRED, THOUSAND, TEN_THOUSAND, FORTY_THOUSAND = Size(100, 10), Size(1_000, 10), Size(10_000, 10), Size(40_000, 5)
HUNDRED_THOUSAND = Size(100_000, 2)
"""A look ahead: no target is for it."""
ALL_SIZES = (HUNDRED, THOUSAND, TEN_THOUSAND, FORTY_THOUSAND, HUNDRED_THOUSAND)


class Row(NamedTuple):
    """Something to measure in clusters of these sizes, with a world of that size whose agent runs."""

    name: str
    sizes: Sequence[Size]
    measure: Callable[[World, Figures], None]


class OwnRow(NamedTuple):
    """Something that needs no world, or one of its own kind."""

    name: str
    sizes: Sequence[Size]
    measure: Callable[[Size, Figures], None]


# Of one size the first come first: what leaves the cluster changed, or memory used, comes last.
ROWS: tuple[OwnRow | Row, ...] = (
    OwnRow("render", (TEN_THOUSAND,), offline.measure_render),
    OwnRow("stages", (TEN_THOUSAND,), stages.measure_stages),
    OwnRow("shapes", (HUNDRED, THOUSAND, TEN_THOUSAND), shapes.measure_shapes),
    OwnRow("connections", (HUNDRED, TEN_THOUSAND), connections.measure_connections),
    OwnRow("steering", (HUNDRED,), steering.measure_steering),
    OwnRow("restart", (TEN_THOUSAND,), startup.measure_restart),
    OwnRow("bystanders", (TEN_THOUSAND,), bystanders.measure_bystanders),
    Row("start", ALL_SIZES, startup.measure_start),
    Row("latency", ALL_SIZES, latency.measure),
    Row("stages", (TEN_THOUSAND,), stages.measure_arrival),
    Row("new counts", (HUNDRED, TEN_THOUSAND, FORTY_THOUSAND), loads.measure_new_counts),
    Row("large", (TEN_THOUSAND,), loads.measure_large),
    Row("burst", (TEN_THOUSAND,), loads.measure_burst),
    Row("sustained", (TEN_THOUSAND,), loads.measure_sustained),
    Row("soak", (TEN_THOUSAND,), loads.measure_soak),
)


class Session:
    """Measures rows; those of one size that can, share a world.

    Args:
        figures: where they are noted.
        keep: called after each row.
        profile: where cProfile's figures of a shared world's agent go, None for none.
    """

    def __init__(self, figures: Figures, keep: Callable[[], None], profile: Path | None = None) -> None:
        self._figures = figures
        self._keep = keep
        self._profile = profile

    def run(self, rows: Sequence[OwnRow | Row], sizes: Collection[Size]) -> None:
        """Measure rows in clusters of these sizes, as far as they are for them."""
        for size in sizes:
            of_size = [row for row in rows if size in row.sizes]
            for row in of_size:
                if isinstance(row, OwnRow):
                    self._begin(row, size)
                    row.measure(size, self._figures)
                    self._keep()
            if shared := [row for row in of_size if isinstance(row, Row)]:
                self._run_shared(size, shared)

    def _run_shared(self, size: Size, rows: Sequence[Row]) -> None:
        with World(size, profile=self._profile) as world:
            world.start_agent()
            world.settle()
            for row in rows:
                self._begin(row, size)
                row.measure(world, self._figures)
                self._keep()
            world.stop_agent()

    def _begin(self, row: OwnRow | Row, size: Size) -> None:
        tell(f"{row.name}, {size}")
        self._figures[f"others/{row.name}/{size.services}"] = others()
