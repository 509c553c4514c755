"""The rows: what can be measured, in which cluster, and in which order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple, Self

from tests.bench import latency
from tests.bench.cluster import Size
from tests.bench.figures import Figures
from tests.bench.world import World

HUNDRED, THOUSAND, TEN_THOUSAND, FORTY_THOUSAND = Size(100, 10), Size(1_000, 10), Size(10_000, 10), Size(40_000, 5)
ALL_SIZES = (HUNDRED, THOUSAND, TEN_THOUSAND, FORTY_THOUSAND)


class Row(NamedTuple):
    """Something to measure in clusters of these sizes, with a world of that size whose agent runs."""

    name: str
    sizes: Sequence[Size]
    measure: Callable[[World, Figures], None]


ROWS = (Row("latency", ALL_SIZES, latency.measure),)


class Session:
    """Measures rows, and keeps a world for as long as the next row is of the same size."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._stack = ExitStack()
        self._world: World | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, rows: Sequence[Row], sizes: Collection[Size]) -> None:
        """Measure rows in clusters of these sizes, as far as they are for them, those of one size together."""
        for size in sizes:
            for row in rows:
                if size in row.sizes:
                    tell(f"{row.name}, {size}")
                    row.measure(self._world_of(size), self._figures)
        self._stack.close()

    def _world_of(self, size: Size) -> World:
        if self._world is None or self._world.size != size:
            self._stack.close()
            self._world = self._stack.enter_context(World(size))
            self._figures[f"start/{size.services}"] = self._world.start_agent()
            self._world.settle()
        return self._world


def tell(text: str) -> None:
    """Say what is going on, on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
