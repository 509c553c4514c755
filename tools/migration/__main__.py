"""`python -m tools.migration`: switches a node there and back in each shape, and prints a table."""

from __future__ import annotations

import click

from nftproxy.lab import obstacle
from tools.migration.switch import SHAPES, Account, Row, switch

COLUMNS = ("kube-proxy", "step", "s", "new connections", "lost", "late", "questions over kept ones", "ended")


@click.command()
@click.option("--shape", "shapes", multiple=True, type=click.Choice(list(SHAPES)), default=SHAPES, help="Repeatable.")
@click.option("--tries", type=int, default=2000, show_default=True, help="Of each client after each step.")
@click.option("--kept", type=int, default=25, show_default=True, help="Connections that each client keeps.")
def main(shapes: tuple[str, ...], tries: int, kept: int) -> None:
    """Switch a node from kube-proxy's rules to nftproxy and back under traffic; says what became of connections."""
    if why := obstacle():
        raise click.ClickException(why)
    click.echo(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for shape in shapes:
        for line in lines(switch(shape, tries=tries, kept=kept)):
            click.echo(line)


def lines(account: Account) -> list[str]:
    """The rows of an account."""
    return [f"| {' | '.join([account.shape, *_cells(row)])} |" for row in account.rows()]


def _cells(row: Row) -> list[str]:
    counts = (row.new, row.new_lost, row.late, row.asked, row.ended)
    return [row.step, f"{row.seconds:.2f}", *(f"{count:,}" for count in counts)]


if __name__ == "__main__":
    main()
