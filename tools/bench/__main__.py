"""`python -m tools.bench`: measures, and prints a table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from nftproxy.lab import obstacle
from tools.bench import figures as records
from tools.bench import plot, quick, report
from tools.bench.rows import ALL_SIZES, ROWS, Session

SIZES = {str(size.services): size for size in ALL_SIZES}
NAMES = list(dict.fromkeys(row.name for row in ROWS))


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice(NAMES), help="Measure this row; repeatable.")
@click.option("--size", "sizes", multiple=True, type=click.Choice(list(SIZES)), help="So many Services; repeatable.")
@click.option("--quick", "is_quick", is_flag=True, help="Assert counts and ratios in small clusters, and no more.")
@click.option("--write", "is_to_write", is_flag=True, help="Put tables and plot into docs/.")
@click.option("--figures", "path", type=click.Path(path_type=Path), help="A file that keeps figures from run to run.")
@click.option("--profile", type=click.Path(path_type=Path), help="Where to put cProfile's figures of the agent.")
def main(
    names: tuple[str, ...],
    sizes: tuple[str, ...],
    is_quick: bool,
    is_to_write: bool,
    path: Path | None,
    profile: Path | None,
) -> None:
    """Measure the agent as its users see it, and print what was promised beside what was found."""
    if why := obstacle():
        raise click.ClickException(why)
    if is_quick:
        checks = quick.run({})
        click.echo("\n".join(map(str, checks)))
        raise SystemExit(not all(check.is_good for check in checks))
    figures = records.load(path)
    chosen = [row for row in ROWS if not names or row.name in names]
    keep = partial(records.save, figures, path) if path else lambda: None
    Session(figures, keep, profile).run(chosen, [size for name, size in SIZES.items() if not sizes or name in sizes])
    if is_to_write:
        report.write(figures)
        plot.draw(figures)
    click.echo("\n".join(report.sections(figures).values()))


if __name__ == "__main__":
    main()
