"""`python -m tools.masquerade`: measures by turns, and prints a table."""

from __future__ import annotations

import itertools

import click
from nftproxy_conformance.lab import obstacle

from tools.masquerade.scene import FRONTS, WAYS, Outcome, Run, measure
from tools.masquerade.server import SERVE

COLUMNS = (
    "clients", "a second", "way", "asked", "late", "lost", "failed",
    "SYN again", "PAWS", "entries", "insert failed", "dropped", "clashes", "pods' queue full",
)  # fmt: skip


@click.command()
@click.option(
    "--from", "origins", multiple=True, type=click.Choice(list(FRONTS)), default=("node",), help="Repeatable."
)
@click.option("--clients", "counts", multiple=True, type=int, default=(1,), help="How many addresses ask; repeatable.")
@click.option("--rate", "rates", multiple=True, type=float, default=(340.0,), help="Connections a second; repeatable.")
@click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), default=WAYS, help="Repeatable.")
@click.option("--protocol", type=click.Choice(list(SERVE)), default="tcp")
@click.option("--seconds", type=float, default=60.0, help="Of each run.")
def main(
    origins: tuple[str, ...],
    counts: tuple[int, ...],
    rates: tuple[float, ...],
    ways: tuple[str, ...],
    protocol: str,
    seconds: float,
) -> None:
    """Make connections by turns in each way, and print the losses and the kernel's counters."""
    if why := obstacle():
        raise click.ClickException(why)
    click.echo(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for origin, count, rate, way in itertools.product(origins, counts, rates, ways):
        if origin == "node" and count > 1:
            continue  # a node has a single source address
        run = Run(origin, count, protocol, rate, way, seconds)
        click.echo(f"| {' | '.join(map(str, _row(run, measure(run))))} |")


def _row(run: Run, outcome: Outcome) -> tuple[object, ...]:
    result, clients, pods, tracked = outcome
    return (
        f"{run.clients} {run.protocol}, {run.origin}",
        f"{result.asked / result.seconds:,.0f}",
        run.way,
        f"{result.asked:,}",
        result.late,
        result.lost,
        result.failed,
        clients["TCPSynRetrans"],
        pods["PAWSTimewait"],
        f"{tracked['entries']:,}",
        tracked["insert_failed"],
        tracked["drop"] + tracked["early_drop"],
        tracked["clashres"],
        pods["ListenDrops"],
    )


if __name__ == "__main__":
    main()
