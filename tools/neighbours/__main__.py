"""`python -m tools.neighbours [NEIGHBOUR...]`: try nftproxy beside neighbours, each in a machine of its own."""

from __future__ import annotations

import sys

import click

from tools.support.subjects import NEIGHBOURS, NEIGHBOURS_SUITE, NEWER
from tools.vm.machine import Machine

MINUTES = 60.0
"""A trial takes a minute on a quiet machine, emulated as it is."""


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(NEIGHBOURS)))
def main(names: tuple[str, ...]) -> None:
    """Try nftproxy beside neighbours, by default all.  Ends with 1 if one disturbs it."""
    sys.exit(max([run(name) for name in names or NEIGHBOURS]))


def run(name: str) -> int:
    """Try a neighbour.  Returns the exit status."""
    suite = NEWER.get(name, NEIGHBOURS_SUITE)
    machine = Machine(suite, suite, neighbours=True)
    return machine.run(["python", "-m", "tools.neighbours.trial", name], MINUTES * 60)


main()
