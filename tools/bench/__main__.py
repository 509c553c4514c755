"""`python -m tools.bench`: measures, and prints tables."""

from __future__ import annotations

import compileall
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import click
from nftproxy_conformance.lab import obstacle

import nftproxy
from tools.bench import changes, loads, plot, quick, report, startup
from tools.bench.cluster import ALL_SIZES, TEN_THOUSAND, Size
from tools.bench.figures import Figures, load_by_others, progress
from tools.bench.rig import Rig, assembled


class Row(NamedTuple):
    """A measurement in clusters of these sizes, which share a rig whose agent runs."""

    name: str
    sizes: Sequence[Size]
    measure: Callable[[Rig, Figures], None]


ROWS = (
    Row("start", ALL_SIZES, startup.measure_start),
    Row("latency", ALL_SIZES, changes.measure),
    Row("sustained", (TEN_THOUSAND,), loads.measure_sustained),
)
"""A row that leaves the cluster changed, or memory used, comes last."""
RESTART = "restart"
"""The row that has a rig of its own, with 10,000 Services."""
NAMES = [RESTART, *(row.name for row in ROWS)]
SIZES = {str(size.services): size for size in ALL_SIZES}


def run(figures: Figures, names: Collection[str], sizes: Collection[str]) -> None:
    """Measure the rows of these names in clusters of these sizes."""

    def measure(name: str, size: Size, work: Callable[[], None]) -> None:
        progress(f"{name}, {size}")
        figures[f"others/{name}/{size.services}"] = load_by_others()
        work()

    for size in (SIZES[name] for name in sizes):
        if RESTART in names and size == TEN_THOUSAND:
            measure(RESTART, size, partial(startup.measure_restart, size, figures))
        if rows := [row for row in ROWS if row.name in names and size in row.sizes]:
            with assembled(size) as rig:
                rig.start_agent()
                rig.settle()
                for row in rows:
                    measure(row.name, size, partial(row.measure, rig, figures))
                rig.stop_agent()


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice(NAMES), help="Measure this row; repeatable.")
@click.option("--size", "sizes", multiple=True, type=click.Choice(list(SIZES)), help="So many Services; repeatable.")
@click.option("--quick", "is_quick", is_flag=True, help="Assert counts and ratios in small clusters, and no more.")
@click.option("--write", "is_to_write", is_flag=True, help="Put tables and picture into docs/.")
def main(
    names: tuple[str, ...],
    sizes: tuple[str, ...],
    is_quick: bool,
    is_to_write: bool,
) -> None:
    """Measure the agent as its users see it, and print the figures."""
    if why := obstacle():
        raise click.ClickException(why)
    # An installed agent doesn't compile its modules when it starts, but with PYTHONDONTWRITEBYTECODE a checkout's does.
    compileall.compile_dir(nftproxy.__path__[0], quiet=1)
    if is_quick:
        checks = quick.run()
        click.echo("\n".join(map(str, checks)))
        raise SystemExit(not all(check.is_good for check in checks))
    figures: Figures = {}
    run(figures, names or NAMES, sizes or SIZES)
    if is_to_write:
        report.write(figures)
        if any(name.startswith("latency/") for name in figures):
            plot.draw()
    click.echo("\n".join(report.sections(figures).values()))


if __name__ == "__main__":
    main()
