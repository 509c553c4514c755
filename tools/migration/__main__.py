"""`python -m tools.migration`: switches a node there and back in each shape, and prints the fate of connections."""

from __future__ import annotations

import click
from nftproxy_conformance.lab import obstacle

from tools.bench.figures import markdown
from tools.migration.switch import SHAPES, Row, switch
from tools.migration.traffic import LATE

COUNTS = ("new connections", "lost", f"later than {LATE} s", "questions over kept connections", "ended")
STEPS = ("kube-proxy's mode", "step", "s", *COUNTS)
TOTALS = ("kube-proxy's mode", *COUNTS)


@click.command()
@click.option("--shape", "shapes", multiple=True, type=click.Choice(list(SHAPES)), default=SHAPES, help="Repeatable.")
@click.option("--tries", type=int, default=2000, show_default=True, help="Of each client after each step.")
@click.option("--kept", type=int, default=25, show_default=True, help="Connections that each client keeps.")
@click.option("--old-spellings", is_flag=True, help="The cluster's addresses are spelled as newer API servers deny.")
def main(shapes: tuple[str, ...], tries: int, kept: int, *, old_spellings: bool) -> None:
    """Switch a node from kube-proxy's rules to nftproxy and back under traffic, and print each step and the totals."""
    if why := obstacle():
        raise click.ClickException(why)
    rows = {
        shape: list(switch(shape, tries=tries, kept=kept, has_old_spellings=old_spellings).rows()) for shape in shapes
    }
    click.echo(tables(rows), nl=False)


def tables(rows: dict[str, list[Row]]) -> str:
    """The steps of each shape, and the totals."""
    steps = [(shape, row.step, f"{row.seconds:.2f}", *counts(row)) for shape, each in rows.items() for row in each]
    totals = [(shape, *counts(*each)) for shape, each in rows.items()]
    return f"{markdown(STEPS, steps)}\n{markdown(TOTALS, totals)}"


def counts(*rows: Row) -> list[str]:
    """The columns `COUNTS` of the sum of these rows."""
    return [f"{sum(counts):,}" for counts in zip(*(row[2:] for row in rows), strict=True)]


if __name__ == "__main__":
    main()
